"""Payloads as values of an Arrow type: JSON by msgspec, and text. A bad row has no value, and the reason in `error`."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Annotated, Any, Literal, Required, TypedDict

import msgspec
import pyarrow as pa

from wherry.model.errors import InvalidInput
from wherry.spark.columns.values import Columns, texts, values_of

Payload = Literal["bytes", "text", "json"]
PAYLOADS = ("bytes", "text", "json")

_PLAIN: dict[pa.DataType, Any] = {
    pa.string(): str,
    pa.bool_(): bool,
    pa.float32(): float,
    pa.float64(): float,
    pa.binary(): bytes,
    pa.date32(): datetime.date,
}


def value_type(payload: Payload, schema: pa.Schema | pa.DataType | None) -> pa.DataType | None:
    """Return the type of the column `value`; None for payloads that stay bytes."""
    if payload not in PAYLOADS:
        raise InvalidInput("payload", payload, "one of " + ", ".join(PAYLOADS))
    if payload != "json":
        if schema is not None:
            raise InvalidInput("payload_schema", schema, "nothing, unless payload is 'json'")
        return pa.string() if payload == "text" else None
    if isinstance(schema, pa.Schema):
        schema = pa.struct(list(schema))
    if not isinstance(schema, pa.DataType):
        raise InvalidInput("payload_schema", schema, "the fields of the JSON: a pyarrow.schema, or a type of pyarrow")
    json_type(schema)
    return schema


def decoder(payload: Payload, wanted: pa.DataType) -> Callable[[pa.Array], Columns]:
    """Return the function that decodes a column of payloads into values and errors."""
    if payload == "text":
        return texts
    read = msgspec.json.Decoder(json_type(wanted)).decode
    return lambda payloads: values_of(read, payloads, wanted)


def json_type(kind: pa.DataType, *, nullable: bool = True) -> Any:
    """Return the type that msgspec has to expect; null and a missing field are errors only where Arrow has not null."""
    found = _json_type(kind)
    return found | None if nullable else found


def _json_type(kind: pa.DataType) -> Any:  # noqa: PLR0911 - a table of kinds; an earlier one wins
    if pa.types.is_struct(kind):
        fields = {field.name: json_type(field.type, nullable=field.nullable) for field in kind}
        needed = {field.name: Required[fields[field.name]] for field in kind if not field.nullable}
        return TypedDict("Fields", fields | needed, total=False)  # type: ignore[operator]
    if pa.types.is_list(kind):
        return list[json_type(kind.value_type, nullable=kind.value_field.nullable)]  # type: ignore[misc]
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return dict[str, json_type(kind.item_type, nullable=kind.item_field.nullable)]  # type: ignore[misc]
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        low, bits = (-(1 << kind.bit_width - 1), kind.bit_width - 1) if signed else (0, kind.bit_width)
        return Annotated[int, msgspec.Meta(ge=low, le=min((1 << bits) - 1, (1 << 63) - 1))]
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    if pa.types.is_timestamp(kind):
        return Annotated[datetime.datetime, msgspec.Meta(tz=kind.tz is not None)]
    if kind not in _PLAIN:
        raise InvalidInput("payload_schema", str(kind), "types that JSON can have")
    return _PLAIN[kind]
