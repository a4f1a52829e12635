"""Offsets of a streaming query: JSON that Spark keeps in its checkpoint, so every shape ever written must be read.

```
{"version": 1, "subscription": "spark-5f0c…", "positions": {"orders": {"0": 17}}, "origin": {"orders": {"0": 3}},
 "incarnations": {"orders": 7}}
```

`positions` is the next offset to read of each partition. `origin` is where a micro-batch begins that does not begin at
the end of the one before: the first, and one that finds a topic that is new or was made anew. `incarnations` says of
which topic of that name the positions are; checkpoints before 0.1 have none. Spark does not keep the initial offset: it
would ask for it again to repeat a first micro-batch, and "latest" would be somewhere else by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from wherry.model.errors import InvalidInput

VERSION = 1

Positions = dict[str, dict[int, int]]
"""By topic and partition the offset to read next."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a query is."""

    version: int
    positions: Positions
    subscription: str = ""
    origin: Positions | None = None
    incarnations: dict[str, int] = {}
    initial: bool = False
    """Whether nothing was read yet."""

    def json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        built: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return built


class Stretch(msgspec.Struct, frozen=True):
    """Offsets `start..stop` of a partition."""

    topic: str
    partition: int
    start: int
    stop: int


def mark_of(given: Mapping[str, Any]) -> Mark:
    """An offset out of the checkpoint."""
    version = given.get("version")
    if version != VERSION:
        raise InvalidInput("offset.version", version, f"{VERSION}: a newer Wherry wrote this checkpoint")
    try:
        return msgspec.convert(given, Mark, str_keys=True, strict=False)
    except msgspec.ValidationError as fault:
        raise InvalidInput("offset", given, str(fault)) from None


def stretches(start: Positions, stop: Positions, rows: int) -> Iterator[Stretch]:
    """What lies between two positions, in pieces of at most `rows` offsets; what is only in `stop` begins at 0."""
    for topic, ends in stop.items():
        begins = start.get(topic, {})
        for partition, end in ends.items():
            begin = begins.get(partition, 0)
            for at in range(begin, end, rows):
                yield Stretch(topic, partition, at, min(at + rows, end))
