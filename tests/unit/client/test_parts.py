"""A table in parts: each fits in one call, and under a producer's name they are no more than the broker remembers."""

from __future__ import annotations

import pyarrow as pa
import pytest

import wherry
from wherry.client import frames
from wherry.model.limits import PRODUCER_CALLS_MAX


def table(*sizes: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"payload": [b"x" * size for size in sizes]})


def rows(parts: list[pa.RecordBatch]) -> list[int]:
    return [part.num_rows for part in parts]


def test_a_part_is_bounded_in_messages_and_in_bytes_however_uneven_they_are():
    assert rows(frames.parts_of(table(*[1] * 10), 4, 1_000)) == [4, 4, 2]
    assert rows(frames.parts_of(table(1, 1, 60, 60, 1, 200, 1), 4, 100)) == [3, 2, 1, 1]
    assert rows(frames.parts_of([b"", b""], 4, 1)) == [2]


def test_parts_grow_until_they_are_few_enough():
    even = table(*[1] * 1_000)
    assert len(frames.parts_of(even, 1, 1_000)) == 1_000
    few = frames.parts_of(even, 1, 1_000, PRODUCER_CALLS_MAX)
    assert len(few) == 63
    assert pa.Table.from_batches(few).column("payload").to_pylist() == even.column("payload").to_pylist()


def test_what_is_too_large_for_so_many_parts_is_refused(monkeypatch):
    monkeypatch.setattr(frames, "PART_BYTES_MAX", 20)
    with pytest.raises(wherry.InvalidInput, match="65 calls"):
        frames.parts_of(table(*[20] * 65), 1, 10, PRODUCER_CALLS_MAX)
    assert len(frames.parts_of(table(*[20] * 64), 1, 10, PRODUCER_CALLS_MAX)) == 64


def test_a_table_may_be_longer_than_one_call():
    long = pa.table({"payload": pa.nulls(1_000_001, pa.binary()).fill_null(b"")})
    assert rows(frames.parts_of(long, 1_000_000, 1_000)) == [1_000_000, 1]
    assert rows(frames.parts_of([b""] * 1_000_001, 600_000, 1_000)) == [600_000, 400_000, 1]


@pytest.mark.rows("A22")
def test_a_named_table_of_many_parts_is_stored_once_however_often_it_is_sent(wherry_broker):
    wherry_broker.create_topic("jobs")
    first = wherry_broker.publish_batch("jobs", [b"x"] * 200, batch_messages=1, producer="load")
    again = wherry_broker.publish_batch("jobs", [b"x"] * 200, batch_messages=1, producer="load")
    assert (first.repeated, again.repeated) == (False, True)
    assert again.ids() == first.ids()
    assert wherry_broker.stats("jobs").messages == 200
    with pytest.raises(wherry.InvalidInput, match="batch_messages"):
        wherry_broker.publish_batch("jobs", [b"x"], batch_messages=0)
