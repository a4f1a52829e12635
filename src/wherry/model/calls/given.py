"""Columns that a client may give with messages: which names, which types.

Only plain types are allowed, whose size is what was sent: no dictionaries and no views, where a few bytes can refer to
gigabytes. A delivered batch can be published as it is: the columns that the broker filled in are dropped.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds

from wherry.model.errors import InvalidInput
from wherry.model.schema import IGNORED, MESSAGE

BROKER_COLUMNS = ("blob", "mac")
"""Columns that only the broker fills: they must be null in what a client sends."""

DROPPED = frozenset({*IGNORED, "lease", *BROKER_COLUMNS})
"""Columns that a client may send and that are ignored."""

_TEXT = (pa.string(), pa.large_string())
_BYTES = (pa.binary(), pa.large_binary(), *_TEXT)
_ALLOWED = {
    "id": "text",
    "key": "text",
    "priority": "whole numbers",
    "due": "timestamps, or int64 in Unix milliseconds",
    "expires": "timestamps, or int64 in Unix milliseconds",
    "headers": "a map of text to text",
    "envelope": "bytes",
    "payload": "bytes or text",
}


def taken(schema: pa.Schema) -> list[str]:
    """Return the columns of a schema to use; raise `InvalidInput` for a name or a type that is not allowed.

    Arrow stores names of columns and time zones as bytes; reading one that is not UTF-8 raises.
    """
    try:
        return _taken(schema)
    except UnicodeDecodeError as fault:
        raise InvalidInput("schema", fault.object[:80], "names of columns and zones in UTF-8") from None


def _taken(schema: pa.Schema) -> list[str]:
    names = schema.names
    for name, kind in zip(names, schema.types, strict=True):
        if names.count(name) > 1:
            raise InvalidInput("column", name, "each column once")
        if name not in _ALLOWED and name not in DROPPED:
            raise InvalidInput("column", name, "one of " + ", ".join(_ALLOWED))
        if not _fits(name, kind):
            raise InvalidInput(name, str(kind), _ALLOWED.get(name, "the type that a pull gives"))
    if "payload" not in names:
        raise InvalidInput("column", names, "a batch with a payload column")
    return [name for name in names if name not in DROPPED]


def check_broker_columns(batch: pa.RecordBatch) -> None:
    """Raise `InvalidInput` if a client filled a column that only the broker fills."""
    for name in BROKER_COLUMNS:
        if name in batch.schema.names and batch.column(name).null_count < batch.num_rows:
            raise InvalidInput(name, "a value", "null: the broker fills this column")


def _fits(name: str, kind: pa.DataType) -> bool:
    if name in BROKER_COLUMNS:
        return kind == MESSAGE.field(name).type
    if name in DROPPED:
        return kinds.is_integer(kind) or _is_time(kind)
    if name == "priority":
        return kinds.is_integer(kind)
    if name in ("due", "expires"):
        return _is_time(kind) or kind == pa.int64()
    if name == "headers":
        return kinds.is_map(kind) and kind.key_type in _TEXT and kind.item_type in _TEXT
    return kind in (_BYTES if name in ("payload", "envelope") else _TEXT)


def _is_time(kind: pa.DataType) -> bool:
    """Return whether a type is a timestamp.

    Reading a time zone that is not text raises here, as an error of the schema.
    """
    return kinds.is_timestamp(kind) and (kind.tz or "").isascii()
