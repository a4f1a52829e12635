"""Values for reading a topic as a log: columns, ranges of offsets, bounds of a read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from wherry.model.errors import InvalidInput
from wherry.model.schema import MESSAGE

LOGGED = MESSAGE.append(pa.field("partition", pa.uint16(), nullable=False))
"""Columns of the log: the message and its partition."""

Positions: TypeAlias = Mapping[str, Mapping[int, int]]
"""For each topic and partition the offset to read next."""

WAIT_MS_MAX = 60_000
"""The longest wait for new messages."""

BUDGET_MAX = 1 << 48
"""The largest budget of messages, and of bytes, that a call may give."""


class Extent(NamedTuple):
    """The offsets of a partition: `start..stop`, with gaps where messages are gone."""

    partition: int
    start: int
    stop: int


def projection(columns: list[str]) -> pa.Schema:
    """Return the schema of some columns."""
    return pa.schema([LOGGED.field(name) for name in columns])


def check_columns(columns: Sequence[str] | None) -> list[str]:
    """Return the names of columns of the log, at least one, each once; None means all of them."""
    if columns is None:
        return list(LOGGED.names)
    allowed = "a list of some of " + ", ".join(LOGGED.names) + ", each once"
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not 0 < len(set(columns)) == len(columns):
        raise InvalidInput("columns", columns, allowed)
    for name in columns:
        if name not in LOGGED.names:
            raise InvalidInput("columns", name, allowed)
    return list(columns)
