"""A stable 64-bit hash of every string in a column at once, for key to partition, key order and ids.

It must never change: the partition of a key depends on it, so another constant would move keys to other partitions.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.model.schema import edges

UInt64: TypeAlias = npt.NDArray[np.uint64]
Int64: TypeAlias = npt.NDArray[np.int64]

_MULTIPLIER = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


def _powers(count: int) -> UInt64:
    power, powers = 1, []
    for _ in range(count):
        powers.append(power)
        power = power * _MULTIPLIER & 0xFFFF_FFFF_FFFF_FFFF
    return np.array(powers, np.uint64)


_POWERS = _powers(1_025)
"""Keys and ids have at most 1,024 bytes."""


def hash_strings(column: pa.Array) -> UInt64:
    """Return one hash per row; a null hashes as an empty string."""
    bounds = edges(column)
    starts, lengths = bounds[:-1] - bounds[0], np.diff(bounds)
    if len(starts) == 0 or bounds[-1] == bounds[0]:
        sums = np.zeros(len(starts), np.uint64)
    else:
        data = np.frombuffer(column.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
        index = np.arange(len(data)) - np.repeat(starts, lengths)
        # A prefix sum, not reduceat: reduceat gives a wrong value for an empty string.
        total = np.concatenate((np.zeros(1, np.uint64), np.cumsum((data + np.uint64(1)) * _POWERS[index])))
        sums = total[starts + lengths] - total[starts]
    mixed = sums ^ (lengths.astype(np.uint64) * np.uint64(_MULTIPLIER))
    mixed = (mixed ^ (mixed >> _SHIFT)) * _MIX_1
    mixed = (mixed ^ (mixed >> _SHIFT)) * _MIX_2
    return mixed ^ (mixed >> _SHIFT)


def hash_text(text: str) -> int:
    """Return the hash of one string."""
    return int(hash_strings(pa.array([text], pa.string()))[0])


def ranks_of(hashes: UInt64) -> Int64:
    """Cut hashes to the 43 bits that the rank of an index may have."""
    return (hashes >> np.uint64(21)).astype(np.int64)
