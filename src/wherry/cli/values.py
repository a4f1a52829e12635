"""Parses arguments: instants, durations, headers. An error names what is allowed."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, tzinfo

import typer

UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000),
}

REACHED = {"stored": ("stored",), "delivered": ("delivered", "settled"), "settled": ("settled",)}
"""The fates that count as reached, by the value of `--wait`."""

_PART = rf"(\d+(?:\.\d+)?)\s*({'|'.join(sorted(UNITS, key=len, reverse=True))})(?![a-z])"
_TOKEN = re.compile(r"wk_[0-9A-Za-z]+_\S+")
_DURATION = re.compile(rf"(?:{_PART}\s*)+")


def duration(text: str) -> int:
    """Return milliseconds from `500ms`, `90s`, `1h30m`, `2d`, `10 minutes`.

    Examples
    --------
    >>> duration("1h30m")
    5400000
    """
    if not _DURATION.fullmatch(text.strip()):
        raise typer.BadParameter(f"{text!r} is no duration; write 500ms, 90s, 1h30m or 2d")
    return round(sum(float(number) * UNITS[unit] for number, unit in re.findall(_PART, text)))


def instant(text: str, now_ms: int | None = None, zone: tzinfo | None = None) -> int:
    """Return Unix milliseconds from `now`, `in 10m`, `2h ago`, an ISO date or time, or a number.

    A time without a zone is local, or of `zone`.

    Examples
    --------
    >>> instant("in 10m", now_ms=0)
    600000
    >>> instant("1970-01-01T00:00:01", zone=UTC)
    1000
    """
    words, now = text.strip(), time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if words.isdecimal():
        return int(words)
    if words == "now":
        return now
    if words.startswith("in "):
        return now + duration(words[3:])
    if words.endswith(" ago"):
        return now - duration(words[:-4])
    try:
        moment = datetime.fromisoformat(words)
        moment = moment.replace(tzinfo=zone) if zone is not None and moment.tzinfo is None else moment
        return round(moment.astimezone().timestamp() * 1_000)
    except ValueError:
        allowed = "'in 10m', '2h ago', 'now', 2027-01-31T12:00, or Unix milliseconds"
        raise typer.BadParameter(f"{text!r} is no time; write {allowed}") from None


def utc(text: str) -> int:
    """Return an instant of a pipeline, in UTC, so that it is the same on every machine."""
    return instant(text, zone=UTC)


def pairs(given: list[str] | None, option: str = "--header") -> dict[str, str] | None:
    """Parse several `name=value`, by name."""
    found: dict[str, str] = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{text!r} is no header; write name=value", param_hint=option)
        found[name] = value
    return found or None


def checked_key(text: str) -> str:
    """Return the key of a message; refuse an API key, which is a secret, since many can read messages."""
    if _TOKEN.fullmatch(text):
        raise typer.BadParameter("this looks like an API key, which goes before the command: wherry --api-key …")
    return text


def given(**fields: object) -> dict[str, object]:
    """Return the fields that were given."""
    return {name: value for name, value in fields.items() if value is not None}


def require_any(wanted: dict[str, object]) -> None:
    """Raise if no field was given."""
    if not wanted:
        raise typer.BadParameter("nothing to change was given")
