"""Payloads as values: what is read, and what is reported of rows that cannot be."""

import datetime
import decimal
import io
import json
import uuid

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from wherry.model.errors import InvalidInput
from wherry.spark.columns.avro import spark_type
from wherry.spark.columns.decode import decoder
from wherry.spark.options.parsing import parse


def read(value, *payloads, **options):
    decode = decoder(parse({"topic": "t", **options}), value)
    values, errors = decode(pa.array(payloads, pa.binary()))
    return values.to_pylist(), errors.to_pylist()


def struct(**fields):
    return spark.StructType([spark.StructField(name, kind) for name, kind in fields.items()])


def test_text():
    assert read(spark.StringType(), b"a", "é".encode(), b"", payload="text") == (["a", "é", ""], [None] * 3)
    values, errors = read(spark.StringType(), b"a", b"\xff", b"c", payload="text")
    assert values == ["a", None, "c"]
    assert errors[0] is errors[2] is None
    assert "UnicodeDecodeError" in errors[1]


def test_json_of_every_type():
    kind = struct(
        text=spark.StringType(),
        flag=spark.BooleanType(),
        small=spark.ByteType(),
        whole=spark.LongType(),
        real=spark.DoubleType(),
        price=spark.DecimalType(10, 2),
        data=spark.BinaryType(),
        day=spark.DateType(),
        moment=spark.TimestampType(),
        many=spark.ArrayType(spark.IntegerType()),
        named=spark.MapType(spark.StringType(), spark.LongType()),
        inner=struct(x=spark.IntegerType()),
        absent=spark.StringType(),
    )
    given = {
        "text": "é", "flag": True, "small": -128, "whole": 2**63 - 1, "real": 1, "price": "12.34", "data": "AQI=",
        "day": "2024-02-29", "moment": "2024-02-29T12:00:00Z", "many": [1, None], "named": {"a": 1},
        "inner": {"x": 5, "unknown": 1}, "unknown": [],
    }  # fmt: skip
    ((value,), errors) = read(kind, json.dumps(given).encode(), payload="json")
    assert errors == [None]
    assert value["moment"] == datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    assert (value["price"], value["data"], value["day"]) == (
        decimal.Decimal("12.34"),
        b"\x01\x02",
        datetime.date(2024, 2, 29),
    )
    assert (value["many"], value["named"], value["inner"], value["absent"]) == ([1, None], [("a", 1)], {"x": 5}, None)
    assert (value["text"], value["flag"], value["small"], value["whole"], value["real"]) == (
        "é",
        True,
        -128,
        2**63 - 1,
        1,
    )


def test_json_that_does_not_fit_is_a_null_and_its_reason():
    kind = struct(n=spark.ByteType(), price=spark.DecimalType(4, 2))
    payloads = [
        b'{"n": 1}',
        b"{bad",
        b'{"n": "1"}',
        b'{"n": 128}',
        b"",
        b"null",
        b'{"n": 1} x',
        b'{"price": "12345.6"}',
    ]
    values, errors = read(kind, *payloads, payload="json")
    assert values == [{"n": 1, "price": None}, *[None] * 7]
    assert [error is None for error in errors] == [True, False, False, False, False, True, False, False]
    assert "Expected `int | null`, got `str` - at `$.n`" in errors[2]


def test_a_field_that_must_be_there_and_is_not_is_an_error_of_its_row():
    inner = spark.StructType([spark.StructField("x", spark.LongType(), nullable=False)])
    fields = [spark.StructField("id", spark.LongType(), nullable=False), spark.StructField("inner", inner)]
    kind = spark.StructType([*fields, spark.StructField("all", spark.ArrayType(spark.LongType(), containsNull=False))])
    payloads = [b'{"id": 1}', b"{}", b'{"id": null}', b'{"id": 1, "inner": {}}', b'{"id": 1, "all": [null]}', b"null"]
    values, errors = read(kind, *payloads, payload="json")
    assert values == [{"id": 1, "inner": None, "all": None}, *[None] * 5]
    assert [error is None for error in errors] == [True, False, False, False, False, True]
    assert "missing required field `id`" in errors[1]


def test_json_that_is_no_object():
    assert read(spark.ArrayType(spark.LongType()), b"[1,2]", payload="json") == ([[1, 2]], [None])
    with pytest.raises(InvalidInput, match="types that JSON can have"):
        read(spark.MapType(spark.LongType(), spark.LongType()), b"{}", payload="json")


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}


def test_avro():
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    row = {"id": 7, "note": None, "at": moment, "tags": ["x"], "kind": "B"}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, AVRO, row)
    good = stream.getvalue()
    schema = json.dumps(AVRO)
    kind = spark_type(schema)
    assert kind.simpleString() == "struct<id:bigint,note:string,at:timestamp,tags:array<string>,kind:string>"
    values, errors = read(kind, good, good[:-2], good + b"!", payload="avro", payloadSchema=schema)
    assert values == [row, None, None]
    assert errors[0] is None
    assert errors[1] is not None
    assert "1 bytes are left over" in errors[2]


def test_avro_of_uuids_and_times_of_the_day():
    fields = {
        "one": {"type": "string", "logicalType": "uuid"},
        "maybe": ["null", {"type": "int", "logicalType": "time-millis"}],
        "many": {"type": "array", "items": {"type": "long", "logicalType": "time-micros"}},
    }
    avro = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    stream, one, noon = io.BytesIO(), uuid.UUID(int=7), datetime.time(12)
    fastavro.schemaless_writer(stream, avro, {"one": one, "maybe": noon, "many": [noon]})
    kind = spark_type(json.dumps(avro))
    assert kind.simpleString() == "struct<one:string,maybe:int,many:array<bigint>>"
    values, errors = read(kind, stream.getvalue(), payload="avro", payloadSchema=json.dumps(avro))
    assert (values, errors) == ([{"one": str(one), "maybe": 43_200_000, "many": [43_200_000_000]}], [None])


@pytest.mark.parametrize("schema", ["{", '["int", "string"]', '{"type": "thing"}', '{"type": "record", "fields": 5}'])
def test_avro_schemas_that_are_none(schema):
    with pytest.raises(InvalidInput, match="payloadSchema"):
        spark_type(schema)
