"""Producers that made one call take little, and are dumped and loaded as any other."""

from __future__ import annotations

import tracemalloc

from wherry.core.state.producers import ProducerCall, Producers
from wherry.model.limits import PRODUCER_CALLS_MAX


def test_a_producer_of_one_call_takes_less_than_half_a_kilobyte() -> None:
    producers = Producers()
    tracemalloc.start()
    for number in range(10_000):
        producers.note(f"0f8fad5b-d9cb-469f-a165-{number:012d}", ProducerCall(0, 1, [0, number, 1]))
    took, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took / 10_000 < 512


def test_calls_are_dumped_and_loaded_however_many_there_are() -> None:
    producers = Producers()
    calls = [ProducerCall(number, 1, [0, number, 1]) for number in range(PRODUCER_CALLS_MAX + 5)]
    producers.note("once", calls[0])
    for call in calls:
        producers.note("often", call)
    rows = producers.dump()
    assert rows == [("once", calls[:1]), ("often", calls[5:])]
    again = Producers()
    again.load(rows)
    assert again.dump() == rows
    assert again.repeated("once", 0, 1) == calls[0]
    assert again.repeated("once", 1, 1) is None
