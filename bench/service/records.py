"""Memory of the records of idle instances: what a caller keeps of processes that it does not call."""

from __future__ import annotations

import gc
import tracemalloc

from bench.figure import Figure
from wherry.mesh.instance import Instance, decode, encode
from wherry.mesh.registry import Roster

INSTANCES = 10_000
WANTED_BYTES = 2_000.0
"""Of one record: 10,000 of them in 20 MB."""


def figures(scale: int) -> list[Figure]:
    """Measure the roster with that many instances, each decoded from bytes of its own."""
    count = INSTANCES // scale
    records = [
        encode(
            Instance(
                service="billing",
                id=f"{number:016x}",
                url=f"http://10.0.{number >> 8}.{number & 255}:7080",
                version=1_700_000_000_000 + number,
                methods=("total", "refund", "list"),
            )
        )
        for number in range(count)
    ]
    gc.collect()
    tracemalloc.start()
    roster = Roster()
    roster.replace("billing", [decode(record) for record in records])
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    each = held / count
    return [Figure("service.records", each, f"B each, {count:,} idle instances", "the bound", WANTED_BYTES)]
