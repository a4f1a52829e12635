"""Where messages lie in files, for a reader on this machine: what need not go through the broker need not wait for it.

The broker says which blocks of which segments hold a stretch of a partition, and which of their messages are gone. What
it has in memory alone it does not say: that is read with a ticket, as is all that a reader cannot open.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from pyroaring import BitMap64

from wherry.journal.bodies.segment import BLOCK_COLUMNS, Segment
from wherry.journal.bodies.window import Window


class SegmentFile(msgspec.Struct, frozen=True, array_like=True):
    """A segment, and those of its blocks that are meant: for each the values of `BLOCK_COLUMNS`."""

    path: str
    blocks: list[list[int]]


class Nearby(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of `start..stop`."""

    partition: int
    start: int
    stop: int
    in_files: bool
    """Whether `files` hold all of it; else it is to be read with a ticket."""
    folder: str = ""
    files: list[SegmentFile] = []
    gone: bytes = b""

    def window(self) -> Window:
        """To be read with the files of `folder`."""
        blocks = []
        for path, rows in ((file.path, file.blocks) for file in self.files):
            table = np.array(rows, np.int64).reshape(-1, len(BLOCK_COLUMNS)).T
            segment = Segment(-1, self.partition, path, 0, table)
            blocks += [(segment, number) for number in range(len(rows))]
        gone = BitMap64.deserialize(self.gone) if self.gone else BitMap64()
        return Window(self.partition, self.start, self.stop, (), blocks, gone)


def nearby(view: Window, folder: Path | None) -> Nearby:
    """The beginning of a window that lies in files; all of it, to be read with a ticket, if it begins in memory."""
    stop = min((cached.base for cached in view.cached), default=view.stop)
    if folder is None or stop <= view.start:
        return Nearby(partition=view.partition, start=view.start, stop=view.stop, in_files=False)
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
    )
