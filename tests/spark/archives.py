"""What the tests of archives share: messages, options, and rows and sums of a log and of an archive."""

import json

import pyarrow as pa

from wherry.model.calls.log import LOGGED
from wherry.spark.pipelines.archive import (
    files as archive_files,
)
from wherry.spark.pipelines.archive import (
    manifest,
    manifest_sums,
)
from wherry.spark.pipelines.archive.archive import ArchiveOptions
from wherry.spark.pipelines.archive.manifest_store import store

SMALL = ArchiveOptions(rows_per_task=150, wave=2, grace_s=0, orphan_s=0, consume=True)
UNDER_WAY = ArchiveOptions(rows_per_task=150, wave=2, grace_s=0, consume=True)
"""Nothing is kept for readers; but what another job wrote is its own."""


def texts(first, count):
    return [f"m{n}".encode() for n in range(first, first + count)]


def keys(count):
    return [f"k{n % 11}" for n in range(count)]


def log_of(broker, topic):
    """Return rows and sum of all that is in the log."""
    rows = sums = 0
    for ticket in broker.link.parts({"topic": topic}):
        for batch in broker.link.read(json.loads(ticket)):
            rows, sums = rows + batch.num_rows, manifest_sums.added(sums, manifest_sums.total(batch))
    return rows, sums


def archive_of(topic, folder):
    """Return rows and sum of all that the files of the manifest have."""
    here = store(str(folder)).under(manifest.folder(topic))
    rows = sums = 0
    for file in manifest.need(here, topic).files:
        for batch in archive_files.read(here, file):
            rows, sums = rows + batch.num_rows, manifest_sums.added(sums, manifest_sums.total(batch))
    return rows, sums


def rows_of(first, count):
    rows = range(first, first + count)
    return pa.RecordBatch.from_pylist(
        [{"offset": n, "priority": 1, "published": n, "payload": b"x", "partition": 0} for n in rows], schema=LOGGED
    )
