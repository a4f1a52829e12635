"""`OffsetTable` against a dict of rows, and `Directory` against a list of batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import scaled
from wherry.core.index import directory, table
from wherry.core.index.directory import Directory
from wherry.core.index.table import OffsetTable

keys = st.lists(st.integers(0, 60), max_size=12, unique=True)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(table, "RECENT_MAX", 5)
    monkeypatch.setattr(directory, "PART_ROWS", 6)
    monkeypatch.setattr(directory, "OPEN_MIN", 2)


def column(values):
    return np.array(list(values), np.int64)


class Tables(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.real = OffsetTable(("a", "b"))
        self.naive: dict[int, tuple[int, int]] = {}
        self.checkpoints: list[tuple[np.ndarray, np.ndarray]] = []

    @rule(offsets=keys, seed=st.integers(0, 1000))
    def put(self, offsets, seed):
        self.real.put(column(offsets), a=column(offset + seed for offset in offsets), b=seed)
        self.naive |= {offset: (offset + seed, seed) for offset in offsets}

    @rule(offsets=keys)
    def remove(self, offsets):
        self.real.remove(column(offsets))
        for offset in offsets:
            self.naive.pop(offset, None)

    @rule(offsets=keys)
    def get(self, offsets):
        assert self.real.has(column(offsets)).tolist() == [offset in self.naive for offset in offsets]
        default = column(-offset for offset in offsets)
        for name, index in (("a", 0), ("b", 1)):
            expected = [self.naive[offset][index] if offset in self.naive else -offset for offset in offsets]
            assert self.real.get(column(offsets), name, default).tolist() == expected

    @rule()
    def checkpoint(self):
        """Take a checkpoint, which must stay as it was, whatever happens to the table while it is being written."""
        taken = self.real.columns()
        self.checkpoints.append((taken, taken.copy()))

    @rule()
    def reload(self):
        again = OffsetTable(("a", "b"))
        again.load(self.real.columns())
        self.real = again

    @invariant()
    def whole(self):
        for taken, expected in self.checkpoints:
            assert taken.tolist() == expected.tolist()
        assert len(self.real) == len(self.naive)
        assert self.real.offsets().tolist() == sorted(self.naive)
        rows = [[offset, *self.naive[offset]] for offset in sorted(self.naive)]
        assert self.real.columns().T.tolist() == rows


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=scaled(150), stateful_step_count=25)


def test_a_removal_moves_no_other_rows_until_half_are_gone():
    real = OffsetTable(("a",))
    real.put(np.arange(100), a=np.arange(100))
    rows = real.columns()
    for offset in range(0, 100, 2):
        real.remove(column([offset]))
        assert real._main.all is rows
    assert real.columns().tolist() == [list(range(1, 100, 2))] * 2
    real.remove(column([51, 52]))
    assert real._main.all.shape == (2, 49)


class Batch:
    def __init__(self, base: int, count: int, size: int, at: int) -> None:
        self.base, self.count, self.size, self.at = base, count, size, at
        self.live, self.waiting = set(range(base, base + count)), set(range(base, base + count))

    def bytes_if(self, waiting: int) -> int:
        return self.size * waiting // self.count


class Directories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.real = Directory()
        self.batches: list[Batch] = []
        self.next_offset = 0
        self.at = 0
        self.checkpoints: list[tuple[list[bytes | memoryview], bytes]] = []

    @rule(gap=st.sampled_from([0, 0, 0, 5]), count=st.integers(1, 6), size=st.integers(0, 99), later=st.integers(0, 3))
    def append(self, gap, count, size, later):
        self.next_offset += gap
        self.at += later
        self.real.append(self.next_offset, count, size, self.at)
        self.batches.append(Batch(self.next_offset, count, size, self.at))
        self.next_offset += count

    @rule(count=st.integers(1, 20), size=st.integers(0, 1 << 33), later=st.sampled_from([0, 300, 1 << 40]))
    def extend(self, count, size, later):
        """Extend as recovery does: single messages, the last of them much larger and later."""
        base = np.arange(self.next_offset, self.next_offset + count)
        sizes, times = np.arange(count), np.full(count, self.at)
        sizes[-1], times[-1] = size, self.at + later
        self.real.extend(base, np.ones_like(base), sizes, times)
        for row in zip(base.tolist(), sizes.tolist(), times.tolist(), strict=True):
            self.batches.append(Batch(row[0], 1, row[1], row[2]))
        self.at += later
        self.next_offset += count

    def draw(self, data, kind):
        held = sorted(offset for batch in self.batches for offset in getattr(batch, kind))
        return sorted(data.draw(st.lists(st.sampled_from(held), max_size=12, unique=True))) if held else []

    @rule(data=st.data())
    def finish(self, data):
        going = self.draw(data, "waiting")
        before = self.waiting_bytes()
        assert self.real.bytes_of(column(going)) == (freed := self.move(going, "waiting"))
        assert self.real.finish(column(going)) == freed == before - self.waiting_bytes()

    def move(self, going, kind):
        before = self.waiting_bytes()
        for batch in self.batches:
            getattr(batch, kind).difference_update(going)
        return before - self.waiting_bytes()

    def waiting_bytes(self):
        return sum(batch.bytes_if(len(batch.waiting)) for batch in self.batches)

    @rule(data=st.data())
    def unfinish(self, data):
        finished = [o for b in self.batches for o in b.live - b.waiting]
        back = sorted(data.draw(st.lists(st.sampled_from(finished), max_size=9, unique=True))) if finished else []
        before = self.waiting_bytes()
        share = self.real.share_of(column(back))
        taken = self.real.unfinish(column(back))
        for batch in self.batches:
            batch.waiting |= batch.live & set(back)
        assert taken == self.waiting_bytes() - before <= share

    @rule(data=st.data())
    def release(self, data):
        """Release messages, each of which is finished before."""
        going = self.draw(data, "live")
        self.real.finish(column(offset for offset in going if any(offset in b.waiting for b in self.batches)))
        self.move(going, "waiting")
        emptied = self.real.release(column(going))
        expected = []
        for batch in self.batches:
            hit = batch.live & set(going)
            batch.live -= hit
            if hit and not batch.live:
                expected.append((batch.base, batch.base + batch.count))
        assert emptied == expected
        self.batches = [batch for batch in self.batches if batch.live]
        assert len(self.real) <= 2 * len(self.batches)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def end_run(self, data):
        """End a run of consecutive messages, all of them waiting, as an ack in order names them."""
        held = [offset for batch in self.batches for offset in sorted(batch.waiting)]
        if not held:
            return
        first = data.draw(st.sampled_from(held))
        stop = first + 1
        while stop in held and stop < first + 30:
            stop += 1
        stop = data.draw(st.integers(first + 1, stop))
        going = range(first, stop)
        emptied = [(b.base, b.base + b.count) for b in self.batches if b.live and b.live <= set(going)]
        freed = self.move(going, "waiting")
        assert self.real.end_run(first, stop) == (freed, emptied)
        for batch in self.batches:
            batch.live.difference_update(going)
        self.batches = [batch for batch in self.batches if batch.live]

    @precondition(lambda self: self.batches)
    @rule(offset=st.integers(0, 120), at=st.integers(0, 40))
    def look(self, offset, at):
        here = [o for b in self.batches for o in sorted(b.live)]
        stamps = [b.at for b in self.batches for _ in b.live]
        assert self.real.published_of(column(here)).tolist() == stamps
        after = [b.at for b in self.batches if b.base + b.count > offset]
        assert self.real.published_at_us(offset) == (after[0] if after else None)
        since = [b.base for b in self.batches if b.at >= at]
        assert self.real.first_published_from(at) == (since[0] if since else None)
        waiting = [(b.at, b.base, b.count) for b in self.batches if b.base >= offset and b.waiting]
        assert self.real.next_waiting(offset) == (waiting[0] if waiting else None)
        assert self.real.oldest_us() == min(b.at for b in self.batches)
        inside = [b.base for b in self.batches if b.base < offset + at and b.base + b.count > offset]
        assert self.real.between(offset, offset + at)[0].tolist() == inside

    @rule()
    def reload_from_an_earlier_version(self):
        """Load a checkpoint that has rows of batches that are gone, as an earlier version wrote them."""
        rows = np.insert(self.real.columns(), 0, column([0, 3, 0, 0, 9, 0]), axis=1)
        self.real.load(rows)

    @rule()
    def checkpoint(self):
        """Take a checkpoint, which must stay as it was, whatever happens to the directory while it is being written."""
        taken = self.real.bytes_pieces()
        self.checkpoints.append((taken, b"".join(taken)))

    @rule()
    def reload(self):
        again = Directory()
        again.load_bytes(b"".join(self.real.bytes_pieces()))
        self.real = again

    @invariant()
    def whole(self):
        for taken, expected in self.checkpoints:
            assert b"".join(taken) == expected
        rows = [[b.base, b.count, len(b.live), len(b.waiting), b.size, b.at] for b in self.batches]
        assert self.real.columns().T.tolist() == rows
        assert self.real.live_messages() == sum(len(b.live) for b in self.batches)
        parts = self.real._parts
        assert all(0 < len(part) <= directory.PART_ROWS for part in parts[:-1])


TestDirectories = Directories.TestCase
TestDirectories.settings = settings(max_examples=scaled(150), stateful_step_count=25)
