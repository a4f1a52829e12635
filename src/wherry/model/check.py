"""Checks of single values that callers give: each error names the field, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from wherry.model import limits
from wherry.model.errors import InvalidInput


def integer(field: str, value: object, low: int, high: int) -> int:
    """Return an int in `low..high`, both ends included; True is not accepted as a number."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(field, value, f"a whole number from {low} to {high}")
    return value


def number(field: str, value: object, low: float, high: float) -> float:
    """Return an int or float in `low..high`, both ends included; NaN is in no range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidInput(field, value, f"a number from {low} to {high}")
    return float(value)


def optional_integer(field: str, value: object, low: int, high: int) -> int | None:
    """Return None, or an int in `low..high`."""
    return None if value is None else integer(field, value, low, high)


def whole_numbers(field: str, value: object, allowed: str) -> npt.NDArray[np.int64]:
    """Return a flat, non-empty list or array of whole numbers, sorted and without repeats. Booleans are refused."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise InvalidInput(field, value, allowed) from None
    fits = array.ndim == 1 and len(array) > 0 and array.dtype.kind in "iu"
    if not fits or (array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max):
        raise InvalidInput(field, value, allowed)
    return np.unique(array.astype(np.int64))


def flag(field: str, value: object) -> bool:
    """Return True or False; other values that only count as true or false are refused."""
    if not isinstance(value, bool):
        raise InvalidInput(field, value, "True or False")
    return value


def one_of(field: str, value: object, allowed: Collection[str]) -> str:
    """Return a text that is one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidInput(field, value, "one of " + ", ".join(allowed))
    return value


def name(field: str, value: object, bytes_max: int) -> str:
    """Return a name of at most `bytes_max` UTF-8 bytes without control characters."""
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
    """Return any text that can be stored: lone surrogates cannot."""
    if not isinstance(value, str):
        raise InvalidInput(field, value, "text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field, value, "text that is valid Unicode") from None
    return value


def graphic(field: str, value: object, chars_max: int) -> str:
    """Return an identifier of visible characters: no spaces, no control characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= chars_max or not value.isprintable() or " " in value:
        raise InvalidInput(field, value, f"1 to {chars_max} graphic characters (no spaces)")
    return value


def labels(field: str, value: object) -> None:
    """Check a dict of text to text, of bounded size."""
    if not isinstance(value, dict):
        raise InvalidInput(field, value, "a dict of text to text")
    headers(field, value)
    size = sum(len(each.encode("utf-8", "surrogatepass")) for pair in value.items() for each in pair)
    if size > limits.LABELS_BYTES_MAX:
        raise InvalidInput(field, f"{size} bytes", f"at most {limits.LABELS_BYTES_MAX} bytes of names and values")


def headers(field: str, value: object) -> None:
    """Check None, or a dict of text to text."""
    if value is None:
        return
    if not isinstance(value, dict) or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise InvalidInput(field, value, "a dict of text to text")
