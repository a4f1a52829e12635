"""Conditions on messages to read, tested on the columns of a batch at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wherry.model import check, limits
from wherry.model.errors import InvalidInput

KEYS_MAX = 1_000


class Where(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Conditions that must all hold; without any, every message matches.

    Parameters
    ----------
    keys
        The key is one of these.
    headers
        All of these headers are present with these values.
    from_ms, to_ms
        Published in this time, Unix milliseconds, the end not included.
    priority_min, priority_max
        Priority in this range, both ends included.
    """

    keys: list[str] | None = None
    headers: dict[str, str] | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    priority_min: int | None = None
    priority_max: int | None = None

    def checked(self) -> Where:
        """Return these conditions, or raise `InvalidInput` for the first that breaks a rule."""
        if self.keys is not None:
            if not isinstance(self.keys, list) or not 1 <= len(self.keys) <= KEYS_MAX:
                raise InvalidInput("keys", self.keys, f"a list of 1 to {KEYS_MAX} keys")
            for key in self.keys:
                check.text("keys", key)
        check.headers("headers", self.headers)
        check.optional_integer("from_ms", self.from_ms, 0, limits.TIME_MS_MAX)
        check.optional_integer("to_ms", self.to_ms, 0, limits.TIME_MS_MAX)
        check.optional_integer("priority_min", self.priority_min, 0, limits.PRIORITY_MAX)
        check.optional_integer("priority_max", self.priority_max, 0, limits.PRIORITY_MAX)
        return self

    def columns(self) -> set[str]:
        """Return the columns that the conditions need."""
        looks = {
            "key": self.keys is not None,
            "headers": bool(self.headers),
            "published": self.from_ms is not None or self.to_ms is not None,
            "priority": self.priority_min is not None or self.priority_max is not None,
        }
        return {name for name, looked in looks.items() if looked}

    def mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return which rows match; None if there are no conditions."""
        found: list[Any] = []
        if self.keys is not None:
            found.append(pc.is_in(batch.column("key"), value_set=pa.array(self.keys, pa.string())))
        if self.from_ms is not None or self.to_ms is not None:
            published = batch.column("published").view(pa.int64())
            if self.from_ms is not None:
                found.append(pc.greater_equal(published, self.from_ms * 1000))
            if self.to_ms is not None:
                found.append(pc.less(published, self.to_ms * 1000))
        if self.priority_min is not None:
            found.append(pc.greater_equal(batch.column("priority"), self.priority_min))
        if self.priority_max is not None:
            found.append(pc.less_equal(batch.column("priority"), self.priority_max))
        for name, value in (self.headers or {}).items():
            given = pc.map_lookup(batch.column("headers"), name, "last")
            found.append(pc.fill_null(pc.equal(given, value), False))
        mask = found[0] if found else None
        for more in found[1:]:
            mask = pc.and_(mask, more)
        return mask
