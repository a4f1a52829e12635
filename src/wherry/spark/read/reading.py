"""The work of a task: read a part of a topic, or a table, as batches in the types that Spark accepts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from wherry.spark.columns import kafka_columns
from wherry.spark.columns.decode import decoder
from wherry.spark.columns.schema import DECODED, Caster, value_of
from wherry.spark.faults import RAISED, error_of
from wherry.spark.link import link
from wherry.spark.options.options import Options
from wherry.spark.read.due import DueBetween

CONSTANT = ("topic", "partition")
"""Columns with the same value in all rows of a task, which the task adds itself instead of reading them."""


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """The work of one task: a Flight ticket, which is JSON."""

    ticket: bytes
    due: DueBetween | None = None
    """Which rows to take of those that the ticket names; None for all."""


def columns(schema: StructType, options: Options) -> list[str]:
    """Return the columns to ask Flight for: always the offset too, since a broken read continues after the last one."""
    if options.like_kafka:
        return ["offset", *(kafka_columns.SOURCES[name] for name in schema.names if name in kafka_columns.SOURCES)]
    wanted = [name for name in schema.names if name not in (*CONSTANT, *DECODED, "offset")]
    if any(name in schema.names for name in DECODED) and "payload" not in wanted:
        wanted.append("payload")
    return ["offset", *wanted]


def ask(options: Options, schema: StructType, topic: str, *, strict: bool, timed: bool = False) -> dict[str, Any]:
    """Return what a ticket or a command holds besides the range."""
    wanted = columns(schema, options)
    if timed and "due" not in wanted:
        wanted.append("due")
    body: dict[str, Any] = {"topic": topic, "columns": wanted, "strict": strict}
    where = msgspec.to_builtins(options.where)
    return {**body, "where": where} if where else body


@cache
def _settle_down() -> None:
    """Exclude all objects that exist when the first task begins from garbage collection.

    Spark collects garbage after each task, through all that was ever imported: a fifth of a worker's time. These
    objects are never freed, so the collector need not visit them again.
    """
    gc.collect()
    gc.freeze()


def read(options: Options, schema: StructType, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Return the batches of one task."""
    _settle_down()
    ticket = msgspec.json.decode(task.ticket)
    if ticket.get("table") is not None:
        return _table(options, schema, ticket)
    return _log(options, schema, ticket, task.due)


def _log(
    options: Options, schema: StructType, ticket: dict[str, Any], due: DueBetween | None
) -> Iterator[pa.RecordBatch]:
    constants = {"topic": ticket["topic"], "partition": ticket.get("partition", 0)}
    if options.like_kafka:
        constants["timestampType"] = kafka_columns.LOG_APPEND_TIME
    caster = Caster(schema, constants)
    decode = None
    if not options.like_kafka and any(name in schema.names for name in DECODED):
        decode = decoder(options, value_of(schema, options))
    for batch in link(options).read(ticket, files=options.local_files):
        made = {}
        if due is not None:
            batch = due.of(batch)  # noqa: PLW2901
        if options.like_kafka:
            made = kafka_columns.made(batch, schema.names)
        elif decode is not None:
            made = dict(zip(DECODED, decode(batch.column("payload")), strict=True))
        yield caster.cast(batch, made)


def _table(options: Options, schema: StructType, ticket: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    constants = {"topic": ticket["topic"]} if ticket["table"] == "dead" else None
    caster = Caster(schema, constants)
    try:
        for batch in link(options).once(ticket):
            yield caster.cast(batch)
    except RAISED as fault:
        raise error_of(fault) from None
