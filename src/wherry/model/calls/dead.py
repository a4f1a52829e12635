"""Values about dead letters: a filter, their kinds, and who redrove or discarded them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from wherry.model import check, limits
from wherry.model.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Which dead letters to select; None matches any.

    Parameters
    ----------
    subscription
        The name of a subscription. An empty name selects dead letters of no subscription: they did not fit, expired
        before there was a subscription, or were left by one that was cut off.
    reason
        Text that the reason or the error contains.
    from_ms, to_ms
        When they died, Unix milliseconds, the end not included.
    partition, offsets
        Exactly these messages.
    limit
        The maximum number, lowest offsets first.
    """

    subscription: str | None = None
    reason: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    partition: int | None = None
    offsets: tuple[int, ...] | None = None
    limit: int = 1_000_000

    def checked(self) -> DeadFilter:
        """Return this filter, or raise `InvalidInput`."""
        for name in ("subscription", "reason"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidInput(name, value, "text")
        for name in ("from_ms", "to_ms"):
            check.optional_integer(name, getattr(self, name), 0, limits.TIME_MS_MAX)
        check.optional_integer("partition", self.partition, 0, limits.PARTITIONS_MAX - 1)
        if self.offsets is not None:
            if not isinstance(self.offsets, tuple | list):
                raise InvalidInput("offsets", self.offsets, "a tuple of offsets")
            for offset in self.offsets:
                check.integer("offsets", offset, 0, limits.OFFSET_MAX)
        check.integer("limit", self.limit, 1, 1 << 48)
        return self


@dataclass(frozen=True, slots=True)
class DeadKind:
    """Dead letters of one subscription ("": of none) with one reason; `errors` counts them by error."""

    subscription: str
    reason: str
    count: int
    first_ms: int
    last_ms: int
    errors: dict[str, int]


@dataclass(frozen=True, slots=True)
class DeadKinds:
    """Dead letters by kind, the largest kinds first; `room` is how many more messages the topic takes, None: any."""

    count: int
    room: int | None
    kinds: list[DeadKind]


COPIED = ("payload", "envelope", "headers", "id")
"""What a copy of a message is made of."""


class DeadRow(NamedTuple):
    """One dead letter as values."""

    offset: int
    payload: bytes
    envelope: bytes | None
    headers: list[tuple[str, str]] | None
    id: str | None
    reason: str
    died_ms: int


class DeadCopy(NamedTuple):
    """A message to be published in place of one that died: its topic and its columns, an envelope among them."""

    topic: str
    columns: dict[str, Any]


CopyCall: TypeAlias = Callable[[str, list[DeadRow]], "list[DeadCopy] | None"]
"""Returns the copies of messages of a topic that expire; None if they have to be dead letters first."""


class AuditRecord(NamedTuple):
    """A client redrove or discarded dead letters."""

    at_ms: int
    what: Literal["redriven", "discarded"]
    by: str
    subscription: str
    partition: int
    messages: int
