"""Send messages, wait for the one that cannot arrive, and look at it.

Run a worker, then: python send.py
"""

import time

from actors import QUEUE, broker, count_words, letter, parcel, remind
from dramatiq import Message

PATIENCE_S = 60


def main() -> None:
    """One of each."""
    broker.flush(QUEUE)
    count_words.send("it was a dark and stormy night")
    remind.send_with_options(args=("the milk",), delay=1_000)
    letter.send()
    parcel.send("nowhere")
    print("sent: a text, a reminder in one second, a letter, a parcel to nowhere")
    end = time.monotonic() + PATIENCE_S
    while (counts := broker.get_queue_message_counts(QUEUE))[2] == 0:
        if time.monotonic() > end:
            raise SystemExit(f"messages in the queues, waiting, delayed and dead: {counts}")
        time.sleep(0.1)
    print("among the dead letters:", counts[2])
    _, _, body = broker.channel.basic_get(f"{QUEUE}.XQ", auto_ack=True)
    print("it is", Message.decode(body))


if __name__ == "__main__":
    main()
