"""Writes, exactly once: each task stages its rows, and one action of the broker makes all of them visible.

The key of a stage belongs to one attempt of a task, so the rows of a lost attempt are never committed. The key of the
commit is the same in every repeat of the job: the query and the micro-batch. A second commit under it succeeds and does
nothing, and an abort after the commit finds no stages. Keys that begin with `spark/` are shared by all API keys,
because a query may continue, or a job run again, under another API key.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
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

from wherry.client.link.backoff import Backoff
from wherry.model.errors import AlreadyExists, InvalidInput, LimitReached, WherryError
from wherry.spark.columns import kafka_columns
from wherry.spark.link import link
from wherry.spark.options.options import Options
from wherry.spark.pipelines.archive import manifest_sums
from wherry.spark.write import routes
from wherry.spark.write.reuse import content, report_reuse

_TEXT, _INTEGER = (StringType,), (ShortType, IntegerType, LongType)
_TIME = (TimestampType, TimestampNTZType, LongType)
TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "id": _TEXT,
    "key": (StringType, BinaryType),
    "priority": _INTEGER,
    "due": _TIME,
    "expires": _TIME,
    "headers": (MapType, ArrayType),
    "payload": (BinaryType, StringType),
    "value": (StringType, BinaryType),
}
LEFT = frozenset({"topic", "partition", "offset", "published", "timestamp", "timestampType"})
"""Columns of a read that a write ignores, so that rows can be written as they were read."""

ROUTES: dict[str, tuple[type[DataType], ...]] = {"topic": _TEXT, "partition": _INTEGER}
"""Columns that say where a row goes."""
ANY = "*"
"""What stands for a topic in the key of a commit, where the rows name their topics."""

FULL = ("bytes of open stages is full", "open stages is full")
"""How the texts of limits begin that have room again when other clients commit."""

KEPT_BYTES_MAX = 64 << 20
"""The most that a task keeps of its rows to stage them again; a task with more fails where there is no room."""


@dataclass(frozen=True)
class StagedWrite(WriterCommitMessage):
    """What a task returns to the driver: the key of the commit, its stage if it had rows, and the number of rows.

    `late` means that the task staged nothing because the key was committed before; then `contents` is a sum over the
    rows. `counted` is false where it does not matter whether the key was used: such a late task has no rows here.
    """

    key: str
    stage: str | None
    rows: int = 0
    late: bool = False
    counted: bool = False
    contents: int | None = None


def columns(schema: StructType) -> list[str]:
    """Return the columns to send; raise `InvalidInput` for one that a message does not have."""
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


def _routes(options: Options, schema: StructType) -> list[str]:
    """Return the columns that say where each row goes: a topic where no option names one, and a partition.

    Rows with an offset were read from a topic, and their partition is that of the place where they were.
    """
    found = [] if options.topics else ["topic"]
    if "topic" in found and "topic" not in schema.names:
        raise InvalidInput("topic", None, "the option topic, or a column topic in the rows")
    if "partition" in schema.names and "offset" not in schema.names:
        found.append("partition")
    for name in found:
        if not isinstance(schema[name].dataType, ROUTES[name]):
            given = f"{name} {schema[name].dataType.simpleString()}"
            raise InvalidInput("column", given, " or ".join(kind.typeName() for kind in ROUTES[name]))
    return found


def publishable(batch: pa.RecordBatch, wanted: Sequence[str]) -> pa.RecordBatch:
    """Return a batch with the columns of a message, and those that say where it goes."""
    arrays = {("payload" if name == "value" else name): batch.column(name) for name in wanted}
    if pa.types.is_string(arrays["payload"].type):
        arrays["payload"] = arrays["payload"].cast(pa.binary())
    if "key" in arrays and pa.types.is_binary(arrays["key"].type):
        try:
            arrays["key"] = arrays["key"].cast(pa.string())
        except pa.ArrowInvalid:
            raise InvalidInput("key", None, "keys that are UTF-8 text") from None
    if "headers" in arrays and pa.types.is_list(arrays["headers"].type):
        arrays["headers"] = kafka_columns.mapped(arrays["headers"])
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


class _Sent:
    """The batches of a task, which can be iterated again as long as they are small enough to be kept."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._left, self._kept = batches, list(islice(batches, 1))
        self._bytes = sum(batch.nbytes for batch in self._kept)
        self.schema: pa.Schema | None = self._kept[0].schema if self._kept else None

    @property
    def is_kept(self) -> bool:
        return self._bytes <= KEPT_BYTES_MAX

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._kept
        for batch in self._left:
            self._bytes += batch.nbytes
            if self.is_kept:
                self._kept.append(batch)
            else:
                self._kept.clear()
            yield batch


