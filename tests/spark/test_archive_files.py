"""The files of an archive: merged, cleaned up, in an object store, and with no row lost."""

import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.spark.archives import SMALL, archive_of, keys, log_of, rows_of, texts
from wherry.model.calls.log import LOGGED
from wherry.model.errors import Corrupt, InvalidInput, StorageError
from wherry.spark.pipelines.archive import archive as jobs
from wherry.spark.pipelines.archive import (
    compact as archive_compact,
)
from wherry.spark.pipelines.archive import (
    files as archive_files,
)
from wherry.spark.pipelines.archive import (
    manifest,
    manifest_store,
    manifest_sums,
)
from wherry.spark.pipelines.archive.archive import ArchiveOptions, archive
from wherry.spark.pipelines.archive.compact import groups
from wherry.spark.pipelines.archive.manifest import ArchiveFile
from wherry.spark.pipelines.archive.manifest_store import store


def test_a_merge_that_only_an_executor_sees_replaces_nothing(tmp_path):
    here = store(str(tmp_path))
    manifest.begun(here, "t", "s", "x")
    for name in "ab":
        (tmp_path / name).write_bytes(b"x")
    both = [
        ArchiveFile(path=name, partition=0, date="", first=n, last=n, rows=1, bytes=1, content=1, sum="1")
        for n, name in enumerate("ab")
    ]
    found = manifest.append(here, "x", {0: (0, 2)}, both, [])
    merged = ArchiveFile(path="c", partition=0, date="", first=0, last=1, rows=2, bytes=2, content=2, sum="2")
    with pytest.raises(StorageError, match="there is no file"):
        manifest.compact(here, "x", both, [merged])
    (tmp_path / "c").write_bytes(b"x")
    with pytest.raises(StorageError, match="there is 1 bytes"):
        manifest.compact(here, "x", both, [merged])
    assert manifest.load(here) == found


def test_files_of_a_job_under_way_are_left_to_it(tmp_path):
    here = store(str(tmp_path))
    found = manifest.begun(here, "t", "s", "x")
    written = archive_files.write(here, 0, iter([rows_of(0, 3)]), 1 << 20)
    assert archive_compact.clean(here, found, 0, jobs.ORPHAN_S, time.time() + 7_200).removed == 0
    found = manifest.append(here, "x", {0: (0, 3)}, written, [])
    assert list(archive_files.read(here, found.files[0]))
    archive_files.write(here, 0, iter([rows_of(3, 3)]), 1 << 20)
    assert archive_compact.clean(here, found, 0, jobs.ORPHAN_S, time.time() + 90_000).removed == 1, "it died"


def test_what_was_merged_and_removed_is_forgotten(spark, broker, tmp_path):
    topic = broker.create(keep="age", keep_ms=3_600_000)
    here = store(str(tmp_path)).under(manifest.folder(topic))
    for first in range(0, 60, 20):
        broker.publish(topic, texts(first, 20))
        archive(spark, broker.link, topic, str(tmp_path), ArchiveOptions(compact=False))
    archive(spark, broker.link, topic, str(tmp_path), ArchiveOptions())
    assert len(manifest.need(here, topic).replaced) == 3
    archive(spark, broker.link, topic, str(tmp_path), SMALL)  # this run removes the files, and has nothing to commit
    broker.publish(topic, texts(60, 20))
    archive(spark, broker.link, topic, str(tmp_path), ArchiveOptions(compact=False))
    assert manifest.need(here, topic).replaced == {}
    assert archive_of(topic, tmp_path) == log_of(broker, topic)


def test_compaction_keeps_rows_and_sums(spark, broker, tmp_path):
    topic = broker.create(partitions=2, keep="age", keep_ms=3_600_000)
    loose = ArchiveOptions(rows_per_task=40, compact=False)
    for first in range(0, 400, 100):
        broker.publish(topic, texts(first, 100), key=keys(100))
        before = archive(spark, broker.link, topic, str(tmp_path), loose)
    assert before.archived_files >= 8
    here = store(str(tmp_path)).under(manifest.folder(topic))
    seen = manifest.need(here, topic)
    after = archive(spark, broker.link, topic, str(tmp_path), ArchiveOptions())
    assert after.archived_files == 2
    assert (after.archived_rows, after.sum) == (before.archived_rows, before.sum)
    assert archive_of(topic, tmp_path) == log_of(broker, topic)
    assert all(list(archive_files.read(here, file)) for file in seen.files), "readers of before are not disturbed"
    assert archive(spark, broker.link, topic, str(tmp_path), SMALL).files_removed == len(seen.files)


