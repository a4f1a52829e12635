"""The data source, with a sink that fails where a test wants it to; importable by the workers of Spark.

A file in the folder named by `FAULTS_OF_TESTS` names the place; the first task that comes there removes the file and
fails.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from wherry.spark.source import DefaultSource
from wherry.spark.write.sink import BatchWriter, StreamWriter

POINTS = ("write-before", "write-middle", "write-after", "write-killed", "commit-before", "commit-after")
VARIABLE = "FAULTS_OF_TESTS"


def plan(point: str) -> None:
    """Fail there, once."""
    assert point in POINTS
    (Path(os.environ[VARIABLE]) / point).touch()


def planned(point: str) -> bool:
    return (Path(os.environ[VARIABLE]) / point).exists()


def here(point: str) -> None:
    try:
        (Path(os.environ[VARIABLE]) / point).unlink()
    except FileNotFoundError:
        return
    if point == "write-killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError(f"planned: {point}")


def _breaking(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in iterator:
        half = max(1, batch.num_rows // 2)
        yield batch.slice(0, half)
        here("write-middle")
        here("write-killed")
        yield batch.slice(half)


class FaultyBatchWriter(BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        here("write-before")
        message = super().write(_breaking(iterator))
        here("write-after")
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        here("commit-before")
        super().commit(messages)
        here("commit-after")


class FaultyStreamWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        here("write-before")
        message = super().write(_breaking(iterator))
        here("write-after")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        here("commit-before")
        super().commit(messages, batchId)
        here("commit-after")


class FaultySource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FaultyBatchWriter(self._writable(schema, overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return FaultyStreamWriter(self._writable(schema, overwrite), schema)
