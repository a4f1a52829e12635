"""How a provider tells a repeat."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from wherry.service.lost.repeats import Repeats


def test_a_repeat_gets_the_answer_of_the_first_call():
    repeats = Repeats[bytes]()
    assert repeats.begin("c", 0.0).kind == "new"
    assert repeats.begin("c", 0.1).kind == "running"
    repeats.answered("c", b"42", 2, 0.2)
    assert repeats.begin("c", 0.3) == ("answered", b"42")


def test_a_repeat_of_a_failure_runs():
    repeats = Repeats[bytes]()
    repeats.begin("c", 0.0)
    repeats.forget("c")
    assert repeats.begin("c", 0.1).kind == "new"


def test_the_window_is_bounded_by_count_bytes_and_age():
    repeats = Repeats[bytes](answers_max=3, bytes_max=10, keep_s=5.0)
    for at in range(5):
        repeats.answered(f"c{at}", b"x", 1, 0.0)
    assert [repeats.begin(f"c{at}", 0.0).kind for at in range(5)] == ["new", "new", *["answered"] * 3]
    repeats.answered("large", b"x" * 9, 9, 0.0)
    assert repeats.begin("c3", 0.0).kind == "new"
    assert repeats.begin("c4", 0.0).kind == "answered"
    repeats.answered("too large", b"x" * 11, 11, 0.0)
    assert repeats.begin("too large", 0.0).kind == "new"
    assert repeats.begin("large", 4.9).kind == "answered"
    assert repeats.begin("large", 5.0).kind == "new"
    assert repeats.bytes == 0


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["begin", "answered", "forget"]), st.integers(0, 6)))
)
def test_the_window_never_passes_its_bounds(steps):
    repeats, answered = Repeats[int](answers_max=2, bytes_max=8, keep_s=3.0), deque[str]()
    for at, (name, step, size) in enumerate(steps):
        if step == "begin":
            known = repeats.begin(name, float(at))
            assert known.kind != "answered" or name in answered
        elif step == "answered":
            repeats.answered(name, at, size, float(at))
            answered.append(name)
        else:
            repeats.forget(name)
        assert repeats.bytes <= 8
    assert len(repeats) <= 2 + 6
