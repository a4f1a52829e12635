"""What people type, read: instants, durations, headers. Wrong input is told with what would be right."""

from __future__ import annotations

import re
import time
from datetime import datetime

import typer

UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

REACHED = {"stored": ("stored",), "delivered": ("delivered", "settled"), "settled": ("settled",)}
"""The fates of those that got as far as somebody waits for."""

_PART = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)"
_TOKEN = re.compile(r"wk_[0-9A-Za-z]+_\S+")
_DURATION = re.compile(rf"(?:{_PART}\s*)+")


def duration(text: str) -> int:
    """Milliseconds from `500ms`, `90s`, `1h30m`, `2d`.

    Examples
    --------
    >>> duration("1h30m")
    5400000
    """
    if not _DURATION.fullmatch(text.strip()):
        raise typer.BadParameter(f"{text!r} is no duration; write 500ms, 90s, 1h30m or 2d")
    return round(sum(float(number) * UNITS[unit] for number, unit in re.findall(_PART, text)))


def instant(text: str, now_ms: int | None = None) -> int:
    """Unix milliseconds from `now`, `in 10m`, `2h ago`, an ISO date or time (local unless it says), or a number.

    Examples
    --------
    >>> instant("in 10m", now_ms=0)
    600000
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
        return round(datetime.fromisoformat(words).astimezone().timestamp() * 1_000)
    except ValueError:
        allowed = "'in 10m', '2h ago', 'now', 2027-01-31T12:00, or Unix milliseconds"
        raise typer.BadParameter(f"{text!r} is no time; write {allowed}") from None


def pairs(given: list[str] | None, option: str = "--header") -> dict[str, str] | None:
    """`name=value`, several of them, by name."""
    found: dict[str, str] = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{text!r} is no header; write name=value", param_hint=option)
        found[name] = value
    return found or None


def message_key(text: str) -> str:
    """What a message is ordered by. An API key is a secret, and messages are read by many."""
    if _TOKEN.fullmatch(text):
        raise typer.BadParameter("this looks like an API key, which goes before the command: wherry --api-key …")
    return text


def given(**fields: object) -> dict[str, object]:
    """The fields that somebody gave."""
    return {name: value for name, value in fields.items() if value is not None}


def something(wanted: dict[str, object]) -> None:
    """Wrong usage if nobody gave anything."""
    if not wanted:
        raise typer.BadParameter("nothing to change was given")
