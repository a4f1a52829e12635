"""Columns for Spark: their names and types, and the strict cast of the batches that Flight returns.

Spark accepts an Arrow batch only with exactly the types, order and nullability of its schema: it refuses unsigned
numbers, other time units and reordered columns. So every batch is cast to the schema of the load, column by column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from wherry.model.errors import InvalidInput
from wherry.model.schema import nulls
from wherry.spark.columns import kafka_columns
from wherry.spark.columns.avro import spark_type
from wherry.spark.options.options import Options

TEXT, LONG, TIME = StringType(), LongType(), TimestampType()


def _struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


MESSAGES = _struct(
    topic=TEXT,
    partition=IntegerType(),
    offset=LONG,
    id=TEXT,
    key=TEXT,
    priority=IntegerType(),
    due=TIME,
    expires=TIME,
    published=TIME,
    headers=MapType(TEXT, TEXT),
    payload=BinaryType(),
)
DEAD = StructType(
    [
        *MESSAGES.fields,
        *_struct(
            subscription=TEXT, reason=TEXT, error=TEXT, attempts=LONG, first_failed=TIME, last_failed=TIME, died=TIME
        ).fields,
    ]
)
SUBSCRIPTIONS = StructType(
    [
        *_struct(topic=TEXT, name=TEXT, durable=BooleanType()).fields,
        *(StructField(name, LONG) for name in ["consumers", "ready", "leased", "scheduled", "dead", "lag", "lag_ms"]),
    ]
)
TOPICS = StructType(
    [
        *_struct(name=TEXT, order=TEXT).fields,
        *(StructField(name, LONG) for name in ["partitions", "messages", "bytes", "dead", "published"]),
    ]
)
TABLES = {"messages": MESSAGES, "dead": DEAD, "subscriptions": SUBSCRIPTIONS, "topics": TOPICS}

DECODED = ("value", "error")
"""The columns that decoding adds: the value, and the reason where there is none."""

_OPTIONS = "options of wherry: "
_COLUMN_LIST = re.compile(r"\s*(`[^`]+`|\w+)\s*[:\s]\s*\w")


def columns_of(options: Options) -> StructType:
    """Return the columns of a load without those that decoding adds."""
    return kafka_columns.columns(headers=options.kafka_headers) if options.like_kafka else TABLES[options.table]


def schema_of(options: Options) -> StructType | str:
    """Return the columns of a load that names none."""
    columns = columns_of(options)
    if options.payload == "bytes":
        return columns
    if options.payload == "text":
        return StructType([*columns.fields, StructField("value", TEXT), StructField("error", TEXT)])
    if options.payload in ("avro", "confluent"):
        value = spark_type(options.payload_schema or "")
        return StructType([*columns.fields, StructField("value", value), StructField("error", TEXT)])
    if options.payload_schema is None:
        raise InvalidInput("payloadSchema", None, "the columns of the JSON, as 'name STRING, amount DOUBLE'")
    listed = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in columns)
    return f"{listed}, value {value_type(options.payload_schema)}, error string"


def remembering(schema: StructType | str, options: Mapping[str, str]) -> StructType | str:
    """Return a schema that carries the options of a table, as the comment of its first column.

    Spark's catalog keeps the schema and the options of a table, but passes only the schema to a reader or writer.
    """
    if not options:
        return schema
    comment = _OPTIONS + msgspec.json.encode(dict(options)).decode()
    if isinstance(schema, str):
        first, _, others = schema.partition(", ")
        quoted = comment.replace("\\", "\\\\").replace("'", "\\'")
        return f"{first} COMMENT '{quoted}', {others}"
    begin, *rest = schema.fields
    return StructType([StructField(begin.name, begin.dataType, begin.nullable, {"comment": comment}), *rest])


def remembered(schema: StructType) -> dict[str, str]:
    """Return the options that a schema carries."""
    for field in schema:
        comment = (field.metadata or {}).get("comment", "")
        if comment.startswith(_OPTIONS):
            return msgspec.json.decode(comment.removeprefix(_OPTIONS), type=dict[str, str])
    return {}


def as_written(schema: StructType) -> StructType:
    """Return the columns of a write; in a table of decoded payloads, those that decoding adds are not written."""
    if remembered(schema).get("payload", "bytes") == "bytes":
        return schema
    return StructType([field for field in schema if field.name not in DECODED])


def value_type(ddl: str) -> str:
    """Return a type in Spark's notation: a list of columns becomes a struct.

    Examples
    --------
    >>> value_type("name STRING, amount DOUBLE")
    'struct<name STRING, amount DOUBLE>'
    >>> value_type("array<int>")
    'array<int>'
    """
    return f"struct<{ddl}>" if _COLUMN_LIST.match(ddl) else ddl


def checked(schema: StructType, options: Options) -> StructType:
    """Return the schema of a load if it has known columns with their types, in any order; raise otherwise."""
    known = {field.name: field.dataType for field in columns_of(options)}
    if options.payload != "bytes":
        known |= {"value": value_of(schema, options), "error": TEXT}
    if options.payload == "json" and "error" in schema.names and "value" not in schema.names:
        raise InvalidInput("schema", "error", "error with value: the type of value decides what is an error")
    for field in schema:
        if field.name not in known:
            raise InvalidInput("schema", field.name, "some of " + ", ".join(known))
        if field.dataType != known[field.name]:
            given = f"{field.name} {field.dataType.simpleString()}"
            raise InvalidInput("schema", given, f"{field.name} {known[field.name].simpleString()}")
        if not field.nullable:  # one row without a value would fail the query
            raise InvalidInput(
                "schema", f"{field.name} NOT NULL", "columns that may be null, NOT NULL only within value"
            )
    return schema


def value_of(schema: StructType, options: Options) -> DataType:
    """Return the type of decoded values: JSON has the type in the schema, Avro that of its own schema, text is text."""
    if options.payload in ("avro", "confluent"):
        return spark_type(options.payload_schema or "")
    if options.payload == "json" and "value" in schema.names:
        return schema["value"].dataType
    return TEXT


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the one Arrow schema that Spark accepts for its own."""
    return to_arrow_schema(schema, timezone="UTC")


