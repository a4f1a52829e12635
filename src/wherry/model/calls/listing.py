"""Listings of messages that nobody takes: what to look for, the columns of an answer, and its pages."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from wherry.model import check, limits
from wherry.model.calls.where import Where
from wherry.model.schema import MESSAGE

LIMIT_MAX = 1_000_000

MESSAGE_PLACE = "^[0-9]{1,5}-[0-9]{1,13}$"
"""Where a page of messages ends: partition and offset."""

SCHEDULED_PLACE = "^[0-9]{1,13}-[0-9]{1,5}-[0-9]{1,13}$"
"""Time, partition and offset."""

DEAD_PLACE = "^[0-9]{1,5}-[0-9]{1,15}-[0-9]{1,13}$"
"""Partition, number of the subscription, and offset."""

LISTED = MESSAGE.append(pa.field("partition", pa.uint16(), nullable=False)).append(
    pa.field("version", pa.int64(), nullable=False)
)
"""What browsing and searching give: messages, where they are, and how often each was changed: what an edit names."""

SCHEDULED = LISTED.append(pa.field("at", pa.timestamp("ms", tz="UTC"), nullable=False))
"""What is scheduled: messages, and when each may be handed out."""

TIME = pa.timestamp("ms", tz="UTC")
DEAD_LETTERS = pa.schema(
    [
        *LISTED,
        pa.field("subscription", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("attempts", pa.int64(), nullable=False),
        pa.field("first_failed", TIME, nullable=False),
        pa.field("last_failed", TIME, nullable=False),
        pa.field("died", TIME, nullable=False),
    ]
)
"""Dead letters: the whole message, whose dead letter it is ("" for nobody's), and what happened to it."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing; `next` is the place after which the rest begins, None at the end."""

    batch: pa.RecordBatch
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to look for; every condition that is given must hold.

    `headers` must all be there with these values; times are when messages were published, Unix milliseconds, the end
    not included.
    """

    key: str | None = None
    headers: dict[str, str] | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    limit: int = 1_000

    def checked(self) -> Search:
        """This search, or `InvalidInput`."""
        if self.key is not None:
            check.text("key", self.key)
        check.headers("headers", self.headers)
        check.optional_integer("from_ms", self.from_ms, 0, limits.TIME_MS_MAX)
        check.optional_integer("to_ms", self.to_ms, 0, limits.TIME_MS_MAX)
        check.integer("limit", self.limit, 1, LIMIT_MAX)
        return self

    def where(self) -> Where:
        """The conditions alone."""
        keys = None if self.key is None else [self.key]
        return Where(keys=keys, headers=self.headers, from_ms=self.from_ms, to_ms=self.to_ms)
