"""Ask for tasks, and wait for what they give.

Run a worker, then: python send.py
"""

from celery import chord
from tasks import add, greet, letter, square, total, weather

PATIENCE_S = 60


def main() -> None:
    """One of each."""
    print("4 + 4 =", add.delay(4, 4).get(timeout=PATIENCE_S))
    squares = chord(square.s(n) for n in range(10))(total.s())
    print("the sum of the squares of 0 to 9 is", squares.get(timeout=PATIENCE_S))
    print("the third call to the weather service said:", weather.delay().get(timeout=PATIENCE_S))
    print("one second later:", greet.apply_async(["morning"], countdown=1).get(timeout=PATIENCE_S))
    letters = [letter.delay("usual") for _ in range(9)]
    letters.append(letter.apply_async(["urgent"], priority=9))
    written = sorted((each.get(timeout=PATIENCE_S) for each in letters), key=lambda each: each[1])
    place = "not the last" if written[-1][0] == "usual" else "the last"
    print(f"of ten letters, the urgent one was {place}")


if __name__ == "__main__":
    main()
