"""Columns for Spark: the strict cast, and what a load may ask for."""

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from wherry.model.calls.log import LOGGED
from wherry.model.errors import InvalidInput
from wherry.spark.columns.schema import DEAD, MESSAGES, TABLES, Caster, arrow_schema, checked, schema_of, value_type
from wherry.spark.options.parsing import parse
from wherry.spark.read.reading import columns

TEXT = parse({"topic": "t", "payload": "text"})
PLAIN = parse({"topic": "t"})


def rows(count):
    message = {"offset": 0, "id": None, "key": "k", "priority": 7, "published": 5, "payload": b"p", "partition": 3}
    listed = [{**message, "offset": n, "headers": [("a", "b")], "due": 1_500 if n % 2 else None} for n in range(count)]
    return pa.RecordBatch.from_pylist(listed, schema=LOGGED)


def test_a_batch_of_the_log_is_cast_to_exactly_the_schema_of_spark():
    made = Caster(MESSAGES, {"topic": "t", "partition": 3}).cast(rows(4))
    assert made.schema.equals(arrow_schema(MESSAGES))
    made.validate(full=True)
    assert made.column("topic").to_pylist() == ["t"] * 4
    assert made.column("partition").to_pylist() == [3] * 4
    assert made.column("due").cast(pa.int64()).to_pylist() == [None, 1_500_000, None, 1_500_000]
    assert made.column("expires").null_count == 4


def test_some_columns_in_another_order():
    schema = StructType([MESSAGES["payload"], MESSAGES["topic"], MESSAGES["offset"]])
    assert columns(checked(schema, PLAIN), PLAIN) == ["offset", "payload"]
    made = Caster(schema, {"topic": "t", "partition": 0}).cast(rows(2))
    assert made.to_pydict() == {"payload": [b"p"] * 2, "topic": ["t"] * 2, "offset": [0, 1]}


def test_a_column_that_spark_wants_to_be_never_null():
    schema = StructType([StructField("offset", LongType(), nullable=False)])
    assert Caster(schema).cast(rows(1)).schema.equals(arrow_schema(schema))


def test_dictionaries_and_large_types_are_undone():
    schema = StructType([MESSAGES["key"], MESSAGES["id"]])
    key = pa.array(["a", "b", "a"]).dictionary_encode()
    batch = pa.record_batch({"id": pa.array(["x", "y", None], pa.large_string()), "key": key})
    assert Caster(schema).cast(batch).to_pydict() == {"key": ["a", "b", "a"], "id": ["x", "y", None]}


def test_columns_that_are_not_there_or_of_another_type():
    with pytest.raises(InvalidInput, match="some of topic, partition"):
        checked(StructType([StructField("colour", StringType())]), PLAIN)
    with pytest.raises(InvalidInput, match="offset int"):
        checked(StructType([StructField("offset", IntegerType())]), PLAIN)
    with pytest.raises(InvalidInput, match="'value'"):
        checked(StructType([StructField("value", StringType())]), PLAIN)
    assert checked(StructType([StructField("value", StringType())]), TEXT).names == ["value"]


def test_the_schema_of_a_load_that_names_none():
    for table, schema in TABLES.items():
        assert schema_of(parse({"topic": "t", "table": table})) == schema
    text = schema_of(TEXT)
    assert isinstance(text, StructType)
    assert text.names == [*MESSAGES.names, "value", "error"]
    json = schema_of(parse({"topic": "t", "payload": "json", "payloadSchema": "a INT, b STRING"}))
    assert str(json).endswith("payload binary, value struct<a INT, b STRING>, error string")
    with pytest.raises(InvalidInput, match="payloadSchema"):
        schema_of(parse({"topic": "t", "payload": "json"}))
    assert DEAD.names[-3:] == ["first_failed", "last_failed", "died"]


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("a INT", "struct<a INT>"),
        ("`odd name` INT, b: STRING", "struct<`odd name` INT, b: STRING>"),
        ("array<struct<a:int>>", "array<struct<a:int>>"),
        ("struct<a: int>", "struct<a: int>"),
        ("decimal(10, 2)", "decimal(10, 2)"),
        ("bigint", "bigint"),
    ],
)
def test_a_list_of_columns_is_a_struct(ddl, kind):
    assert value_type(ddl) == kind


def test_decoding_reads_the_payload_whether_it_is_wanted_or_not():
    assert columns(StructType([StructField("value", StringType())]), PLAIN) == ["offset", "payload"]
