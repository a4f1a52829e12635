"""Memory of the index: bytes that the process grows by for each waiting message that was published alone."""

from __future__ import annotations

from bench import memory
from bench.figure import Figure
from bench.measuring import progress

FEW, MANY = 20_000, 100_000
GOAL_BYTES = 24.0


def figures(scale: int) -> list[Figure]:
    """Measure it in a process of its own."""
    progress("lone.index")
    found = memory.measured("fifo_bytes_single", FEW // scale, MANY // scale)
    return [Figure("lone.index.bytes", found, "bytes a waiting message, published alone", "24 bytes", GOAL_BYTES)]
