"""Listings that show messages without leasing them: what to search for, the columns of a result, and its pages."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from wherry.model import check, limits
from wherry.model.calls.where import Where
from wherry.model.schema import MESSAGE

LIMIT_MAX = 1_000_000

MESSAGE_CURSOR = "^[0-9]{1,5}-[0-9]{1,13}$"
"""The end of a page of messages: partition and offset."""

SCHEDULED_CURSOR = "^[0-9]{1,13}-[0-9]{1,5}-[0-9]{1,13}$"
"""The end of a page of scheduled messages: time, partition and offset."""

DEAD_CURSOR = "^[0-9]{1,5}-[0-9]{1,15}-[0-9]{1,13}$"
"""The end of a page of dead letters: partition, number of the subscription, and offset."""

LISTED = MESSAGE.append(pa.field("partition", pa.uint16(), nullable=False)).append(
    pa.field("version", pa.int64(), nullable=False)
)
"""Columns of browse and search: the message, its partition, and its version, which an amend has to name."""

SCHEDULED = LISTED.append(pa.field("at", pa.timestamp("ms", tz="UTC"), nullable=False))
"""Columns of scheduled messages: the message, and when it may be leased."""

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
"""Columns of dead letters: the message, the subscription ("" for none), and how it died."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing; `next` is where the next page begins, None at the end."""

    batch: pa.RecordBatch
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to search for; every condition that is given must hold.

    All `headers` must be present with these values. Times are those of the publish, Unix milliseconds, the end not
    included.
    """

    key: str | None = None
    headers: dict[str, str] | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    limit: int = 1_000

    def checked(self) -> Search:
        """Return this search, or raise `InvalidInput`."""
        if self.key is not None:
            check.text("key", self.key)
        check.headers("headers", self.headers)
        check.optional_integer("from_ms", self.from_ms, 0, limits.TIME_MS_MAX)
        check.optional_integer("to_ms", self.to_ms, 0, limits.TIME_MS_MAX)
        check.integer("limit", self.limit, 1, LIMIT_MAX)
        return self

    def where(self) -> Where:
        """Return the conditions without the limit."""
        keys = None if self.key is None else [self.key]
        return Where(keys=keys, headers=self.headers, from_ms=self.from_ms, to_ms=self.to_ms)