class _StagingWriter:
    """What batch and stream writers share."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._routes = options, _routes(options, schema)
        self._topic = options.one_topic() if "topic" not in self._routes else None
        self._columns = [*columns(schema), *self._routes]

    def _stage(
        self, key: str, attempt: str, iterator: Iterator[pa.RecordBatch], *, counted: bool = False
    ) -> StagedWrite:
        """Stage rows, unless their commit key is committed already; then only count them, if asked to.

        While stages of other clients leave no room, try again, each time from the first row and in a new stage.
        """
        sent = _Sent(publishable(batch, self._columns) for batch in iterator if batch.num_rows)
        if sent.schema is None:
            return StagedWrite(key, None)
        if self._was_committed(key):
            return _late(key, sent) if counted else StagedWrite(key, None, late=True)
        until, backoff = time.monotonic() + self._options.retry_s, Backoff()
        while True:
            stage = f"{key}/{attempt}/{secrets.token_hex(4)}"
            try:
                rows = self._put(stage, sent.schema, iter(sent))
                return StagedWrite(key, stage, rows, counted=counted)
            except LimitReached as fault:
                pause_s = backoff.next_s()
                if not str(fault).startswith(FULL) or not sent.is_kept or time.monotonic() + pause_s > until:
                    raise
            time.sleep(pause_s)

    def _put(self, stage: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
        broker = link(self._options)
        try:
            if not self._routes:
                return broker.put({"topic": self._topic, "stage": stage}, schema, batches)
            found = routes.puts(batches, self._topic)
            return sum(broker.put({**to, "stage": stage}, parts[0].schema, iter(parts)) for to, parts in found)
        except BaseException:
            with suppress(WherryError):  # the stage would expire by itself
                broker._replace(retry_s=0).action("abort", {"key": stage})
            raise

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> int | None:
        """Make the stages visible, and return how many rows their keys have; None if there were no stages."""
        staged, rows = _of(messages), None
        for key in dict.fromkeys(each.key for each in staged):
            stages = [each.stage for each in staged if each.key == key and each.stage is not None]
            if stages:  # otherwise there were no rows, or an earlier run committed them
                placed = link(self._options).action("commit", {"key": key, "stages": stages})["placed"]
                self._check_placed(key, placed)
                rows = (rows or 0) + sum(count for *_, count in placed)
        return rows

    def _was_committed(self, key: str) -> bool:
        placed = link(self._options).action("committed", {"key": key})["placed"]
        self._check_placed(key, placed or ())
        return placed is not None

    def _check_placed(self, key: str, placed: Sequence[tuple[str, int, int, int]]) -> None:
        """Raise if another topic was committed under the key: this write would do nothing, and its rows be lost."""
        if self._topic is None:  # the rows say where they go
            return
        for topic in {topic for topic, *_ in placed} - {self._topic, ""}:  # empty: the topic was deleted
            raise AlreadyExists(
                "commit key", key, f"it was committed to topic {topic!r}, now it is for {self._topic!r}"
            )

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        for each in _of(messages):
            if each.stage is not None:
                link(self._options).action("abort", {"key": each.stage})


class BatchWriter(_StagingWriter, DataSourceArrowWriter):
    """Writes one job: once for each run, or with a `commitKey` once for ever in this topic."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._given = options.commit_key
        topic = (self._topic or ANY).replace("%", "%25").replace("/", "%2F")
        self._key = (
            f"spark/key/{topic}/{options.commit_key}" if options.commit_key else f"spark/{secrets.token_hex(16)}"
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        counted = self._given is not None and not _is_repeat(self._given, _batch_number(context))
        return self._stage(self._key, _attempt(context), iterator, counted=counted)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        placed = self._commit(messages)
        found = [each for each in _of(messages) if each.counted]
        rows = sum(each.rows for each in found)
        is_used = any(each.late for each in found) or placed not in (None, rows)  # perhaps by a job beside this one
        if self._given is not None and rows and is_used:
            sums = [each.contents for each in found if each.contents is not None]
            contents = manifest_sums.added(*sums) if len(sums) == len(found) else None
            report_reuse(link(self._options), self._given, self._key, rows, contents)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(_StagingWriter, DataSourceStreamArrowWriter):
    """Writes micro-batches, each once: by the id of the query, which its checkpoint keeps, and the batch's number."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = _batch_number(context)
        return self._stage(f"spark/{query}/{batch}", _attempt(context), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(messages)


def _late(key: str, batches: Iterable[pa.RecordBatch]) -> StagedWrite:
    """Return how many rows a task has that another job was faster with, and the sum over them."""
    rows = contents = 0
    for batch in batches:
        rows, contents = rows + batch.num_rows, manifest_sums.added(contents, content(batch))
    return StagedWrite(key, None, rows, late=True, counted=True, contents=contents)


def _attempt(context: TaskContext | None) -> str:
    """Return a text for this attempt of a task. Attempt numbers start again in each Spark stage and each driver."""
    assert context is not None
    run = context.getLocalProperty("spark.jobGroup.id") or "-"
    return f"{context.partitionId()}/{run}/{context.attemptNumber()}"


def _batch_number(context: TaskContext | None) -> str | None:
    """Return the number of the micro-batch that a task belongs to, also within `foreachBatch`; None for other jobs."""
    return None if context is None else context.getLocalProperty("streaming.sql.batchId")


def _is_repeat(commit_key: str, batch: str | None) -> bool:
    """Return whether a used commit key only means that Spark repeats a micro-batch: its number is in the key.

    Examples
    --------
    >>> _is_repeat("orders batch 17", "17"), _is_repeat("orders batch 117", "17"), _is_repeat("nightly", None)
    (True, False, False)
    """
    return batch is not None and batch in re.findall(r"\d+", commit_key)


def _of(messages: Sequence[WriterCommitMessage | None]) -> list[StagedWrite]:
    return [each for each in messages if isinstance(each, StagedWrite)]
