"""The options of a load that a condition allows: which messages the broker need not send, since none of them can match.

This decides from the condition alone. The options may let too much through, since Spark evaluates the condition on
each row that is read, and must never leave out a message for which it is true. A part of a condition that is not
understood here narrows nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from wherry.model import check, limits
from wherry.model.calls.where import KEYS_MAX
from wherry.model.errors import InvalidInput
from wherry.spark.ranges import NumberRange

NUMBERS = {"partition": limits.OFFSET_MAX, "offset": limits.OFFSET_MAX, "priority": limits.PRIORITY_MAX}
"""Columns of whole numbers, with the largest value that an option takes."""
TIME = "published"
INTEGERS = ("bigint", "int")
MEMBERS = ("In", "InSet")
FLIPPED = {
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "EqualTo": "EqualTo",
    "EqualNullSafe": "EqualNullSafe",
}
"""Comparisons, with the one that means the same when the two sides are exchanged."""


class Condition(NamedTuple):
    """An expression of Spark: the name of its class, its children, and the value and type of a literal or column."""

    kind: str
    children: tuple[Condition, ...] = ()
    value: object = None
    type: str = ""


class Narrowing(NamedTuple):
    """What holds for each message that matches; columns that are not named may have any value."""

    ranges: dict[str, NumberRange]
    keys: frozenset[str] | None = None

    def both(self, other: Narrowing) -> Narrowing:
        """Return what holds for messages that match two conditions."""
        names = self.ranges | other.ranges
        ranges = {
            name: self.ranges.get(name, NumberRange()).both(other.ranges.get(name, NumberRange())) for name in names
        }
        if self.keys is None or other.keys is None:
            return Narrowing(ranges, other.keys if self.keys is None else self.keys)
        return Narrowing(ranges, self.keys & other.keys or self.keys)  # no key at all is not an option: keep some

    def either(self, other: Narrowing) -> Narrowing:
        """Return what holds for messages that match one of two conditions."""
        ranges = {name: mine.either(other.ranges[name]) for name, mine in self.ranges.items() if name in other.ranges}
        return Narrowing(ranges, None if self.keys is None or other.keys is None else self.keys | other.keys)

    def options(self) -> dict[str, str]:
        """Return the options of a load with at least these messages."""
        options: dict[str, str] = {}
        for name, most in NUMBERS.items():
            found = self.ranges.get(name, NumberRange())
            options |= _bound(f"{name}Min", found.low, most) | _bound(f"{name}Max", found.high, most)
        time = self.ranges.get(TIME, NumberRange())  # microseconds; the options have milliseconds, the end not included
        from_ms = None if time.low is None else time.low // 1_000
        for option in ("publishedFrom", "startingTime"):  # the broker begins at the first message from then on
            options |= _bound(option, from_ms, limits.TIME_MS_MAX)
        options |= _bound("publishedTo", None if time.high is None else time.high // 1_000 + 1, limits.TIME_MS_MAX)
        if self.keys is not None and len(self.keys) <= KEYS_MAX and all(map(_is_key, self.keys)):
            options["keys"] = msgspec.json.encode(sorted(self.keys)).decode()
        return options


def narrowed(condition: Condition) -> Narrowing:
    """Return what holds for each message for which a condition is true.

    Examples
    --------
    >>> offset, ten = Condition("AttributeReference", value="offset"), Condition("Literal", (), 10, "bigint")
    >>> narrowed(Condition("LessThan", (offset, ten))).options()
    {'offsetMax': '9'}
    """
    if condition.kind in ("And", "Or"):
        left, right = (narrowed(child) for child in condition.children)
        return left.both(right) if condition.kind == "And" else left.either(right)
    if condition.kind in MEMBERS:
        column, *listed = condition.children
        return _members(column, listed)
    if condition.kind in FLIPPED:
        left_side, right_side = condition.children
        if left_side.kind == "Literal":
            return _compared(FLIPPED[condition.kind], right_side, left_side)
        return _compared(condition.kind, left_side, right_side)
    return Narrowing({})


def _members(column: Condition, listed: list[Condition]) -> Narrowing:
    """Return what holds where a column is one of the listed values; a null among them is equal to nothing."""
    found = [_compared("EqualTo", column, each) for each in listed if each.kind != "Literal" or each.value is not None]
    if not found:
        return Narrowing({})
    whole = found[0]
    for each in found[1:]:
        whole = whole.either(each)
    return whole


def _compared(kind: str, column: Condition, literal: Condition) -> Narrowing:
    """Return what holds where a column is less than, equal to or greater than a literal."""
    name, value = column.value, literal.value
    if column.kind != "AttributeReference" or literal.kind != "Literal" or not isinstance(name, str):
        return Narrowing({})
    if name == "key":
        same = kind.startswith("Equal") and literal.type == "string" and isinstance(value, str)
        return Narrowing({}, frozenset([str(value)])) if same else Narrowing({})
    fits = literal.type in INTEGERS if name in NUMBERS else name == TIME and literal.type == "timestamp"
    if not fits or not isinstance(value, int) or isinstance(value, bool):
        return Narrowing({})
    ranges = {
        "LessThan": NumberRange(high=value - 1),
        "LessThanOrEqual": NumberRange(high=value),
        "GreaterThan": NumberRange(low=value + 1),
        "GreaterThanOrEqual": NumberRange(low=value),
    }
    return Narrowing({name: ranges.get(kind, NumberRange(value, value))})


def _bound(option: str, value: int | None, most: int) -> dict[str, str]:
    """Return an option; a bound that the option cannot have is moved to the nearest one that it can."""
    return {} if value is None else {option: str(min(max(value, 0), most))}


def _is_key(text: str) -> bool:
    try:
        check.text("keys", text)
    except InvalidInput:
        return False
    return True
