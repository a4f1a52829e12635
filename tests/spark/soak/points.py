"""The data source with points at which something may happen; importable by the workers of Spark.

A task that comes to a point reports this to the soak test and waits for its answer: to continue, by then perhaps
without a broker or a driver, or to die.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from wherry.spark.options.options import Options
from wherry.spark.options.parsing import parse
from wherry.spark.read.stream import StreamReader
from wherry.spark.source import DefaultSource
from wherry.spark.write.sink import StreamWriter

OPTION = "points"
DIE = "die"
ANSWER_S = 120


def here(address: str, point: str) -> None:
    """Report that a point is reached, and wait for the answer. The address is `host:port/query`."""
    place, _, query = address.partition("/")
    host, _, port = place.partition(":")
    with socket.create_connection((host, int(port)), ANSWER_S) as line, line.makefile("rw") as words:
        words.write(f"{query} {point}\n")
        words.flush()
        answer = words.readline().strip()
    if answer == DIE:
        os.kill(os.getpid(), signal.SIGKILL)


def halves(batches: Iterator[pa.RecordBatch], between: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows; something happens once, in the middle of the first batch."""
    first = True
    for batch in batches:
        half = batch.num_rows // 2 if first else 0
        if half:
            yield batch.slice(0, half)
        if first and batch.num_rows:
            between()
            first = False
        yield batch.slice(half)


def passing(address: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step before Spark's own sink, that has the points of a write."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        here(address, "write-before")
        yield from halves(batches, lambda: here(address, "write-middle"))
        here(address, "write-after")

    return step


class PointsReader(StreamReader):
    def __init__(self, address: str, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._address = address

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        parts = super().partitions(start, end)
        here(self._address, "plan")
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        here(self._address, "read-before")
        yield from halves(super().read(partition), lambda: here(self._address, "read-middle"))
        here(self._address, "read-after")


class PointsWriter(StreamWriter):
    def __init__(self, address: str, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._address = address

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        here(self._address, "write-before")
        message = super().write(halves(iterator, lambda: here(self._address, "write-middle")))
        here(self._address, "write-after")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        here(self._address, "commit-before")
        super().commit(messages, batchId)
        here(self._address, "commit-after")


class PointsSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "points"

    def _parsed(self, schema: StructType | None = None, *, is_write: bool = False) -> Options:
        given = {name: value for name, value in self.options.items() if name.lower() != OPTION}
        return parse(given, is_write=is_write)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return PointsReader(self.options[OPTION], self._parsed(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return PointsWriter(self.options[OPTION], self._writable(schema, overwrite), schema)
