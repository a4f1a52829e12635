"""Writes, exactly once: each task puts its rows aside, and one action of the broker makes all of them visible.

A stage has a key that no other attempt of the task has, so that an attempt that was lost leaves nothing that counts.
The commit has a key that every repeat of the job has: the query and the micro-batch. What was committed stays so: to
commit it again is a success that does nothing, and to abort afterwards finds no stages.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from wherry.model.errors import InvalidInput, WherryError
from wherry.spark.link import link
from wherry.spark.options import Options

_TEXT, _INTEGER = (StringType,), (ShortType, IntegerType, LongType)
_TIME = (TimestampType, TimestampNTZType, LongType)
TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "id": _TEXT,
    "key": _TEXT,
    "priority": _INTEGER,
    "due": _TIME,
    "expires": _TIME,
    "headers": (MapType,),
    "payload": (BinaryType, StringType),
    "value": _TEXT,
}
LEFT = frozenset({"topic", "partition", "offset", "published"})
"""Columns of a read that a write takes no notice of, so that rows can be passed on as they are."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task tells the driver: the key of the commit, and its stage if it had rows."""

    key: str
    stage: str | None
    rows: int = 0


def columns(schema: StructType) -> list[str]:
    """The columns to send; `InvalidInput` for one that a message does not have."""
    wanted = []
    for field in schema:
        kinds = TAKEN.get(field.name)
        if kinds is None and field.name not in LEFT:
            raise InvalidInput("column", field.name, "some of " + ", ".join(TAKEN) + "; drop the others")
        if kinds is not None and not isinstance(field.dataType, kinds):
            given = f"{field.name} {field.dataType.simpleString()}"
            raise InvalidInput("column", given, " or ".join(kind.typeName() for kind in kinds))
        if kinds is not None:
            wanted.append(field.name)
    if ("payload" in wanted) == ("value" in wanted):
        raise InvalidInput("column", schema.names, "a payload (binary or text) or a value (text), one of the two")
    return wanted


def publishable(batch: pa.RecordBatch, wanted: Sequence[str]) -> pa.RecordBatch:
    """The columns of a message."""
    arrays = {("payload" if name == "value" else name): batch.column(name) for name in wanted}
    if pa.types.is_string(arrays["payload"].type):
        arrays["payload"] = arrays["payload"].cast(pa.binary())
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


class _Sink:
    """What batch and stream writers share."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._topic = options, options.one_topic()
        self._columns = columns(schema)

    def _stage(self, key: str, attempt: str, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Put rows aside, unless what they belong to is committed already."""
        broker, stage = link(self._options), f"{key}/{attempt}"
        batches = (publishable(batch, self._columns) for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None or broker.action("committed", {"key": key})["placed"] is not None:
            return Staged(key, None)
        try:
            rows = broker.put({"topic": self._topic, "stage": stage}, first.schema, chain([first], batches))
        except BaseException:
            with suppress(WherryError):  # it would expire by itself
                broker._replace(retry_s=0).action("abort", {"key": stage})
            raise
        return Staged(key, stage, rows)

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = _of(messages)
        for key in dict.fromkeys(each.key for each in staged):
            stages = [each.stage for each in staged if each.key == key and each.stage is not None]
            if stages:  # else there were no rows, or they were committed before
                link(self._options).action("commit", {"key": key, "stages": stages})

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        for each in _of(messages):
            if each.stage is not None:
                link(self._options).action("abort", {"key": each.stage})


class BatchWriter(_Sink, DataSourceArrowWriter):
    """Writes one job. Without a `commitKey` it is once for this run of the job; with one, for ever."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._key = f"spark/{options.commit_key}" if options.commit_key else f"spark/job/{secrets.token_hex(16)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(self._key, _attempt(TaskContext.get()), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes micro-batches. The query's id, which its checkpoint keeps, and the number of the batch say which one."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return self._stage(f"spark/{query}/{batch}", _attempt(context), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(messages)


def _attempt(context: TaskContext | None) -> str:
    """A name that no other attempt has: numbers of attempts begin anew with a stage of Spark, and with a driver."""
    assert context is not None
    run = context.getLocalProperty("spark.jobGroup.id") or "-"
    where = f"{context.partitionId()}/{run}/{context.attemptNumber()}"
    return f"{where}/{secrets.token_hex(4)}"


def _of(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [each for each in messages if isinstance(each, Staged)]
