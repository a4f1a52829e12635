"""What happens in a run, drawn from its seed: a seed alone is enough to see a run again."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any, NamedTuple

QUERIES = ("topic", "parquet")
POINTS = (
    *("plan", "read-before", "read-middle", "read-after", "write-before", "write-middle", "write-after"),
    *("commit-before", "commit-after"),
)
WIRE = "wire"
"""Not a point of the code, but so many bytes after the run began."""

KINDS = ("driver", "worker", "broker", "cut")
ON_A_CLUSTER = (*KINDS, "executor")

BATCHES = (3, 5)
VISIT_MAX = 3
STREAM = {"keep": "age", "keep_ms": 3_600_000}
QUEUE = {"keep": "settled"}


class Fault(NamedTuple):
    """One fault to strike."""

    kind: str
    query: str
    point: str
    visit: int
    """At which visit of the point, counted over the whole run; for the wire, a number of bytes."""
    pause_s: float
    """After a cut no connection is let in for so long. A fault at the commit of files is so long after the last row."""

    def __str__(self) -> str:
        if self.point == WIRE:
            return f"{self.kind} after {self.visit:,} B"
        return f"{self.kind} at {self.query} {self.point} {self.visit}"


class Plan(NamedTuple):
    """A run."""

    seed: int
    rows: int
    size: int
    """Of a payload at most."""
    partitions: int
    out_partitions: int
    rows_per_batch: int
    keep: dict[str, Any]
    later: int
    """Rows that are published when the queries have read all before."""
    grown: int
    """Partitions that the topic has by then."""
    faults: tuple[Fault, ...]


def places(kinds: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return all that can happen, and where, in an order in which neighbours differ."""
    found = [*product(kinds, QUERIES, POINTS), *((kind, "", WIRE) for kind in kinds if kind != "worker")]
    # Spark itself commits files, in the JVM: there is no worker to kill.
    found = [each for each in found if each[:2] != ("worker", "parquet") or not each[2].startswith("commit")]
    Random(4).shuffle(found)
    return found


def drawn(seed: int, kinds: tuple[str, ...] = KINDS) -> Plan:
    """Draw the plan of a seed. The first fault takes each place in turn, so that enough seeds in a row have each."""
    random, every = Random(seed), places(kinds)
    rows = random.randint(200, 3_000)
    partitions = random.randint(1, 3)
    first = every[seed % len(every)]
    others = [random.choice(every) for _ in range(random.choice((0, 0, 0, 1, 1, 2)))]
    later = random.choice((0, 0, rows // 3))
    size = random.choice((20, 200, 2_000))
    return Plan(
        seed=seed,
        rows=rows,
        size=size,
        partitions=partitions,
        out_partitions=random.randint(1, 2),
        rows_per_batch=-(-rows // random.randint(*BATCHES)),
        keep=random.choice((STREAM, QUEUE)),
        later=later,
        grown=partitions + (random.randint(0, 2) if later else 0),
        faults=tuple(_fault(random, place, rows * size) for place in (first, *others)),
    )


def _fault(random: Random, place: tuple[str, str, str], volume: int) -> Fault:
    kind, query, point = place
    visit = random.randint(1, volume) if point == WIRE else random.randint(1, VISIT_MAX)
    return Fault(kind, query, point, visit, round(random.choice((0.0, random.uniform(0, 0.1), random.random())), 3))
