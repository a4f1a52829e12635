"""Batch reads. The broker resolves the range once, when Spark plans the load; the range does not change afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from wherry.model.calls.narrowing import WHOLE
from wherry.spark.columns.schema import checked
from wherry.spark.link import FlightLink, link
from wherry.spark.options.options import EARLIEST, LATEST, LogPoint, Options
from wherry.spark.read import reading
from wherry.spark.read.due import DueBetween, now_ms
from wherry.spark.read.reading import ReadTask
from wherry.spark.read.topics import resolve, topics_of


class BatchReader(DataSourceReader):
    """Reads a range of topics, several tasks for each partition."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, checked(schema, options)

    def partitions(self) -> Sequence[InputPartition]:
        options, broker = self._options, link(self._options)
        tasks: list[InputPartition] = []
        due = DueBetween(until_ms=now_ms()) if options.due_only else None
        topics = topics_of(broker, options)
        options.check_points(topics)
        for topic in topics:
            body = reading.ask(options, self._schema, topic, strict=options.fail_on_data_loss, timed=options.due_only)
            range_ = {"start": _point(broker, topic, options.start), "stop": _point(broker, topic, options.stop)}
            command = {**body, **range_, "rows_per_endpoint": options.rows_per_task}
            tickets = broker.parts(command)
            if options.fail_on_data_loss and _is_queue(broker, topic):
                tickets = [_lenient(ticket) for ticket in tickets]
            tasks += [ReadTask(kept, due) for ticket in tickets if (kept := _clipped(ticket, options)) is not None]
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ReadTask):  # Spark sends a partition of its own if the reader returned none
            return iter(())
        return reading.read(self._options, self._schema, partition)


def _point(broker: FlightLink, topic: str, point: LogPoint) -> object:
    """Return a point of a topic for Flight, with an offset in the place of -1 and -2, Kafka's numbers for words."""
    given = (point.offsets or {}).get(topic, {})
    if not any(offset < 0 for offset in given.values()):
        return point.of(topic)
    there = broker.action("extents", {"topic": topic})
    words = {EARLIEST: there["start"], LATEST: there["stop"]}
    return {"offsets": {str(n): words.get(offset, {}).get(str(n), offset) for n, offset in given.items()}}


def _clipped(ticket: bytes, options: Options) -> bytes | None:
    """Return the part of a ticket within the partitions and offsets of the load; None if it has none."""
    if options.partitions == options.offsets == WHOLE:
        return ticket
    body = msgspec.json.decode(ticket)
    number = body.get("partition", 0)
    chosen = options.partitions.clip(number, number + 1)
    start, stop = options.offsets.clip(body.get("start", 0), body["stop"])
    if chosen != (number, number + 1) or start >= stop:
        return None
    return msgspec.json.encode({**body, "start": start, "stop": stop})


def _is_queue(broker: FlightLink, topic: str) -> bool:
    """Return whether the topic deletes messages once they are settled."""
    return bool(broker.action("extents", {"topic": topic}).get("keep") == "settled")


def _lenient(ticket: bytes) -> bytes:
    """Return a ticket that skips messages which a consumer settles between planning and reading.

    A queue is read while its consumers work, so a settled message is no data loss.
    """
    return msgspec.json.encode({**msgspec.json.decode(ticket), "strict": False})


class TableReader(DataSourceReader):
    """Reads one of the other tables: dead letters, subscriptions or topics."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, checked(schema, options)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if not options.topics and options.table != "dead":
            return [_table_task(options.table, None)]
        topics = resolve(link(options), options.topics or ("*",))
        return [_table_task(options.table, topic) for topic in topics]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ReadTask):
            return iter(())
        return reading.read(self._options, self._schema, partition)


def _table_task(table: str, topic: str | None) -> ReadTask:
    return ReadTask(msgspec.json.encode({"table": table} if topic is None else {"table": table, "topic": topic}))
