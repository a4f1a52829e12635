"""One DataFrame over archive and log: archived rows up to the end of the manifest, rows of the log from there on.

Both ends are fixed when the DataFrame is made: the manifest is read once, and the log is read up to its end at that
time. An archive job may run meanwhile, and the broker may delete rows that are still to be read from the log. A
manifest covers such rows by then: a task that has read its part of the log reads the manifest again, and takes from the
archive what the log no longer had.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import StructType

from wherry.model import check
from wherry.model.errors import InvalidInput
from wherry.spark.columns.schema import MESSAGES, Caster
from wherry.spark.link import FlightLink
from wherry.spark.options.options import RETRY_S, ROWS_PER_TASK, URL
from wherry.spark.pipelines.archive import files as archive_files
from wherry.spark.pipelines.archive import manifest
from wherry.spark.pipelines.archive.manifest import ArchiveFile, Manifest
from wherry.spark.pipelines.archive.manifest_store import Store, store
from wherry.spark.pipelines.archive.tail import UnarchivedRange, tail

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_PATTERN = frozenset("*?[]{}\\")
"""Characters that make Spark read a path as a pattern."""

_ADDED = ("topic", "partition")


def whole(
    spark: SparkSession,
    topic: str,
    *,
    archive: str,
    url: str | None = None,
    key: str | None = None,
    ca: str | None = None,
    columns: Sequence[str] | None = None,
    rows_per_task: int = ROWS_PER_TASK,
) -> DataFrame:
    """Return all rows of a topic since its archive began, each once, as of now.

    Parameters
    ----------
    archive
        The folder or URL that `wherry pipeline archive --to` was given.
    url, key, ca
        The broker's Flight address, the API key, and a file of the certificates to trust; by default
        `WHERRY_FLIGHT_URL`, `WHERRY_KEY` and `WHERRY_CA`.
    columns
        Some of the columns; all by default. Fewer columns are read faster.

    Examples
    --------
    >>> rows = whole(spark, "orders", archive="s3://lake/wherry")  # doctest: +SKIP
    >>> rows.groupBy("key").count().show()  # doctest: +SKIP
    """
    link = _link(url, key, ca)
    here = store(archive).under(manifest.folder(topic))
    # The order matters. A partition that was never archived starts where it started before the manifest was read, and
    # the log that is read last reaches at least as far as the manifest.
    began = link.action("extents", {"topic": topic})["start"]
    found = manifest.need(here, topic)
    extents = link.action("extents", {"topic": topic})
    check.integer("rows_per_task", rows_per_task, 1, 1 << 48)
    spans = []
    for text, stop in extents["stop"].items():
        end = found.end(int(text))
        start = began.get(text, 0) if end is None else end
        if start > stop:
            allowed = f"at least {start} of them, as archived: this is another topic of that name"
            raise InvalidInput(f"topic {topic}", f"offsets of partition {text} up to {stop}", allowed)
        spans += [
            UnarchivedRange(topic, int(text), at, min(at + rows_per_task, stop))
            for at in range(start, stop, rows_per_task)
        ]
    schema = _chosen(columns)
    return _archived(spark, here, found, schema).unionByName(_live(spark, link, here, spans, schema))


def _link(url: str | None, key: str | None, ca: str | None) -> FlightLink:
    environ = os.environ.get
    return FlightLink(
        url or environ("WHERRY_FLIGHT_URL") or URL,
        key or environ("WHERRY_KEY") or None,
        ca or environ("WHERRY_CA") or None,
        RETRY_S,
    )


def archived(
    spark: SparkSession, topic: str, *, archive: str, columns: Sequence[str] | None = None, native: bool | None = None
) -> DataFrame:
    """Return what the archive of a topic has now, without a broker. `native` as for `_archived`."""
    here = store(archive).under(manifest.folder(topic))
    return _archived(spark, here, manifest.need(here, topic), _chosen(columns), native=native)


def _chosen(columns: Sequence[str] | None) -> StructType:
    for name in columns or ():
        if name not in MESSAGES.names:
            raise InvalidInput("columns", name, "some of " + ", ".join(MESSAGES.names))
    return MESSAGES if columns is None else StructType([MESSAGES[name] for name in columns])


def _archived(
    spark: SparkSession, here: Store, found: Manifest, schema: StructType, *, native: bool | None = None
) -> DataFrame:
    """Return the rows of the files: from a disk by Spark's own reader (`native`), which skips columns and row groups.

    From an object store Spark would need its jars, so there tasks read by pyarrow.
    """
    if not found.files:
        return spark.createDataFrame([], schema)
    if native is None:
        native = here.local is not None and not _PATTERN & set(str(here.local))
    if native:
        there = StructType([field for field in schema if field.name != "topic"])
        paths = [f"file://{here.whole(file.path)}" for file in found.files]
        rows = spark.read.schema(there).parquet(*paths)
        topic = functions.lit(found.topic).alias("topic")
        return rows.select(*(topic if name == "topic" else functions.col(name) for name in schema.names))
    names = [name for name in schema.names if name not in _ADDED]

    def read(file: ArchiveFile) -> Iterator[pa.RecordBatch]:
        caster = Caster(schema, {"topic": found.topic, "partition": file.partition})
        for batch in archive_files.read(here, file, ["offset", *(name for name in names if name != "offset")]):
            yield caster.cast(batch)

    return _over(spark, found.files, read, schema)


def _live(
    spark: SparkSession, link: FlightLink, here: Store, spans: Sequence[UnarchivedRange], schema: StructType
) -> DataFrame:
    if not spans:
        return spark.createDataFrame([], schema)
    names = ["offset", *(name for name in schema.names if name not in (*_ADDED, "offset"))]

    def read(span: UnarchivedRange) -> Iterator[pa.RecordBatch]:
        caster = Caster(schema, {"topic": span.topic, "partition": span.partition})
        for batch in tail(link, here, span, names):
            yield caster.cast(batch)

    return _over(spark, spans, read, schema)


def _over(
    spark: SparkSession, tasks: Sequence[T], read: Callable[[T], Iterator[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    """Return a DataFrame of the batches that `read` yields for each of the tasks."""
    given = list(tasks)

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(given[number])

    return spark.range(0, len(given), 1, len(given)).mapInArrow(each, schema)
