"""A few messages read one by one are those that are taken as columns."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from wherry.journal.bodies import merged
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.store import BodyStore
from wherry.model.row_batch import RowBatch, of_columns, of_payloads
from wherry.model.schema import Message, compact, completed

COUNT = 12


def made(kind: str, base: int) -> pa.RecordBatch | RowBatch:
    payloads = [b"%d" % offset * (offset % 4) for offset in range(base, base + COUNT)]
    if kind == "rows":
        return of_payloads(payloads)
    if kind == "keyed rows":
        return of_columns({"payload": payloads, "key": [f"k{base}"] * COUNT, "due": [base + 1] * COUNT})
    if kind == "plain":
        return compact([Message(payload=payload) for payload in payloads])
    if kind == "timed":
        return compact(
            [Message(payload=payload, due_ms=5_000 + base, priority=at) for at, payload in enumerate(payloads)]
        )
    return compact(
        [
            Message(
                payload=payload,
                key=None if at % 3 else f"key {base}",
                headers={} if at % 2 else {"h": "x" * at, "": "€"},
                priority=at,
                due_ms=None if at % 4 else base,
                expires_ms=None if at % 5 else 9_000 + base,
                envelope=None if at % 2 else b"e" * at,
            )
            for at, payload in enumerate(payloads)
        ]
    )


KINDS = ("rows", "plain", "keyed rows", "timed", "full") * 5


@pytest.mark.parametrize("together", [False, True])
def test_a_few_messages_are_those_that_are_taken_as_columns(together: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(merged, "LEAST", 2 if together else 1_000)
    store, chance = BodyStore(None), random.Random(3)
    for number, kind in enumerate(KINDS):
        base = number * COUNT
        store.put(CachedBatch(1, 0, base, made(kind, base), 1_000 + number, base + 1, 0, base + 1))
    for _ in range(20):
        offsets = chance.sample(range(len(KINDS) * COUNT), 9)
        found = store.few(1, 0, offsets)
        assert found is not None
        array = np.array(offsets)
        batch, gate = store.deliver(1, 0, array, 3)
        assert max(each.gate for each in found) == gate
        assert [each.size() for each in found] == store.sizes(1, 0, array).tolist() == store.few_sizes(1, 0, offsets)
        rows = [each.row(offset, 0, 3) for each, offset in zip(found, offsets, strict=True)]
        for row, expected in zip(rows, completed(batch).to_pylist(), strict=True):
            assert (row.offset, row.partition, row.attempt) == (expected["offset"], 0, 3)
            assert (row.payload, row.key, row.priority, row.envelope) == (
                expected["payload"],
                expected["key"],
                expected["priority"],
                expected["envelope"],
            )
            assert (row.headers or None) == (expected["headers"] or None)
            times = [None if expected[name] is None else expected[name].timestamp() for name in ("due", "expires")]
            assert [None if each is None else each / 1000 for each in (row.due, row.expires)] == times
            assert row.published_us == round(expected["published"].timestamp() * 1e6)


def test_a_message_with_an_id_is_taken_as_columns():
    store = BodyStore(None)
    store.put(CachedBatch(1, 0, 0, compact([Message(payload=b"a", id="x")]), 1, 1, 0, 1))
    assert store.few(1, 0, [0]) is None
    assert store.few_sizes(1, 0, [0]) is None


def test_messages_that_are_not_in_memory_are_taken_as_columns():
    store = BodyStore(None)
    assert store.few(1, 0, [0]) is None
    store.put(CachedBatch(1, 0, 4, of_payloads([b"a"]), 1, 1, 0, 1))
    assert store.few(1, 0, [4, 5]) is None
    assert store.few(1, 0, [3]) is None
    assert store.few(1, 0, [4]) is not None
