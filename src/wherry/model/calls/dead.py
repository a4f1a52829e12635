"""Dead letters: which are meant, what they died of, and who sent them back or threw them away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from wherry.model import check, limits
from wherry.model.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Which dead letters are meant; None for any.

    Parameters
    ----------
    subscription
        The name of a subscription; an empty one for messages of nobody: they did not fit, expired before there was
        any, or died of one that was cut off since.
    reason
        Text that the reason or the error contains.
    from_ms, to_ms
        When they died, Unix milliseconds, the end not included.
    partition, offsets
        Exactly these messages.
    limit
        At most so many, oldest offsets first.
    """

    subscription: str | None = None
    reason: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    partition: int | None = None
    offsets: tuple[int, ...] | None = None
    limit: int = 1_000_000

    def checked(self) -> DeadFilter:
        """This filter, or `InvalidInput`."""
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
    """Dead letters of one subscription (an empty one: of none) with one reason; `errors` by how many had each."""

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


class DeadAction(NamedTuple):
    """Somebody sent dead letters back (`redriven`) or threw them away (`discarded`)."""

    at_ms: int
    what: Literal["redriven", "discarded"]
    by: str
    subscription: str
    partition: int
    messages: int
