"""Merges small files of an archive into large ones, and removes files that no commit names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

from wherry.spark.pipelines.archive import files as archive_files
from wherry.spark.pipelines.archive import manifest
from wherry.spark.pipelines.archive import tasks as archive_tasks
from wherry.spark.pipelines.archive.manifest import ArchiveFile, Manifest
from wherry.spark.pipelines.archive.manifest_store import Store
from wherry.spark.pipelines.archive.tasks import ProgressListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = 0.5
"""A file below this share of the target is small."""


MUCH = 4
"""A file this many times larger than the files to merge with it stays, so that a row is rewritten only a few times."""


class Merge(NamedTuple):
    """Files to merge into one."""

    store: Store
    files: list[ArchiveFile]
    target_bytes: int


def groups(files: list[ArchiveFile], target_bytes: int) -> Iterator[list[ArchiveFile]]:
    """Yield groups of small files of one partition and day, in order: as many as fill one file, two at least."""
    small = [file for file in files if file.bytes < target_bytes * SMALL]
    small.sort(key=lambda file: (file.partition, file.date, file.first))
    for _, same in groupby(small, key=lambda file: (file.partition, file.date)):
        group: list[ArchiveFile] = []
        for file in same:
            if group and sum(each.bytes for each in group) + file.bytes > target_bytes:
                yield from _worth(group)
                group = []
            group.append(file)
        yield from _worth(group)


def _worth(group: list[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    """Yield the files of a group that are worth a merge: without a file much larger than all that follow it."""
    while len(group) > 1 and group[0].bytes > MUCH * sum(file.bytes for file in group[1:]):
        group = group[1:]
    if len(group) > 1:
        yield group


def compact(
    spark: SparkSession, store: Store, token: str, target_bytes: int, wave: int, watch: ProgressListener
) -> tuple[Manifest, int]:
    """Merge small files, with a commit for each wave; return the manifest, and by how many the files decreased."""
    found = manifest.need(store, "")
    merges = [Merge(store, group, target_bytes) for group in groups(found.files, target_bytes)]
    fewer = 0
    watch.stage(f"{found.topic}: compact", sum(len(merge.files) for merge in merges))
    for at in range(0, len(merges), wave):
        some = merges[at : at + wave]
        made = archive_tasks.run(spark, merged, some)
        removed = [file for merge in some for file in merge.files]
        files = list(chain.from_iterable(made))
        found = manifest.compact(store, token, removed, files)
        fewer += len(removed) - len(files)
        watch.done(len(removed))
    return found, fewer


def merged(merge: Merge) -> list[ArchiveFile]:
    """Write the rows of several files into one. Runs in a task."""
    batches = chain.from_iterable(archive_files.read(merge.store, file) for file in merge.files)
    return archive_files.write(merge.store, merge.files[0].partition, batches, merge.target_bytes * 2)


class Cleaned(NamedTuple):
    """How many files were removed, and which replaced files no longer exist."""

    removed: int
    gone: list[str]


def clean(store: Store, found: Manifest, grace_s: float, orphan_s: float, now_s: float | None = None) -> Cleaned:
    """Remove files that were compacted away `grace_s` ago, and files older than `orphan_s` that no commit names.

    A file without a commit may belong to a running job, which commits it when the whole wave is written.
    """
    now_s = time.time() if now_s is None else now_s
    named = {file.path for file in found.files}
    there, removed = set[str](), 0
    for entry in store.list():
        commit = entry.path.startswith(f"{manifest.FOLDER}/") and entry.path.endswith(".json")
        replaced_ms = found.replaced.get(entry.path)
        over_s = entry.modified_s + orphan_s if replaced_ms is None else replaced_ms / 1_000 + grace_s
        if entry.path in named or commit or over_s > now_s:
            there.add(entry.path)
            continue
        store.remove(entry.path)
        removed += 1
    return Cleaned(removed, [path for path in found.replaced if path not in there])
