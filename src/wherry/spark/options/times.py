"""Reads a time as people write it in an option."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from wherry.model import limits
from wherry.model.errors import InvalidInput

ALLOWED = "Unix milliseconds, an ISO time (UTC unless it has a zone), 'now', or a span such as '10 minutes ago'"

_SPAN = re.compile(r"(\d{1,12})\s*([a-z]+)\s+ago")
_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000),
}


def instant_ms(field: str, given: str, now_ms: int) -> int:
    """Return a time in Unix milliseconds; raise `InvalidInput` if the text is not a time.

    Examples
    --------
    >>> instant_ms("startingTime", "10 minutes ago", now_ms=1_000_000)
    400000
    >>> instant_ms("startingTime", "1970-01-01T00:00:01", now_ms=0)
    1000
    """
    found = _read(given.strip().lower(), now_ms)
    if found is None or not 0 <= found <= limits.TIME_MS_MAX:
        raise InvalidInput(field, given, ALLOWED)
    return found


def _read(text: str, now_ms: int) -> int | None:
    if text == "now":
        return now_ms
    if text.isdecimal():
        return int(text)
    span = _SPAN.fullmatch(text)
    if span is not None:
        unit_ms = _UNITS_MS.get(span[2])
        return None if unit_ms is None else now_ms - int(span[1]) * unit_ms
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000)
