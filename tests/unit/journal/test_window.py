"""A stretch of a partition, read from memory and disk alike: ascending, even where segments overlap."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest

from wherry.journal.bodies import window as windows
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.segments import segment as segments
from wherry.journal.bodies.segments.segment import Segment
from wherry.journal.bodies.store import BodyStore
from wherry.journal.bodies.window import SegmentGone, Window
from wherry.model.calls.where import Where
from wherry.model.errors import Corrupt
from wherry.model.schema import Message, compact, expand


class Disk:
    """Files in memory, some of them gone."""

    def __init__(self) -> None:
        self._files: dict[str, pa.Buffer] = {}
        self.gone: set[str] = set()

    def segment(self, path: str, offsets: Iterable[int]) -> Segment:
        listed = np.array(list(offsets), np.int64)
        self._files[path], blocks = segments._sealed([expand(compact(_messages(listed.tolist())), listed, 1)])
        return Segment(1, 0, path, self._files[path].size, blocks)

    def read(self, path: str, offset: int, length: int) -> pa.Buffer:
        if path in self.gone:
            raise FileNotFoundError(path)
        return self._files[path].slice(offset, length)


def _messages(offsets: Iterable[int]) -> list[Message]:
    return [Message(payload=b"%d" % offset, key=f"k{offset % 7}") for offset in offsets]


def in_memory(start: int, stop: int) -> CachedBatch:
    return CachedBatch(1, 0, start, compact(_messages(range(start, stop))), 1, position=1, index=0, gate=0)


def blocks_of(*found: Segment) -> list[tuple[Segment, int]]:
    return [(segment, number) for segment in found for number in range(segment.blocks.shape[1])]


def offsets(window: Window, disk: Disk, where: Where | None = None) -> list[int]:
    batches = window.batches(disk.read, ["offset", "payload", "partition"], where or Where())
    rows = [row for batch, _ in batches for row in batch.to_pylist()]
    assert all(row["payload"] == b"%d" % row["offset"] for row in rows)
    return [row["offset"] for row in rows]


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BLOCK_ROWS_MAX", 10)
    monkeypatch.setattr(windows, "ROWS_MAX", 8)


def tangled(disk: Disk) -> Window:
    """Return two segments that overlap, as after a commit and a restart, and transient messages in a hole."""
    one = disk.segment("one", [*range(25), *range(50, 75), *range(85, 90)])
    other = disk.segment("other", [*range(25, 50), *range(75, 80), *range(90, 100)])
    return Window(0, 0, 110, [in_memory(80, 83), in_memory(83, 85), in_memory(100, 110)], blocks_of(one, other))


def test_segments_that_overlap_are_read_ascending(disk: Disk):
    window = tangled(disk)
    assert offsets(window, disk) == list(range(110))
    assert offsets(window, disk, Where(keys=["k3"])) == list(range(3, 110, 7))
    assert offsets(window._replace(start=23, stop=84), disk) == list(range(23, 84))


def test_a_reader_that_continues_behind_a_batch_misses_nothing_and_gets_nothing_twice(disk: Disk):
    window = tangled(disk)
    wanted = Where(keys=["k1", "k2"])
    count = sum(1 for _ in window.batches(disk.read, ["offset"], wanted))
    assert count > 5
    for broken_after in range(1, count):
        before = list(islice(window.batches(disk.read, ["offset"], wanted), broken_after))
        got = [offset for batch, _ in before for offset in batch.column("offset").to_pylist()]
        got += offsets(window._replace(start=before[-1][1]), disk, wanted)
        assert got == [n for n in range(110) if n % 7 in (1, 2)]


def test_segments_that_do_not_overlap_are_not_sorted(disk: Disk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(np, "argsort", None)
    window = Window(0, 0, 40, [in_memory(20, 40)], blocks_of(disk.segment("one", range(20))))
    assert offsets(window, disk) == list(range(40))


def test_a_segment_that_is_not_there_is_named_and_lost_if_a_newer_window_has_it_still(disk: Disk):
    window = tangled(disk)
    disk.gone.add("other")
    read = window.batches(disk.read, ["offset"], Where())
    got = []
    with pytest.raises(SegmentGone, match="other") as caught:
        for batch, _ in read:
            got += batch.column("offset").to_pylist()
    assert got == list(range(25)), "the batches before it are handed over"
    window.check_without(None)
    rewritten = [place for place in window.blocks if place[0].path == "one"]
    window._replace(blocks=rewritten).check_without(caught.value.segment)
    with pytest.raises(Corrupt, match=r"other.*missing"):
        window.check_without(caught.value.segment)


def test_batches_without_a_row_that_is_wanted_have_the_offset_where_they_end(disk: Disk):
    window = tangled(disk)
    found = list(window.batches(disk.read, ["offset"], Where(keys=["none"])))
    assert {batch.num_rows for batch, _ in found} == {0}
    reached = [end for _, end in found]
    assert reached == sorted(set(reached)) and reached[-1] == 110


def test_a_window_holds_on_to_bounded_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(windows, "PINNED_BYTES_MAX", 10_000)
    store = BodyStore(None)
    for start in range(0, 100, 10):
        store.put(in_memory(start, start + 10))
    size = in_memory(0, 10).batch.nbytes + 1_024
    found = windows.window(store, 1, 0, 5, 100, Window(0, 0, 0).gone)
    assert found.stop == 10 * (10_000 // size) < 100
    monkeypatch.setattr(windows, "PINNED_BYTES_MAX", 1)
    found = windows.window(store, 1, 0, 5, 100, found.gone)
    assert (found.stop, len(found.cached)) == (10, 1)