KNOWN_MAX = 64
"""The most columns that a caster keeps; at 10,000 rows each has some tens of kilobytes."""


class Caster:
    """Makes batches of a schema from columns of a batch, constants and computed columns, by name."""

    def __init__(self, schema: StructType, constants: dict[str, object] | None = None) -> None:
        self._schema = arrow_schema(schema)
        self._known: dict[tuple[str, int], pa.Array] = {}
        self._constants = {
            field.name: pa.scalar((constants or {})[field.name], field.type)
            for field in self._schema
            if field.name in (constants or {})
        }

    def cast(self, batch: pa.RecordBatch, made: dict[str, pa.Array] | None = None) -> pa.RecordBatch:
        """Return a batch in the types that Spark accepts."""
        return pa.RecordBatch.from_arrays(
            [self._column(field, batch, made or {}) for field in self._schema], schema=self._schema
        )

    def _column(self, field: pa.Field, batch: pa.RecordBatch, made: dict[str, pa.Array]) -> pa.Array:
        rows = batch.num_rows
        if field.name in self._constants:
            return self._same(field, rows, lambda: pa.repeat(self._constants[field.name], rows))
        column = made[field.name] if field.name in made else batch.column(field.name)
        if column.null_count == rows:
            return self._same(field, rows, lambda: nulls(rows, field.type))
        if column.type == field.type:
            return column
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return column.cast(field.type)

    def _same(self, field: pa.Field, rows: int, make: Callable[[], pa.Array]) -> pa.Array:
        """Return a column that is the same in all batches of a size, made once: most batches have one size."""
        known = self._known.get((field.name, rows))
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[field.name, rows] = make()
        return known
