"""What may run and what waits: never more than allowed, in the order of arrival, by a model that is obviously right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.service.providing.throttle import Admission, MethodRoom, Throttle


def test_above_the_limit_calls_wait_in_order_and_above_that_they_are_full():
    throttle, room = Throttle[str](10), MethodRoom[str](2, 2)
    assert [throttle.enter(room, call) for call in "abcde"] == [Admission.RUN] * 2 + [Admission.WAIT] * 2 + [
        Admission.FULL
    ]
    throttle.leave(room)
    assert [call for _, call in throttle.next_calls([room])] == ["c"]
    throttle.leave(room)
    throttle.leave(room)
    assert [call for _, call in throttle.next_calls([room])] == ["d"]
    assert (room.running, room.running_most, throttle.running, throttle.waiting) == (1, 2, 1, 0)


def test_a_call_that_waits_can_be_dropped_and_leaves_its_place_to_the_next():
    throttle, room = Throttle[str](10), MethodRoom[str](1, 2)
    for call in "abc":
        throttle.enter(room, call)
    throttle.forget(room, "b")
    throttle.forget(room, "b")
    assert throttle.enter(room, "d") is Admission.WAIT
    throttle.leave(room)
    assert [call for _, call in throttle.next_calls([room])] == ["c"]


def test_a_call_does_not_pass_those_of_its_method_that_wait():
    throttle, room = Throttle[str](10), MethodRoom[str](1, 2)
    throttle.enter(room, "a")
    throttle.enter(room, "b")
    throttle.leave(room)  # and nothing was started yet
    assert throttle.enter(room, "c") is Admission.WAIT
    assert [call for _, call in throttle.next_calls([room])] == ["b"]


def test_methods_share_the_room_of_the_instance_in_the_order_of_arrival():
    throttle = Throttle[str](1)
    one, other = MethodRoom[str](5, 5), MethodRoom[str](5, 5)
    throttle.enter(one, "a")
    for room, call in ((other, "b"), (one, "c"), (other, "d")):
        assert throttle.enter(room, call) is Admission.WAIT
    ran = []
    for room in (one, other, one):
        throttle.leave(room)
        ran += [call for _, call in throttle.next_calls([one, other])]
    assert ran == ["b", "c", "d"]


STEPS = st.lists(st.tuples(st.sampled_from(["enter", "leave", "drop", "narrow"]), st.integers(0, 2)), max_size=80)


@pytest.mark.rows("P19")
@given(steps=STEPS, most=st.integers(1, 4), each=st.integers(1, 3), waiting=st.integers(0, 3))
def test_no_order_of_calls_exceeds_a_limit(steps, most, each, waiting):
    throttle = Throttle[int](most)
    rooms = [MethodRoom[int](each, waiting) for _ in range(3)]
    running: list[list[int]] = [[] for _ in rooms]
    started: list[list[int]] = [[] for _ in rooms]

    def start() -> None:
        for room, call in throttle.next_calls(rooms):
            running[rooms.index(room)].append(call)
            started[rooms.index(room)].append(call)

    for number, (step, at) in enumerate(steps):
        room = rooms[at]
        before = len(running[at])
        if step == "enter":
            entry = throttle.enter(room, number)
            if entry is Admission.RUN:
                running[at].append(number)
                started[at].append(number)
            elif entry is Admission.FULL:
                assert len(room.waiting) >= room.max_waiting
                assert before >= room.max_concurrent or throttle.running >= throttle.max_concurrent or room.waiting
        elif step == "leave" and running[at]:
            running[at].pop(0)
            throttle.leave(room)
            start()
        elif step == "drop" and room.waiting:
            throttle.forget(room, next(iter(room.waiting)))
        elif step == "narrow":
            room.max_concurrent = max(1, room.max_concurrent - 1)
        assert [len(some) for some in running] == [some.running for some in rooms]
        assert sum(map(len, running)) == throttle.running <= throttle.max_concurrent
        assert throttle.waiting == sum(len(some.waiting) for some in rooms)
        if step == "enter" and len(running[at]) > before:
            assert len(running[at]) <= room.max_concurrent
        assert all(some == sorted(some) for some in started)