def test_compaction_that_lost_a_row_is_refused(tmp_path):
    here = store(str(tmp_path))
    manifest.begun(here, "t", "s", "x")
    (tmp_path / "a").write_bytes(b"x")
    one = ArchiveFile(path="a", partition=0, date="", first=0, last=1, rows=2, bytes=1, content=1, sum="2")
    found = manifest.append(here, "x", {0: (0, 2)}, [one], [])
    with pytest.raises(Corrupt, match="rows and sum differ"):
        manifest.compact(here, "x", found.files, [ArchiveFile(**{**_fields(one), "rows": 1})])


def _fields(file):
    return {name: getattr(file, name) for name in file.__struct_fields__}


def test_files_are_as_large_as_asked_and_by_day(tmp_path):
    here, day_us = store(str(tmp_path)), 86_400_000_000
    rows = 6_000
    batch = pa.RecordBatch.from_pylist(
        [
            {"offset": n, "priority": 1, "published": n * day_us // 2_500, "payload": os.urandom(64), "partition": 3}
            for n in range(rows)
        ],
        schema=LOGGED,
    )
    files = archive_files.write(here, 3, iter([batch]), 1 << 30)
    assert [file.date for file in files] == ["1970-01-01", "1970-01-02", "1970-01-03"]
    assert sum(file.rows for file in files) == rows
    assert manifest_sums.added(*(int(file.sum, 16) for file in files)) == manifest_sums.total(batch)
    assert all(file.bytes == (tmp_path / file.path).stat().st_size for file in files)
    assert pq.read_schema(tmp_path / files[0].path).equals(LOGGED)
    some = pa.Table.from_batches(archive_files.read(here, files[1], ["offset"], 2_600, 2_650))
    assert some.column("offset").to_pylist() == list(range(2_600, 2_650))
    damaged = ArchiveFile(**{**_fields(files[0]), "sum": "0" * 16})
    with pytest.raises(Corrupt, match="rows with sum"):
        archive_files.checked(here, damaged)


def test_small_files_of_a_day_become_large_ones():
    def file(first, size, date="d", partition=0):
        return ArchiveFile(
            path=f"{first}",
            partition=partition,
            date=date,
            first=first,
            last=first,
            rows=1,
            bytes=size,
            content=1,
            sum="0",
        )

    assert [len(group) for group in groups([file(n, 30) for n in range(7)], 100)] == [3, 3]
    assert list(groups([file(0, 60), file(1, 70)], 100)) == []
    assert list(groups([file(0, 10), file(1, 10, date="e"), file(2, 10, partition=1)], 100)) == []
    assert [[each.first for each in group] for group in groups([file(0, 45), file(1, 3), file(2, 4)], 100)] == [[1, 2]]


def test_many_commits_are_few_to_read(tmp_path, monkeypatch):
    here = store(str(tmp_path))
    manifest.begun(here, "t", "s", "x")
    for n in range(120):
        found = manifest.append(here, "x", {0: (n, n + 1)}, [], [])
    assert found == manifest.load(here)
    assert (found.number, found.covered) == (121, {0: (0, 120)})
    (tmp_path / "_manifest" / f"{30:020}.json").unlink()
    assert manifest.load(here) == found
    (tmp_path / "_manifest" / f"{110:020}.json").unlink()
    with pytest.raises(Corrupt, match="missing"):
        manifest.load(here)


def test_an_object_store_has_no_folders_to_sync(tmp_path, monkeypatch):
    files = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    files.create_dir("b/_manifest")
    monkeypatch.setattr(manifest_store, "_opened", lambda url: (files, "b"))
    here = manifest_store.Store("s3://b")
    assert here.local is None
    found = manifest.begun(here, "t", "s", "x")
    assert manifest.append(here, "x", {0: (0, 2)}, [], []).covered == {0: (0, 2)}
    assert not here.put_new(f"_manifest/{2:020}.json", b"another")
    with here.write("f") as stream:
        stream.write(b"data")
    with pytest.raises(RuntimeError), here.write("g") as stream:
        raise RuntimeError
    assert [(entry.path, entry.bytes) for entry in here.list() if "_manifest" not in entry.path] == [("f", 4)]
    assert archive_compact.clean(here, found, 0, 0, time.time() + 10).removed == 1
    here.remove("f")


def test_settings_of_a_url_stay_behind_its_folders():
    lake = manifest_store.Store("s3://KEY:SECRET@lake/deep?region=eu-west-1&scheme=http")
    under = lake.under("topic=a b")
    assert under.url == "s3://KEY:SECRET@lake/deep/topic%3Da%20b?region=eu-west-1&scheme=http"
    assert manifest_store.Store("s3://lake?region=eu-west-1").under("x").url == "s3://lake/x?region=eu-west-1"
    assert under.plain == "s3://lake/deep/topic%3Da%20b"
    assert under.whole("f") == "lake/deep/topic=a b/f"
    assert "SECRET" not in repr(under)
    with pytest.raises(InvalidInput, match="memory://x/y") as caught:
        store("memory://KEY:SECRET@x/y?z=1")
    assert "SECRET" not in str(caught.value)
    assert "region" not in str(caught.value)
