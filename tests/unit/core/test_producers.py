"""Producers that made one call take little, and are dumped and loaded as any other; what is remembered of origins."""

from __future__ import annotations

import tracemalloc

import pytest

from wherry.core.state import producers as module
from wherry.core.state.producers import RUNS_MAX, ProducerCall, Producers
from wherry.model.calls.origin import OriginPlace
from wherry.model.limits import FLOW_PARTITIONS_MAX, PRODUCER_CALLS_MAX


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


def come(producers: Producers, node: str, run: int, partition: int = 0, end: int = 1) -> None:
    producers.note(OriginPlace(node, f"r{run}", partition).producer, ProducerCall(end - 1, 1, []))


def known(producers: Producers, node: str, runs: int) -> list[tuple[int, int]]:
    """Return the runs and partitions of a node that are remembered."""
    places = [(run, partition) for run in range(runs) for partition in range(FLOW_PARTITIONS_MAX)]
    return [each for each in places if producers.next_of(OriginPlace(node, f"r{each[0]}", each[1]).producer)]


@pytest.mark.rows("Q21")
def test_a_node_that_begins_anew_all_the_time_pushes_out_its_own_past_alone() -> None:
    producers = Producers()
    for partition in range(FLOW_PARTITIONS_MAX):
        come(producers, "quiet", 0, partition)
    come(producers, "quiet:er", 0)
    producers.note("mesh:odd", ProducerCall(0, 1, []))  # a client could once name its producer so
    for run in range(10 * RUNS_MAX):
        for partition in (0, 7):
            come(producers, "loud", run, partition)
        come(producers, "loud", 0)  # still comes, so it stays
    last = [0, *range(9 * RUNS_MAX + 1, 10 * RUNS_MAX)]
    expected = [(run, partition) for run in last for partition in (0, 7) if (run, partition) != (0, 7)]
    again = Producers()
    again.load(producers.dump())
    for each in (producers, again):
        assert [place for place in known(each, "loud", 10 * RUNS_MAX) if place != (0, 7)] == expected
        assert len(known(each, "quiet", 1)) == FLOW_PARTITIONS_MAX
        assert len(known(each, "quiet:er", 1)) == 1
        come(each, "loud", 10 * RUNS_MAX)
    assert producers.dump() == again.dump()
    assert sum(len(calls) for _, calls in producers.dump()) <= (RUNS_MAX + 2) * FLOW_PARTITIONS_MAX


@pytest.mark.rows("Q21")
def test_beyond_all_origins_the_one_that_was_silent_the_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ORIGINS_MAX", 4)
    producers = Producers()
    for node in "abcd":
        come(producers, node, 0)
    come(producers, "a", 0, end=7)
    for partition in range(2):
        come(producers, "e", 0, partition)
    assert [len(known(producers, node, 1)) for node in "abcde"] == [1, 0, 0, 1, 2]
    assert producers.next_of(OriginPlace("a", "r0", 0).producer) == 7
