"""Avro: its schemas as Spark types, and payloads read by fastavro, which is an extra of its own."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import types as spark

from wherry.model.errors import InvalidInput

ALLOWED = "an Avro schema as JSON"

_PLAIN: dict[str, type[spark.DataType]] = {
    "null": spark.NullType,
    "boolean": spark.BooleanType,
    "int": spark.IntegerType,
    "long": spark.LongType,
    "float": spark.FloatType,
    "double": spark.DoubleType,
    "bytes": spark.BinaryType,
    "fixed": spark.BinaryType,
    "string": spark.StringType,
    "enum": spark.StringType,
}
_LOGICAL: dict[str, type[spark.DataType]] = {
    "date": spark.DateType,
    "timestamp-millis": spark.TimestampType,
    "timestamp-micros": spark.TimestampType,
    "local-timestamp-millis": spark.TimestampNTZType,
    "local-timestamp-micros": spark.TimestampNTZType,
}
_AS_THEY_LIE = ("uuid", "time-millis", "time-micros")
"""Logical types that a Spark column holds as they are written: text, or milliseconds or microseconds of the day."""


def _parsed(text: str) -> Any:
    try:
        return _plain(msgspec.json.decode(text))
    except msgspec.MsgspecError:
        raise InvalidInput("payloadSchema", text, ALLOWED) from None


def _plain(schema: Any) -> Any:
    """Return the schema without the logical types that Spark has no column for, so that types and values agree."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _plain(value) if isinstance(value, dict | list) and name != "default" else value
        for name, value in schema.items()
        if name != "logicalType" or value not in _AS_THEY_LIE
    }


def spark_type(text: str) -> spark.DataType:
    """Return the Spark type of the values of a schema."""
    try:
        return _spark_type(_parsed(text))
    except (KeyError, TypeError):
        raise InvalidInput("payloadSchema", text, ALLOWED) from None


def _spark_type(schema: Any) -> spark.DataType:  # noqa: PLR0911 - a table of kinds; an earlier one wins
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise InvalidInput("payloadSchema", schema, "unions of one type and null")
        return _spark_type(others[0])
    if isinstance(schema, str):
        schema = {"type": schema}
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, dict | list):
        return _spark_type(kind)
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical in _LOGICAL:
        return _LOGICAL[logical]()
    if logical == "decimal":
        return spark.DecimalType(schema["precision"], schema.get("scale", 0))
    if kind == "record":
        return spark.StructType(
            [spark.StructField(field["name"], _spark_type(field["type"])) for field in schema["fields"]]
        )
    if kind == "array":
        return spark.ArrayType(_spark_type(schema["items"]))
    if kind == "map":
        return spark.MapType(spark.StringType(), _spark_type(schema["values"]))
    if kind in _PLAIN:
        return _PLAIN[kind]()
    raise InvalidInput("payloadSchema", schema, ALLOWED + ", without types that refer to themselves")


def reader(text: str) -> Callable[[bytes], Any]:
    """Return a function that reads one payload and raises if the payload does not fit the schema."""
    try:
        import fastavro  # noqa: PLC0415 - an extra, which only reads of Avro need
    except ImportError:
        raise InvalidInput("payload", "avro", "what is installed; pip install 'wherry[avro]' brings Avro") from None
    try:
        schema = fastavro.parse_schema(_parsed(text))
    except (fastavro.schema.SchemaParseException, KeyError, TypeError) as fault:
        raise InvalidInput("payloadSchema", text, f"{ALLOWED} ({fault})") from None

    def read(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        value = fastavro.schemaless_reader(stream, schema, None)
        left = len(payload) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left over")
        return value

    return read
