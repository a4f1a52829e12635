"""Checks of single values at the public edge: each failure names the field, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Collection

from wherry.model.errors import InvalidInput


def integer(field: str, value: object, low: int, high: int) -> int:
    """An int in `low..high`, both ends included; True is not a number."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(field, value, f"a whole number from {low} to {high}")
    return value


def number(field: str, value: object, low: float, high: float) -> float:
    """An int or float in `low..high`, both ends included; NaN is in no range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidInput(field, value, f"a number from {low} to {high}")
    return float(value)


def optional_integer(field: str, value: object, low: int, high: int) -> int | None:
    """None, or an int in `low..high`."""
    return None if value is None else integer(field, value, low, high)


def flag(field: str, value: object) -> bool:
    """True or False, not something that merely looks like it."""
    if not isinstance(value, bool):
        raise InvalidInput(field, value, "True or False")
    return value


def one_of(field: str, value: object, allowed: Collection[str]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidInput(field, value, "one of " + ", ".join(allowed))
    return value


def name(field: str, value: object, bytes_max: int) -> str:
    """A name that fits `bytes_max` UTF-8 bytes and has no control characters."""
    allowed = f"text of 1 to {bytes_max} UTF-8 bytes without control characters"
    if not isinstance(value, str) or not value:
        raise InvalidInput(field, value, allowed)
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(field, value, allowed) from None
    if length > bytes_max or any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise InvalidInput(field, value, allowed)
    return value


def text(field: str, value: object) -> str:
    """Any text that can be stored: lone surrogates cannot."""
    if not isinstance(value, str):
        raise InvalidInput(field, value, "text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field, value, "text that is valid Unicode") from None
    return value


def graphic(field: str, value: object, chars_max: int) -> str:
    """An identifier of visible characters: no spaces, no control characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= chars_max or not value.isprintable() or " " in value:
        raise InvalidInput(field, value, f"1 to {chars_max} graphic characters (no spaces)")
    return value
