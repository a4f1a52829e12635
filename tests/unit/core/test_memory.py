"""Settled messages leave memory, also behind one old message that no consumer takes; a restart gives the same state."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tests.unit.core.desk import Desk
from wherry.core.decide import upkeep
from wherry.core.index import directory, ids, runs
from wherry.core.index.directory import Directory
from wherry.core.state import partition
from wherry.core.state.partition import Partition
from wherry.model.schema import Message


def housekeeping(desk: Desk) -> None:
    for entry in upkeep.housekeeping(desk.shell.state, desk.now.wall_us):
        desk.commit([entry])


@pytest.mark.parametrize("by", ["replay", "checkpoint"])
def test_one_old_message_does_not_keep_the_rows_behind_it(by):
    desk = Desk()
    desk.subscribe()
    desk.publish("old")
    desk.pull()
    for each in range(60):
        desk.publish("a", "b")
        [lease] = desk.pull()
        if each % 10:
            desk.ack(lease)
    rows = desk.topic.partitions[0].directory
    assert len(rows) <= 2 * (1 + 6), "the old one, and six that were taken and not settled"
    desk.recover(by)
    assert desk.topic.partitions[0].directory.columns().tolist() == rows.columns().tolist()
    assert len(desk.offsets()) == 1 + 6 * 2


@pytest.mark.parametrize("by", ["replay", "checkpoint"])
def test_bytes_of_what_was_cancelled_do_not_count_when_a_stream_is_trimmed(by):
    """Cancel a batch between others: its bytes counted as long as its row was there."""
    desk = Desk(keep="bytes", keep_bytes=3 * 11)
    for text in "abcd":
        desk.publish(Message(payload=b"x" * 10, id=text))
    desk.cancel("b")
    housekeeping(desk)
    assert desk.topic.messages == 3
    desk.recover(by)
    housekeeping(desk)
    assert desk.topic.messages == 3


@pytest.fixture
def traced():
    yield tracemalloc
    tracemalloc.stop()


def filled(by: str, count: int) -> Directory:
    rows = Directory()
    base = np.arange(count, dtype=np.int64)
    size, at_us = base % 300, 1_700_000_000_000_000 + base * 10_000_000  # one in ten seconds
    if by == "publish":
        for row in zip(base.tolist(), size.tolist(), at_us.tolist(), strict=True):
            rows.append(row[0], 1, row[1], row[2])
        return rows
    for at in range(0, count, 4_096):
        some = slice(at, at + 4_096)
        rows.extend(base[some], np.ones_like(base[some]), size[some], at_us[some])
    if by == "replay":
        return rows
    again = Directory()
    if by == "older checkpoint":
        again.load(rows.columns())
    else:
        again.load_bytes(b"".join(rows.bytes_pieces()))
    return again


@pytest.mark.parametrize("by", ["publish", "replay", "checkpoint", "older checkpoint"])
def test_a_message_that_was_published_alone_takes_at_most_24_bytes_of_index(by, traced):
    """Try each way to publish, while other messages leave; a checkpoint takes a few bytes more while it is written."""
    few, many = 5_000, 15_000
    traced.start()
    rows = filled(by, few)
    before = traced.get_traced_memory()[0]
    more = filled(by, many)
    assert (traced.get_traced_memory()[0] - before) / many <= 20
    for first in range(0, many, 4):  # every fourth message stays
        more.end_run(first, first + 3)
    left = len(more.columns()[0])
    assert left == many // 4
    assert (traced.get_traced_memory()[0] - before) / left <= 2 * 20
    now = traced.get_traced_memory()[0]
    taken = rows.bytes_pieces()
    assert (traced.get_traced_memory()[0] - now) / few <= 8
    assert sum(memoryview(piece).nbytes for piece in taken) / few <= 20


def test_parts_that_are_nearly_empty_are_joined():
    count = 20 * directory.PART_ROWS
    rows = filled("publish", count)
    for first in range(0, count, 100):
        rows.end_run(first, min(first + 99, count))
    assert rows.columns()[0].tolist() == list(range(99, count, 100))
    assert len(rows._parts) <= 2


def test_times_of_settled_messages_leave_before_they_come(monkeypatch):
    monkeypatch.setattr(runs, "TAIL_MAX", 8)
    monkeypatch.setattr(partition, "TAIL_MAX", 8)
    one = Partition(0)
    for base in range(0, 400, 4):
        one.append(base, 4, 4, 0)
        one.expiry.insert(np.arange(base, base + 4) % 7, np.arange(base, base + 4))
    going = np.array([offset for offset in range(400) if offset % 9])
    for part in np.split(going, range(10, len(going), 10)):
        one.finish(part)
        assert len(one.expiry) <= 2 * (400 - len(one.finished)) + 8
    left = one.expiry.columns().offset
    assert set(range(0, 400, 9)) <= set(left.tolist())
    assert one.expiry.peek(1).offset.tolist() == [0]


def test_what_was_settled_and_swept_never_expires_and_the_rest_does(monkeypatch):
    monkeypatch.setattr(runs, "TAIL_MAX", 8)
    monkeypatch.setattr(partition, "TAIL_MAX", 8)
    desk = Desk()
    desk.subscribe()
    for _ in range(20):
        desk.publish(*[Message(payload=b"", expires_ms=desk.ms + 1_000)] * 3)
    [lease] = desk.pull(n=55)
    desk.ack(lease)
    assert len(desk.topic.partitions[0].expiry) <= 2 * 5 + 8
    desk.upkeep(1_000)
    assert desk.offsets() == []
    assert desk.topic.counters["expired"] == 5


def test_ids_of_settled_messages_are_weeded_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr(ids, "RUN_MAX", 16)
    monkeypatch.setattr(upkeep, "IDS_SLACK", 10)
    desk = Desk()
    desk.subscribe()
    for each in range(40):
        desk.publish(*(Message(payload=b"", id=f"{each}/{row}") for row in range(5)))
    [lease] = desk.pull(n=190)
    desk.ack(lease)
    before = len(desk.topic.ids)
    for _ in range(40):
        housekeeping(desk)
        assert before - len(desk.topic.ids) <= 2 * 16
        before = len(desk.topic.ids)
    assert 10 <= before <= 2 * 10 + 10
    desk.cancel("39/4", "38/0")
    desk.publish(Message(payload=b"", id="0/0"), Message(payload=b"", id="39/4"))


def test_very_many_expire_at_once_and_the_others_at_their_time(monkeypatch):
    """Check that the entry which removes messages sweeps the index that held them."""
    monkeypatch.setattr(runs, "TAIL_MAX", 8)
    monkeypatch.setattr(partition, "TAIL_MAX", 8)
    desk = Desk()
    desk.subscribe()
    soon, later = desk.ms + 100, desk.ms + 200
    desk.publish(*(Message(payload=b"x", expires_ms=soon) for _ in range(70)))
    desk.publish(*(Message(payload=b"y", expires_ms=later) for _ in range(5)))
    desk.upkeep(150)
    assert desk.topic.messages == 5
    assert len(desk.topic.partitions[0].expiry) == 5
    desk.upkeep(100)
    assert desk.topic.messages == 0
    assert len(desk.topic.partitions[0].expiry) == 0
