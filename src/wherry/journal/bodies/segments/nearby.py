"""Which segment files hold a range of a partition, so that a log reader on the same machine can read them itself.

The broker returns the blocks of a range, and which of their messages are gone. Messages that are only in memory are not
in files: the reader fetches them with a ticket, as it does when it cannot open the files.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from pyroaring import BitMap64

from wherry.journal.bodies.segments.segment import BLOCK_COLUMNS, Segment
from wherry.journal.bodies.window import Window


class SegmentFile(msgspec.Struct, frozen=True, array_like=True):
    """A segment file, and the blocks of it to read: the values of `BLOCK_COLUMNS` for each."""

    path: str
    blocks: list[list[int]]


class Nearby(msgspec.Struct, frozen=True, kw_only=True):
    """Where the messages of `start..stop` are."""

    partition: int
    start: int
    stop: int
    in_files: bool
    """Whether `files` hold all of it; else it has to be fetched with a ticket."""
    folder: str = ""
    files: list[SegmentFile] = []
    gone: bytes = b""
    rows: int | None = None
    """The messages of `start..stop` that are not gone; an older broker does not say."""

    def window(self) -> Window:
        """Return a window over the files, to be read from `folder`."""
        blocks = []
        for path, rows in ((file.path, file.blocks) for file in self.files):
            table = np.array(rows, np.int64).reshape(-1, len(BLOCK_COLUMNS)).T
            segment = Segment(-1, self.partition, path, 0, table)
            blocks += [(segment, number) for number in range(len(rows))]
        gone = BitMap64.deserialize(self.gone) if self.gone else BitMap64()
        return Window(self.partition, self.start, self.stop, (), blocks, gone)


def nearby(view: Window, folder: Path | None, end: int) -> Nearby:
    """Return the first part of a window that is in files; the whole of it, without files, if it begins in memory.

    `end` is the offset behind the last message of the partition when the window was noted.
    """
    stop = min((cached.base for cached in view.cached), default=view.stop)
    if folder is None or stop <= view.start:
        rows = _rows(view, min(view.stop, end))
        return Nearby(partition=view.partition, start=view.start, stop=view.stop, in_files=False, rows=rows)
    found: dict[str, list[list[int]]] = {}
    for segment, number in view.blocks:
        if segment.blocks[0, number] < stop:
            found.setdefault(segment.path, []).append(segment.blocks[:, number].tolist())
    return Nearby(
        partition=view.partition,
        start=view.start,
        stop=stop,
        in_files=True,
        folder=str(folder.absolute()),
        files=[SegmentFile(path, blocks) for path, blocks in found.items()],
        gone=view.gone.serialize() if view.gone else b"",
        rows=_rows(view, min(stop, end)),
    )


def _rows(view: Window, stop: int) -> int:
    """Return the messages of a window below an offset: offsets have no gaps, but for those that are gone."""
    if not (view.cached or view.blocks) or stop <= view.start:
        return 0
    return int(stop - view.start - view.gone.range_cardinality(view.start, stop))
