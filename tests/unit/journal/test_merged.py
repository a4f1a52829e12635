"""Batches in memory that a pull in the order of priorities merges: the same messages, and no memory kept for long."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from wherry.journal.bodies import merged
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.store import BodyStore
from wherry.model.row_batch import RowBatch, of_columns, of_payloads
from wherry.model.schema import Message, compact, content_sizes, content_sizes_at

KINDS = ("plain", "ranked", "full", "rows", "keyed rows")


def made(kind: str, base: int, count: int) -> pa.RecordBatch | RowBatch:
    payloads = [b"%d" % offset * (offset % 5) for offset in range(base, base + count)]
    if kind == "rows":
        return of_payloads(payloads)
    if kind == "keyed rows":
        return of_columns({"payload": payloads, "key": [None if n % 2 else f"k{n}" for n in range(count)]})
    headers = {"a": "1", "long name": "x" * base} if kind == "full" else {}
    return compact(
        [
            Message(payload=payload, priority=7 if kind != "plain" else 32_768, headers=headers if at % 2 else {})
            for at, payload in enumerate(payloads)
        ]
    )


def stored(store: BodyStore, kinds: list[str], size: int) -> list[CachedBatch]:
    batches = []
    for number, kind in enumerate(kinds):
        base = number * size
        batches.append(CachedBatch(1, 0, base, made(kind, base, size), 100 + number, base + 1, 0, base + 1))
        store.put(batches[-1])
    return batches


@pytest.mark.parametrize("kinds", [["plain"] * 40, ["rows"] * 40, list(KINDS) * 17])
def test_what_is_delivered_is_the_same_before_and_after_batches_are_merged(kinds: list[str]):
    apart, together = BodyStore(None), BodyStore(None)
    stored(apart, kinds, 6)
    batches = stored(together, kinds, 6)
    offsets = np.array(random.Random(1).sample(range(len(kinds) * 6), len(kinds) * 3))
    for _ in range(3):  # the first delivery merges the batches, later ones find them merged
        batch, gate = together.deliver(1, 0, offsets, 1)
        one_by_one = [apart.deliver(1, 0, offsets[at : at + 1], 1) for at in range(len(offsets))]
        names = batch.schema.names
        expected = [each for found, _ in one_by_one for each in found.to_pylist()]
        absent = {"key": None, "headers": None, "priority": 32_768}
        assert batch.to_pylist() == [{name: each.get(name, absent.get(name)) for name in names} for each in expected]
        assert gate == max(each for _, each in one_by_one)
        sizes = [int(apart.sizes(1, 0, offsets[at : at + 1])[0]) for at in range(len(offsets))]
        assert together.sizes(1, 0, offsets).tolist() == sizes
    assert len(parts_of(batches)) <= len(set(kinds))
    for each, kind in zip(batches, kinds, strict=True):
        raw = made(kind, each.base, each.count)
        assert each.batch.equals(raw.batch if isinstance(raw, RowBatch) else raw)
        assert each.rows is None


def parts_of(batches: list[CachedBatch]) -> set[int]:
    return {id(each if each.slice is None else each.slice.merged) for each in batches}


def test_few_batches_are_left_as_they_are():
    store = BodyStore(None)
    batches = stored(store, ["plain"] * (merged.LEAST - 1), 4)
    store.deliver(1, 0, np.arange(0, len(batches) * 4, 2), 1)
    assert not any(each.slice for each in batches)


def test_one_pull_merges_no_more_than_its_bound(monkeypatch):
    monkeypatch.setattr(merged, "BYTES_MAX", 20 * 1_500)
    store = BodyStore(None)
    batches = stored(store, ["plain"] * 60, 4)
    store.deliver(1, 0, np.arange(0, 240, 2), 1)
    assert merged.LEAST <= sum(each.slice is not None for each in batches) < 40
    for at in range(6):
        store.deliver(1, 0, np.arange(at % 2, 240, 2), 1)
    assert len(parts_of(batches)) < merged.LEAST


def test_batches_of_so_many_columns_that_nothing_is_merged_are_still_delivered():
    store = BodyStore(None)
    batches: list[CachedBatch] = []
    for number in range(16):
        message = Message(
            payload=b"%d" % number,
            key="k" if number & 1 else None,
            envelope=b"e" if number & 2 else None,
            due_ms=7 if number & 4 else None,
            expires_ms=9 if number & 8 else None,
        )
        batch = compact([message] * 2)
        batches.append(CachedBatch(1, 0, 2 * number, batch, number, number + 1, 0, number + 1))
        store.put(batches[-1])
    found, _ = store.deliver(1, 0, np.arange(30, -1, -2), 1)
    assert found.column("payload").to_pylist() == [b"%d" % number for number in range(15, -1, -1)]
    assert not any(each.slice for each in batches)


@pytest.mark.parametrize("kind", ["plain", "rows"])
def test_a_message_is_copied_a_few_times_however_many_batches_come_after_it(kind: str, monkeypatch: pytest.MonkeyPatch):
    copied, merge = [0], merged.merge

    def counted(batches: list[CachedBatch]) -> None:
        copied[0] += sum(each.count for each in batches)
        merge(batches)

    monkeypatch.setattr(merged, "merge", counted)
    store, chance = BodyStore(None), random.Random(5)
    batches: list[CachedBatch] = []
    for number in range(400):
        batches.append(CachedBatch(1, 0, number * 2, made(kind, number * 2, 2), 1, number + 1, 0, number + 1))
        store.put(batches[-1])
        end = (number + 1) * 2
        offsets = np.array(chance.sample(range(end), min(end, 100)))
        found, _ = store.deliver(1, 0, offsets, 1)
        assert found.column("payload").to_pylist() == [b"%d" % offset * (offset % 5) for offset in offsets.tolist()]
    assert len(parts_of(batches)) <= 3 * merged.LEAST
    assert copied[0] <= 800 * 8


def test_memory_of_dropped_members_is_freed():
    store = BodyStore(None)
    batches = stored(store, ["plain", "rows"] * 20, 5)
    store.deliver(1, 0, np.arange(0, 200, 3), 1)
    for number in random.Random(2).sample(range(40), 39):
        store.drop(1, 0, [batches[number].base])
        left = [each for each in batches if not each.dropped]
        held = {id(each.slice.merged): each.slice.merged.total for each in left if each.slice is not None}
        assert sum(held.values()) <= 2 * sum(each.count for each in left)
        for each in left:
            found, _ = store.deliver(1, 0, np.arange(each.base, each.base + 5), 1)
            assert found.column("payload").to_pylist() == [
                b"%d" % offset * (offset % 5) for offset in range(each.base, each.base + 5)
            ]


def test_members_stand_one_behind_the_other():
    store = BodyStore(None)
    batches = stored(store, ["plain", "rows", "ranked"] * 20, 3)
    store.deliver(1, 0, np.arange(0, 180, 2), 1)
    parts = sorted((id(each.slice.merged), each.slice.start, each.count) for each in batches if each.slice is not None)
    assert len(parts) == 60
    for before, after in pairwise(parts):
        assert before[0] != after[0] or before[1] + before[2] == after[1]


def test_sizes_of_some_messages_are_those_of_all():
    whole = made("full", 30, 40)
    assert isinstance(whole, pa.RecordBatch)
    batch = whole.slice(3, 30)
    rows = np.array([29, 0, 5, 5, 12])
    assert content_sizes_at(batch, rows).tolist() == content_sizes(batch)[rows].tolist()
    assert content_sizes_at(batch, rows[:0]).tolist() == []
