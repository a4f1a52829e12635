"""A sum over rows that does not depend on their order: 64 bits for each row, added up.

Archived rows, the same rows compacted, and the rows of the log have the same sum. It finds rows that were lost,
duplicated or changed by accident; it is no signature. It must never change, since manifests keep it.

The hash of a row is the mixed sum of the hashes of its columns, each with a number of its own. Up to 1,024 bytes are
hashed in words of eight, all rows of a batch at once; longer values by BLAKE2b, one by one.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.model.schema import edges

UInt64: TypeAlias = npt.NDArray[np.uint64]

COLUMNS = (
    *("partition", "offset", "id", "key", "priority", "due", "expires", "published"),
    *("headers", "envelope", "payload", "blob", "mac"),
)
"""The columns; the order gives each its number."""

SHORT = 1_024
_WORD = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)
_SHIFT = np.uint64(33)
_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)
_ALL = (1 << 64) - 1
_SEEDS = np.array([number * int(_WORD) & _ALL for number in range(len(COLUMNS) + 1)], np.uint64)


def total(batch: pa.RecordBatch, columns: Collection[str] = COLUMNS) -> int:
    """Return the sum of the hashes of the rows of a batch of the log, as an unsigned number of 64 bits."""
    return int(row_hashes(batch, columns).sum(dtype=np.uint64))


def added(*sums: int) -> int:
    """Return the sum of several sets of rows from the sum of each."""
    return sum(sums) & _ALL


def row_hashes(batch: pa.RecordBatch, columns: Collection[str] = COLUMNS) -> UInt64:
    """Return one hash for each row, of some columns of the log, which the batch must have; of all by default."""
    rows = np.zeros(batch.num_rows, np.uint64)
    for number, name in enumerate(COLUMNS, 1):
        if name not in columns:
            continue
        column = batch.column(name)
        if column.null_count == len(column):
            continue
        hashes = _mixed(_column(column) + _SEEDS[number])
        if column.null_count:
            hashes[column.is_null().to_numpy(zero_copy_only=False)] = 0
        rows += hashes
    return _mixed(rows)


def _column(column: pa.Array) -> UInt64:
    kind = column.type
    if pa.types.is_map(kind):
        return _pairs(column)
    if pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.binary())
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return _texts(column)
    if pa.types.is_timestamp(kind):
        column = column.view(pa.int64())
    numbers = column.fill_null(0) if column.null_count else column
    return numbers.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)


def _pairs(column: pa.Array) -> UInt64:
    """Return a hash of the headers of each row; their order in a message does not matter."""
    bounds = edges(column)
    names, values = (part.slice(bounds[0], bounds[-1] - bounds[0]) for part in (column.keys, column.items))
    each = _mixed(_texts(names) + np.uint64(3) * _texts(values))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(each, dtype=np.uint64)))
    return sums[bounds[1:] - bounds[0]] - sums[bounds[:-1] - bounds[0]]


def _texts(column: pa.Array) -> UInt64:
    bounds = edges(column)
    starts, lengths = bounds[:-1], np.diff(bounds)
    hashes = np.zeros(len(lengths), np.uint64)
    raw = column.buffers()[2]
    long = np.flatnonzero(lengths > SHORT)
    if raw is not None and bounds[-1] > bounds[0]:
        data = np.frombuffer(raw, np.uint8)[bounds[0] : bounds[-1]]
        starts = starts - bounds[0]
        short = np.where(lengths > SHORT, 0, lengths)
        hashes = _words(data, starts, short)
        view = data.data
        for row in long.tolist():
            begin = int(starts[row])
            digest = blake2b(view[begin : begin + int(lengths[row])], digest_size=8).digest()
            hashes[row] = int.from_bytes(digest, "little")
    return _mixed(hashes ^ (lengths.astype(np.uint64) * _WORD))


def _words(data: npt.NDArray[np.uint8], starts: Any, lengths: Any) -> UInt64:
    """Hash word by word, all rows at once; the longest first, so that the rows with a word at a place come first."""
    padded = np.concatenate((data, np.zeros(8, np.uint8)))
    words: UInt64 = np.ndarray((len(data) + 1,), "<u8", padded.data, 0, (1,))  # a word at each byte
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    sums = np.zeros(len(starts), np.uint64)
    for at in range(0, int(lengths[0]) if len(lengths) else 0, 8):
        count = int(np.searchsorted(-lengths, -at, "left"))
        here = words[starts[:count] + at]
        if count and lengths[count - 1] < at + 8:
            here &= _MASKS[np.minimum(lengths[:count] - at, 8)]
        mixed = (sums[:count] ^ here) * _WORD
        sums[:count] = mixed ^ (mixed >> _HALF)
    hashes = np.empty_like(sums)
    hashes[order] = sums
    return hashes


def _mixed(hashes: UInt64) -> UInt64:
    mixed = (hashes ^ (hashes >> _SHIFT)) * _MIX_1
    mixed = (mixed ^ (mixed >> _SHIFT)) * _MIX_2
    return mixed ^ (mixed >> _SHIFT)
