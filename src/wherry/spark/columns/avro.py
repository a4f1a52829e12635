"""Avro: its schemas as Spark types, and payloads read by fastavro, which is an extra of its own."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import types as spark

from wherry.model.errors import InvalidInput

ALLOWED = "an Avro schema as JSON"

MAGIC = b"\0"
FRAME_BYTES = 5
"""The length of a frame of Confluent's serializers: the zero byte, and the id of the writer's schema."""

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
    fastavro, schema = _fastavro(), _checked("payloadSchema", text)

    def read(payload: bytes) -> Any:
        try:
            return _whole(fastavro, payload, 0, schema, None)
        except Exception as fault:
            if payload[:1] == MAGIC and len(payload) >= FRAME_BYTES:
                hint = f"it begins like one of schema id {_id(payload)} of a registry: payload=confluent reads these"
                raise ValueError(f"{fault}; {hint}") from None
            raise

    return read


def framed_reader(text: str, writers: str) -> Callable[[bytes], Any]:
    """Return a function that reads one payload behind the id of the schema that it was written with.

    This is the frame of Confluent's serializers: a zero byte, four bytes of the id, and the value. `writers` is a JSON
    object of schemas by id; values are read as the schema `text`, by Avro's rules for older and newer writers.
    """
    fastavro, wanted = _fastavro(), _checked("payloadSchema", text)
    try:
        given = msgspec.json.decode(writers, type=dict[int, Any])
    except msgspec.MsgspecError:
        raise InvalidInput("writerSchemas", writers, 'Avro schemas by their ids, as {"7": {…}}') from None
    schemas = {number: _checked("writerSchemas", msgspec.json.encode(each).decode()) for number, each in given.items()}

    def read(payload: bytes) -> Any:
        if payload[:1] != MAGIC or len(payload) < FRAME_BYTES:
            raise ValueError("no frame: a zero byte and four bytes of a schema id are expected before the value")
        number = _id(payload)
        if number not in schemas:
            raise ValueError(f"schema id {number} is not in writerSchemas, which has {sorted(schemas)}")
        return _whole(fastavro, payload, FRAME_BYTES, schemas[number], wanted)

    return read


def _id(payload: bytes) -> int:
    return int.from_bytes(payload[1:FRAME_BYTES], "big")


def _whole(fastavro: Any, payload: bytes, at: int, writer: Any, wanted: Any) -> Any:
    """Return the value of a payload from a place on, and raise if there are bytes left over."""
    stream = io.BytesIO(payload)
    stream.seek(at)
    value = fastavro.schemaless_reader(stream, writer, wanted)
    left = len(payload) - stream.tell()
    if left:
        raise ValueError(f"{left} bytes are left over")
    return value


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - an extra, which only reads of Avro need
    except ImportError:
        raise InvalidInput("payload", "avro", "what is installed; pip install 'wherry[avro]' brings Avro") from None
    return fastavro


def _checked(field: str, text: str) -> Any:
    fastavro = _fastavro()
    try:
        return fastavro.parse_schema(_parsed(text))
    except (fastavro.schema.SchemaParseException, KeyError, TypeError) as fault:
        raise InvalidInput(field, text, f"{ALLOWED} ({fault})") from None
