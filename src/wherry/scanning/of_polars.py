"""Reads what a Polars predicate says about offsets, partitions, times, priorities and keys. Pure.

Polars serializes an expression as JSON, in a form that it may change between versions: what is not exactly of a known
form skips nothing. Polars itself applies the predicate to every row that is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from wherry.model.calls.narrowing import FLIPPED, compared, one_of
from wherry.scanning.alternatives import ANYTHING, Alternatives, all_hold, one_holds

if TYPE_CHECKING:
    import polars as pl

_SIGNS = {"Eq": "==", "EqValidity": "==", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_JOINS: dict[str, Callable[[Alternatives, Alternatives], Alternatives]] = {
    "And": all_hold,
    "LogicalAnd": all_hold,
    "Or": one_holds,
    "LogicalOr": one_holds,
}
_NANOSECONDS = {"Nanoseconds": 1, "Microseconds": 1_000, "Milliseconds": 1_000_000}


class _Value(NamedTuple):
    """A literal: a text, or a number by the whole numbers around it; times in microseconds."""

    low: object
    high: object = None


def narrowing(predicate: pl.Expr) -> Alternatives:
    """Return where the rows can be that a predicate selects."""
    try:
        tree = msgspec.json.decode(predicate.meta.serialize(format="json"))
        return _of(tree)
    except Exception:  # noqa: BLE001, RUF100 - a Polars with another form of expressions: then nothing is skipped
        return ANYTHING


def _of(node: Any) -> Alternatives:
    kind, body = _only(node)
    if kind == "BinaryExpr":
        left, sign, right = body["left"], body["op"], body["right"]
        if sign in _JOINS:
            return _JOINS[sign](_of(left), _of(right))
        return _compared(left, _SIGNS.get(sign, ""), right)
    if kind == "Function":
        return _function(body["function"], body["input"])
    return ANYTHING


def _only(node: Any) -> tuple[str, Any]:
    """Return the kind of a node and what it holds; an empty kind for any other value."""
    if isinstance(node, dict) and len(node) == 1:
        return next(iter(node.items()))
    return "", None


def _compared(left: Any, sign: str, right: Any) -> Alternatives:
    if _only(left)[0] == "Literal":
        left, sign, right = right, FLIPPED.get(sign, ""), left
    column, value = _only(left), _value(right)
    if column[0] != "Column" or value is None:
        return ANYTHING
    return (compared(column[1], sign, *value),)


def _function(function: Any, given: list[Any]) -> Alternatives:
    kind, boolean = _only(function)
    name, options = _only(boolean)
    column = _only(given[0])
    if kind != "Boolean" or column[0] != "Column":
        return ANYTHING
    if name == "IsBetween":
        return all_hold(_compared(given[0], ">=", given[1]), _compared(given[0], "<=", given[2]))
    if name == "IsIn" and column[1] != "published":  # the unit of times in a list may be another one
        values = _list(given[1])
        if values is None or (options.get("nulls_equal", True) and None in values):
            return ANYTHING
        return (one_of(column[1], [value for value in values if value is not None]),)
    return ANYTHING


def _scalar(node: Any) -> tuple[str, Any]:
    """Return the type and the value of a literal; a literal of a plan has one, that of an expression may be open."""
    kind, literal = _only(node)
    inner, scalar = _only(literal)
    return _only(scalar) if kind == "Literal" and inner in ("Scalar", "Dyn") else ("", None)


def _value(node: Any) -> _Value | None:
    kind, value = _scalar(node)
    if kind in ("String", "Str", "Int") or kind.removeprefix("U").removeprefix("Int").isdecimal():
        return _Value(value)
    if kind == "Datetime":
        number, unit, _ = value
        whole, rest = divmod(number * _NANOSECONDS[unit], 1_000)
        return _Value(whole, whole + 1 if rest else whole)
    return None


def _list(node: Any) -> list[Any] | None:
    """Return the values of a literal list, which is a stream of Arrow."""
    kind, value = _scalar(node)
    if kind != "List":
        return None
    with pa.ipc.open_stream(bytes(value)) as stream:
        return stream.read_all().column(0).to_pylist()
