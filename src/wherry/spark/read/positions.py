"""Offsets of a streaming query, as the JSON that Spark keeps in its checkpoint. Every form ever written must be read.

```
{"version": 1, "subscription": "spark-5f0c…", "positions": {"orders": {"0": 17}}, "origin": {"orders": {"0": 3}},
 "incarnations": {"orders": 7}}
```

`positions` has the next offset to read of each partition. `origin` has the first offsets of a micro-batch that does not
begin where the one before it ended: the first micro-batch, and one that finds a topic which is new or was created
again. Spark does not keep the initial offset and would ask for it again to repeat a first micro-batch, when "latest"
means other offsets. `incarnations` names the topic that the positions belong to, since a topic of the same name can be
created again; checkpoints before 0.1 have none.

Version 2 is that of a query with `dueOnly`. `due_ms` is the time up to which rows were due, `waiting` the first offset
of each partition that was not, and `released` the ranges below the positions in which rows became due.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from wherry.model.errors import InvalidInput

VERSION = 1
DUE_VERSION = 2
"""The version of a mark with a time."""

Positions = dict[str, dict[int, int]]
"""The next offset to read, by topic and partition."""


Released = dict[str, dict[int, tuple[int, int]]]
"""Ranges of offsets, by topic and partition."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a query has read."""

    version: int
    positions: Positions
    subscription: str = ""
    origin: Positions | None = None
    incarnations: dict[str, int] = {}
    due_ms: int | None = None
    waiting: Positions = {}
    released: Released = {}
    initial: bool = False
    """True until the query has read something."""

    def settled(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return up to where a subscription is done with a topic: not beyond a message that waits for its time."""
        waiting = self.waiting.get(topic, {})
        return {number: min(offset, waiting.get(number, offset)) for number, offset in offsets.items()}

    def json(self) -> dict[str, Any]:
        """Return the form that Spark keeps in its checkpoint."""
        built: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return built


class PartitionRange(msgspec.Struct, frozen=True):
    """The offsets of a partition from `start` up to, but without, `stop`."""

    topic: str
    partition: int
    start: int
    stop: int


def mark_of(given: Mapping[str, Any]) -> Mark:
    """Return the mark that an offset of the checkpoint holds; raise `InvalidInput` for a newer version."""
    version = given.get("version")
    if version not in (VERSION, DUE_VERSION):
        raise InvalidInput(
            "offset.version", version, f"{VERSION} or {DUE_VERSION}: a newer Wherry wrote this checkpoint"
        )
    try:
        return msgspec.convert(given, Mark, str_keys=True, strict=False)
    except msgspec.ValidationError as fault:
        raise InvalidInput("offset", given, str(fault)) from None


def ranges(start: Positions, stop: Positions, rows: int) -> Iterator[PartitionRange]:
    """Yield the offsets between two positions in pieces of at most `rows`; a partition only in `stop` begins at 0."""
    for topic, ends in stop.items():
        begins = start.get(topic, {})
        for partition, end in ends.items():
            begin = begins.get(partition, 0)
            for at in range(begin, end, rows):
                yield PartitionRange(topic, partition, at, min(at + rows, end))
