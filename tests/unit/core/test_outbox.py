"""The queues of the outbox: in order for each URL, and at the cost of what is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest

from wherry.core.index.table import OffsetTable
from wherry.core.state import outbox
from wherry.core.state.outbox import OUTCOMES, SLACK, Outbox
from wherry.model.calls.fate import DEAD, SETTLED

NONE = np.empty(0, np.int64)


def ended(box: Outbox, places: range, url: str, at_ms: int = 1) -> None:
    """Watch messages and bring them to their end."""
    at = np.array(places, np.int64)
    box.watch(at, url)
    box.conclude(at, np.full(len(at), SETTLED), np.zeros(len(at), np.bool_), at_ms)


def unreported(box: Outbox, limit: int = 1_000_000, hidden: Any = NONE, without: Any = ()) -> list[int]:
    return [each.offset for each in box.unreported("t", limit, np.array(hidden, np.int64), without)]


def reported(box: Outbox, places: range, fate: int = SETTLED) -> None:
    at = np.array(places, np.int64)
    box.reported(at, np.full(len(at), fate))


@contextmanager
def asked() -> Iterator[list[int]]:
    """Record how many places the tables are asked for, call by call."""
    counts: list[int] = []

    def counted(real: Any) -> Any:
        def ask(table: OffsetTable, offsets: Any, *more: Any) -> Any:
            counts.append(len(offsets))
            return real(table, offsets, *more)

        return ask

    with (
        mock.patch.object(OffsetTable, "has", counted(OffsetTable.has)),
        mock.patch.object(OffsetTable, "get", counted(OffsetTable.get)),
        mock.patch.object(OffsetTable, "unordered", side_effect=AssertionError("the whole table")),
        mock.patch.object(OffsetTable, "columns", side_effect=AssertionError("the whole table")),
    ):
        yield counts


def test_many_outcomes_cost_nothing_where_a_few_are_asked_for():
    box = Outbox()
    ended(box, range(900_000), "http://many")
    ended(box, range(900_000, 900_003), "http://few", 2)
    with asked() as counts:
        assert unreported(box, 10) == list(range(10))
        assert unreported(box, 10, without=["http://many"]) == [900_000, 900_001, 900_002]
        assert unreported(box, 10, without=["http://many", "http://few", "http://unknown"]) == []
        assert unreported(box, 10, hidden=range(10)) == list(range(10, 20))
    assert sum(counts) < 10 * (10 + SLACK)


def test_a_reported_outcome_is_looked_at_once():
    box = Outbox()
    ended(box, range(10_000), "http://x")
    reported(box, range(4_000))
    assert unreported(box, 5) == list(range(4_000, 4_005))
    with asked() as counts:
        assert unreported(box, 5) == list(range(4_000, 4_005))
    assert sum(counts) < 5 * (5 + SLACK)


def test_the_callback_that_has_waited_longest_is_first_with_its_outcomes_in_order():
    box = Outbox()
    ended(box, range(5, 8), "http://b", 2)
    ended(box, range(3), "http://a", 1)
    ended(box, range(8, 9), "http://a", 3)
    assert unreported(box) == [0, 1, 2, 8, 5, 6, 7]
    assert unreported(box, 5) == [0, 1, 2, 8, 5]
    reported(box, range(3))
    assert unreported(box) == [5, 6, 7, 8]


def test_another_outcome_of_a_place_is_reported_once():
    box = Outbox()
    at = np.array([0], np.int64)
    ended(box, range(1, 3), "http://x")
    box.watch(at, "http://x")
    box.conclude(at, np.array([DEAD]), np.ones(1, np.bool_), 1)
    reported(box, range(1), DEAD)
    assert unreported(box) == [1, 2]
    box.conclude(at, np.array([SETTLED]), np.zeros(1, np.bool_), 2)
    assert [(each.offset, each.fate) for each in box.unreported("t", 9, NONE, ())] == [
        *((1, "settled"), (2, "settled"), (0, "settled"))
    ]
    reported(box, range(3))
    assert (unreported(box), box.urls) == ([], {})


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 50))])
def test_the_queues_are_what_the_outcomes_are(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outbox, "OUTCOMES_MAX", 400)
    monkeypatch.setattr(outbox, "SLACK", 4)
    random, box, place = np.random.default_rng(seed), Outbox(), 0
    for at_ms in range(200):
        count = int(random.integers(1, 12))
        ended(box, range(place, place + count), f"http://{random.integers(4)}", at_ms)
        place += count
        if random.random() < 0.7:
            some = random.choice(place, min(place, 10), replace=False).astype(np.int64)
            box.reported(some, np.full(len(some), SETTLED))
        if random.random() < 0.05:
            loaded = Outbox()
            loaded.load(box.urls, box.watched.columns().copy(), box.outcomes.columns().copy())
            assert sorted(unreported(loaded)) == sorted(unreported(box))
            box = loaded
        rows = box.outcomes.columns()
        assert sorted(unreported(box)) == rows[0].tolist()
        for number, url in box.urls.items():
            others = [each for each in box.urls.values() if each != url]
            mine = rows[0, rows[1 + OUTCOMES.index("url")] == number]
            assert unreported(box, without=others) == mine.tolist()
        assert sum(len(queue._packed) for queue in box._queues.values()) <= 2 * rows.shape[1] + 4 * outbox.SLACK
