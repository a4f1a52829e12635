"""Reads what a filter of Arrow, as DuckDB gives it, says about offsets, partitions, times, priorities and keys. Pure.

pyarrow has no way to look into an expression. But it can write one, to send it to another process: as a record batch
with the literals, and a list of steps in the metadata of its schema, such as `call greater`, `field_ref offset`,
`literal 0`, `end greater`. The list is read by Arrow's C data interface, since a dict of metadata keeps only the first
of equal keys. Steps that are not exactly of a known form skip nothing. The filter itself is applied by Arrow to every
row read.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wherry.model.calls.narrowing import FLIPPED, compared, one_of
from wherry.scanning.alternatives import ANYTHING, NOTHING, Alternatives, all_hold, one_holds

Step = tuple[str, str]

_SIGNS = {"equal": "==", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
_JOINS: dict[str, Callable[[Alternatives, Alternatives], Alternatives]] = {
    "and": all_hold,
    "and_kleene": all_hold,
    "or": one_holds,
    "or_kleene": one_holds,
}
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_POINTER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_MATCH = 0
"""The value of `null_matching_behavior` with which a null matches a null of the set."""


def narrowing(expression: pc.Expression) -> Alternatives:
    """Return where the rows can be that a filter selects."""
    try:
        _, (buffer,) = expression.__reduce__()
        batch = pa.ipc.open_file(buffer).get_batch(0)
        return _of(_parsed(_steps(batch.schema)[::-1], batch))
    except Exception:  # noqa: BLE001, RUF100 - a pyarrow that writes expressions in another form: nothing is skipped
        return ANYTHING


def columns(expression: pc.Expression) -> list[str]:
    """Return the columns that a filter looks at; none if that cannot be read."""
    try:
        _, (buffer,) = expression.__reduce__()
        steps = _steps(pa.ipc.open_file(buffer).get_batch(0).schema)
    except Exception:  # noqa: BLE001, RUF100 - as above
        return []
    if any(kind not in ("call", "field_ref", "literal", "options", "end") for kind, _ in steps):
        return []
    return list(dict.fromkeys(value for kind, value in steps if kind == "field_ref"))


class _ArrowSchema(ctypes.Structure):
    """The beginning of `ArrowSchema` in the C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _steps(schema: pa.Schema) -> list[Step]:
    """Return the metadata of a schema with all entries, in order."""
    capsule = schema.__arrow_c_schema__()  # owns the memory that is read below
    at = _ArrowSchema.from_address(_POINTER(capsule, b"arrow_schema")).metadata

    def number() -> int:
        nonlocal at
        (found,) = struct.unpack("=i", ctypes.string_at(at, 4))
        at += 4
        return int(found)

    def text() -> str:
        nonlocal at
        size = number()
        found = ctypes.string_at(at, size).decode()
        at += size
        return found

    return [(text(), text()) for _ in range(number())]


class _Call:
    """A function and its arguments; each is a call, `("field", name)` or `("literal", scalar)`."""

    def __init__(self, name: str) -> None:
        self.name, self.given, self.options = name, list[Any](), dict[str, Any]()


def _parsed(steps: list[Step], batch: pa.RecordBatch) -> Any:
    """Return the expression that the next steps describe, and take them: `steps` has the next one last."""
    kind, value = steps.pop()
    if kind == "field_ref":
        return "field", value
    if kind == "literal":
        return "literal", batch.column(int(value))[0]
    if kind != "call":
        raise ValueError(kind)
    call = _Call(value)
    while steps[-1][0] not in ("options", "end"):
        call.given.append(_parsed(steps, batch))
    if steps[-1][0] == "options":
        call.options = dict(batch.column(int(steps.pop()[1]))[0].items())
    if steps.pop() != ("end", call.name):
        raise ValueError(call.name)
    return call


def _of(node: Any) -> Alternatives:
    if not isinstance(node, _Call):
        return NOTHING if _is_never(node) else ANYTHING
    given = node.given
    if node.name in _JOINS and len(given) == 2:
        return _JOINS[node.name](_of(given[0]), _of(given[1]))
    if node.name in _SIGNS and len(given) == 2:
        return _compared(given[0], _SIGNS[node.name], given[1])
    if node.name == "if_else" and len(given) == 3:
        return one_holds(_of(given[1]), _of(given[2]))
    if node.name == "is_in" and len(given) == 1:
        return _in(given[0], node.options)
    return ANYTHING


def _is_never(node: Any) -> bool:
    """Return whether a node is the literal null or false, which selects no row."""
    return node[0] == "literal" and pa.types.is_boolean(node[1].type) and not node[1].as_py()


def _compared(left: Any, sign: str, right: Any) -> Alternatives:
    if not isinstance(left, _Call) and left[0] == "literal":
        left, sign, right = right, FLIPPED[sign], left
    if isinstance(left, _Call) or isinstance(right, _Call) or (left[0], right[0]) != ("field", "literal"):
        return ANYTHING
    return (compared(left[1], sign, *_value(right[1])),)


def _value(scalar: pa.Scalar) -> tuple[object, object]:
    """Return the whole numbers around a literal, times in microseconds; a text twice."""
    kind = scalar.type
    if pa.types.is_timestamp(kind) and scalar.is_valid:
        whole, rest = divmod(scalar.value * _NANOSECONDS[kind.unit], 1_000)
        return whole, whole + 1 if rest else whole
    if pa.types.is_integer(kind) or pa.types.is_string(kind):
        return scalar.as_py(), scalar.as_py()
    return None, None


def _in(field: Any, options: dict[str, Any]) -> Alternatives:
    if isinstance(field, _Call) or field[0] != "field" or field[1] == "published":
        return ANYTHING
    values = options["value_set"].as_py()
    if None in values and options["null_matching_behavior"].as_py() == _MATCH:
        return ANYTHING
    return (one_of(field[1], [value for value in values if value is not None]),)
