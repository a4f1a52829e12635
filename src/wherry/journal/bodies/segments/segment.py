"""Segments: immutable Arrow IPC files of one partition, which pyarrow, pandas, polars and DuckDB can open.

A segment is written once, as a whole. Its **blocks** (record batches) are found by offset in a small table that is
stored in the checkpoint. Each block is checked by its CRC32C when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.index.offsets import starts
from wherry.journal.disk.files import Files
from wherry.model.errors import Corrupt
from wherry.model.schema import MESSAGE, edges

Int64: TypeAlias = npt.NDArray[np.int64]

BLOCK_BYTES = 1 << 20
BLOCK_ROWS_MAX = 8_192

_HEAD_BYTES = 8 + MESSAGE.serialize().size
"""How an Arrow file begins: its magic, padded, and the schema. Blocks follow without gaps."""

BLOCK_COLUMNS = ("first", "last", "rows", "at", "length", "crc")


class SegmentImage(msgspec.Struct, frozen=True, array_like=True):
    """A segment as a checkpoint stores it; `blocks` is the columns `BLOCK_COLUMNS` one after another."""

    topic: int
    partition: int
    path: str
    bytes: int
    blocks: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """An immutable file of messages, ascending by offset, with gaps where settled messages were left out.

    There is one object for each file, so that segments can be compared by identity.
    """

    topic: int
    partition: int
    path: str
    bytes: int
    blocks: Int64

    @property
    def first(self) -> int:
        """The lowest offset."""
        return int(self.blocks[0, 0])

    @property
    def last(self) -> int:
        """The highest offset."""
        return int(self.blocks[1, -1])

    @property
    def rows(self) -> int:
        """The number of messages."""
        return int(self.blocks[2].sum())

    def blocks_for(self, offsets: Int64) -> Int64:
        """Return the numbers of the blocks that may hold these offsets (sorted)."""
        at = np.searchsorted(self.blocks[1], offsets)
        at = at[at < self.blocks.shape[1]]
        return at[starts(at)]

    def blocks_between(self, start: int, stop: int) -> range:
        """Return the numbers of the blocks that may hold offsets of `start..stop`."""
        first, last = self.blocks[0], self.blocks[1]
        return range(int(np.searchsorted(last, start)), int(np.searchsorted(first, stop)))

    def image(self) -> SegmentImage:
        """Return what a checkpoint stores."""
        return SegmentImage(self.topic, self.partition, self.path, self.bytes, self.blocks.ravel())


def from_image(image: SegmentImage) -> Segment:
    """Return the segment of an image."""
    blocks = image.blocks.reshape(len(BLOCK_COLUMNS), -1)
    return Segment(image.topic, image.partition, image.path, image.bytes, blocks)


def cut_blocks(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Cut a full batch into blocks of about `BLOCK_BYTES`: the smallest unit of a read."""
    if batch.num_rows == 0:
        return []
    ends = edges(batch.column("payload"))[1:]
    weight = (ends - ends[0]) // BLOCK_BYTES + np.arange(batch.num_rows) // BLOCK_ROWS_MAX
    starts = np.flatnonzero(np.diff(weight, prepend=-1))
    stops = np.append(starts[1:], batch.num_rows)
    return [batch.slice(start, stop - start) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


async def write(files: Files, topic: int, partition: int, path: str, batches: Iterable[pa.RecordBatch]) -> Segment:
    """Write full batches, ascending by offset, to a file that is durable on return. A thread encodes them."""
    data, blocks = await files.compute(partial(_sealed, batches))
    await files.put(path, [data])
    return Segment(topic, partition, path, data.size, blocks)


def _sealed(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Buffer, Int64]:
    """Return the bytes of a segment, and its blocks as `BLOCK_COLUMNS`."""
    sink = pa.BufferOutputStream()
    rows: list[tuple[int, int, int, int, int]] = []
    at = _HEAD_BYTES
    with pa.ipc.new_file(sink, MESSAGE) as writer:
        for piece in (piece for batch in batches for piece in cut_blocks(batch)):
            writer.write_batch(piece)
            offsets, end = piece.column("offset"), sink.tell()
            rows.append((offsets[0].as_py(), offsets[-1].as_py(), piece.num_rows, at, end - at))
            at = end
    data = sink.getvalue()
    blocks = [(*row, google_crc32c.value(data.slice(row[3], row[4]))) for row in rows]
    return data, np.array(blocks, np.int64).T.copy()


async def read_block(files: Files, segment: Segment, number: int) -> pa.RecordBatch:
    """Read and check one block."""
    at, length = (int(value) for value in segment.blocks[3:5, number])
    return decode_block(await files.read(segment.path, at, length), segment, number)


def decode_block(data: pa.Buffer, segment: Segment, number: int) -> pa.RecordBatch:
    """Decode a block; raise `Corrupt`, with file and byte, if it is not what was written."""
    at, length, crc = (int(value) for value in segment.blocks[3:6, number])
    if data.size != length or google_crc32c.value(data) != crc:
        raise Corrupt(segment.path, at, f"block {number} of the segment is not what was written")
    return pa.ipc.read_record_batch(data, MESSAGE)
