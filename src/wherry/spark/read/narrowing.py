"""The options of a load that a condition allows: which messages the broker need not send, since none of them can match.

This decides from the condition alone. The options may let too much through, since Spark evaluates the condition on
each row that is read, and must never leave out a message for which it is true. A part of a condition that is not
understood here narrows nothing.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import msgspec

from wherry.model import check, limits
from wherry.model.calls.narrowing import EVERYTHING, FLIPPED, WHOLE, Interval, Narrowing, both, compared, either
from wherry.model.calls.where import KEYS_MAX
from wherry.model.errors import InvalidInput

NUMBERS = {"partition": limits.OFFSET_MAX, "offset": limits.OFFSET_MAX, "priority": limits.PRIORITY_MAX}
"""Columns of whole numbers, with the largest value that an option takes."""
NO_MESSAGES = {"offsetMin": "1", "offsetMax": "0"}
INTEGERS = ("bigint", "int")
MEMBERS = ("In", "InSet")
SIGNS = {
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "EqualTo": "==",
    "EqualNullSafe": "==",
}
"""Comparisons of Spark. `<=>` with a null narrows nothing, since a null is no value of any of the columns."""


class Condition(NamedTuple):
    """An expression of Spark: the name of its class, its children, and the value and type of a literal or column."""

    kind: str
    children: tuple[Condition, ...] = ()
    value: object = None
    type: str = ""


def narrowed(condition: Condition) -> Narrowing:
    """Return where the messages can be for which a condition is true.

    Examples
    --------
    >>> offset, ten = Condition("AttributeReference", value="offset"), Condition("Literal", (), 10, "bigint")
    >>> narrowed(Condition("LessThan", (offset, ten))).offset.high
    9
    """
    if condition.kind in ("And", "Or"):
        left, right = (narrowed(child) for child in condition.children)
        return both(left, right) if condition.kind == "And" else either(left, right)
    if condition.kind in MEMBERS:
        column, *listed = condition.children
        return _members(column, listed)
    if condition.kind in SIGNS:
        sign, (one, other) = SIGNS[condition.kind], condition.children
        return _compared(FLIPPED[sign], other, one) if one.kind == "Literal" else _compared(sign, one, other)
    return EVERYTHING


def options_of(narrowing: Narrowing) -> dict[str, str]:
    """Return the options of a load with at least the messages of a narrowing.

    Examples
    --------
    >>> options_of(Narrowing(offset=Interval(high=9), key=("ann", "bob")))
    {'offsetMax': '9', 'keys': '["ann","bob"]'}
    """
    options: dict[str, str] = {}
    for name, most in NUMBERS.items():
        found: Interval = getattr(narrowing, name)
        options |= _bound(f"{name}Min", found.low, most) | _bound(f"{name}Max", found.high, most)
    from_us, to_us = narrowing.published  # the options have milliseconds, and their end is not included
    for option in ("publishedFrom", "startingTime"):  # the broker begins at the first message from then on
        options |= _bound(option, _scaled(from_us, 0), limits.TIME_MS_MAX)
    options |= _bound("publishedTo", _scaled(to_us, 1), limits.TIME_MS_MAX)
    keys = narrowing.key
    if keys == ():
        options |= NO_MESSAGES  # an empty list is no option
    elif keys is not None and len(keys) <= KEYS_MAX and all(map(_is_key, keys)):
        options["keys"] = msgspec.json.encode(keys).decode()
    return options


def _members(column: Condition, listed: list[Condition]) -> Narrowing:
    """Return what holds where a column is one of the listed values; a null among them is equal to nothing."""
    found = [_compared("==", column, each) for each in listed if each.kind != "Literal" or each.value is not None]
    return reduce(either, found) if found else EVERYTHING


def _compared(sign: str, column: Condition, literal: Condition) -> Narrowing:
    """Return what holds where a column is less than, equal to or greater than a literal."""
    name, value = column.value, literal.value
    if column.kind != "AttributeReference" or literal.kind != "Literal" or not isinstance(name, str):
        return EVERYTHING
    types = {"key": ("string",), "published": ("timestamp",)}.get(name, INTEGERS)
    return compared(name, sign, value) if literal.type in types else EVERYTHING


def _scaled(time_us: int, more: int) -> int:
    """Return a time in milliseconds, and `more` of them; a bound that is none stays one."""
    return time_us if time_us in WHOLE else time_us // 1_000 + more


def _bound(option: str, value: int, most: int) -> dict[str, str]:
    """Return an option, none for a bound that is none; one that the option cannot have is moved to the nearest."""
    return {} if value in WHOLE else {option: str(min(max(value, 0), most))}


def _is_key(text: str) -> bool:
    try:
        check.text("keys", text)
    except InvalidInput:
        return False
    return True
