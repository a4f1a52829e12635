"""Kafka's columns: those of a load with `subscribe` or `subscribePattern`, as Spark's Kafka source has them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from wherry.model.errors import InvalidInput

COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
LOG_APPEND_TIME = 1
"""Kafka's number for a timestamp that the broker gave, as it does here."""

SOURCES = {"key": "key", "value": "payload", "timestamp": "published", "headers": "headers"}
"""The column of the log that each column of Kafka is made of."""


def columns(*, headers: bool) -> StructType:
    """Return the columns of Spark's Kafka source."""
    return StructType([*COLUMNS.fields, HEADERS]) if headers else COLUMNS


def made(batch: pa.RecordBatch, names: list[str]) -> dict[str, pa.Array]:
    """Return the columns with these names, made of a batch of the log."""
    found = {name: batch.column(SOURCES[name]) for name in names if name in SOURCES}
    if "key" in found:
        key = found["key"]
        found["key"] = (key.dictionary_decode() if pa.types.is_dictionary(key.type) else key).cast(pa.binary())
    if "headers" in found:
        found["headers"] = listed(found["headers"])
    return found


def listed(headers: pa.Array) -> pa.Array:
    """Return headers as Kafka's list of pairs."""
    whole = pa.concat_arrays([headers])  # a slice has the children of the whole array
    pairs = pa.StructArray.from_arrays([whole.keys, whole.items.cast(pa.binary())], ["key", "value"])
    return pa.ListArray.from_arrays(whole.offsets, pairs, mask=whole.is_null())


def mapped(headers: pa.Array) -> pa.Array:
    """Return Kafka's list of pairs as headers."""
    whole = pa.concat_arrays([headers])
    try:
        items = whole.values.field("value").cast(pa.string())
    except pa.ArrowInvalid:
        raise InvalidInput("headers", None, "values that are UTF-8 text") from None
    return pa.MapArray.from_arrays(whole.offsets, whole.values.field("key"), items, mask=whole.is_null())
