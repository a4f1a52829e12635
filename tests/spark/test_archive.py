"""Archives on a real Spark and a real broker, with jobs that die at each point."""

import signal
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from tests.spark.archives import SMALL, UNDER_WAY, archive_of, keys, log_of, texts
from wherry.model.calls.log import LOGGED
from wherry.model.errors import HistoryLost, InvalidInput, NotFound, StorageError, WherryError
from wherry.spark.pipelines.archive import archive as jobs
from wherry.spark.pipelines.archive import (
    files as archive_files,
)
from wherry.spark.pipelines.archive import (
    manifest,
)
from wherry.spark.pipelines.archive import (
    tasks as archive_tasks,
)
from wherry.spark.pipelines.archive.archive import ArchiveOptions, archive, verify
from wherry.spark.pipelines.archive.manifest_store import store
from wherry.spark.pipelines.archive.seam import archived


@pytest.mark.rows("A22")
def test_an_archive_has_every_row_and_the_broker_drops_its_own(spark, broker, tmp_path):
    topic = broker.create(partitions=2)
    broker.publish(
        topic, texts(0, 500), key=keys(500), headers=pa.array([[("n", "1")]] * 500, LOGGED.field("headers").type)
    )
    everything = log_of(broker, topic)
    done = archive(spark, broker.link, topic, str(tmp_path), SMALL)
    assert (done.rows, done.archived_rows, int(done.sum, 16)) == (500, *everything)
    assert archive_of(topic, tmp_path) == everything
    assert broker.rows(topic) == []  # a queue without another subscription
    extents = broker.link.action("extents", {"topic": topic})
    assert extents["start"] == extents["stop"]
    again = archive(spark, broker.link, topic, str(tmp_path), SMALL)
    assert (again.rows, again.archived_rows, again.sum) == (0, 500, done.sum)
    broker.publish(topic, texts(500, 70), key=keys(70))
    more = archive(spark, broker.link, topic, str(tmp_path), SMALL)
    assert (more.rows, more.archived_rows) == (70, 570)
    assert verify(spark, topic, str(tmp_path)).rows == 570


POINTS = {
    "before the write": (archive_files, "write"),
    "after the write": (manifest, "append"),
    "after the commit": (jobs, "advance"),
    "in the compaction": (manifest, "compact"),
}


@pytest.mark.rows("A22")
@pytest.mark.parametrize("point", POINTS)
def test_a_job_that_dies_is_made_up_for_by_the_next(spark, broker, tmp_path, monkeypatch, point):
    topic = broker.create(partitions=2, keep="age", keep_ms=3_600_000)
    broker.publish(topic, texts(0, 400), key=keys(400))
    everything = log_of(broker, topic)
    module, name = POINTS[point]
    real, calls = getattr(module, name), []

    def dies(*args, **options):
        calls.append(name)
        if point == "before the write" or len(calls) == 2 or name == "compact":
            raise RuntimeError("planned")
        return real(*args, **options)

    with monkeypatch.context() as patched:
        if point == "before the write":  # the write is in the tasks, which do not see what is patched here
            patched.setattr(archive_tasks, "run", dies)
        else:
            patched.setattr(module, name, dies)
        with pytest.raises(RuntimeError, match="planned"):
            archive(spark, broker.link, topic, str(tmp_path), SMALL)
    done = archive(spark, broker.link, topic, str(tmp_path), SMALL)
    assert (done.archived_rows, int(done.sum, 16)) == everything
    assert archive_of(topic, tmp_path) == everything
    archive(spark, broker.link, topic, str(tmp_path), SMALL)
    here = store(str(tmp_path)).under(manifest.folder(topic))
    named = {file.path for file in manifest.need(here, topic).files}
    assert {entry.path for entry in here.list() if entry.path.endswith(".parquet")} == named
    assert broker.subscriptions(topic)[manifest.need(here, topic).subscription]["lag"] == 0


KILLED = """
import os, signal, sys
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive import archive, files, manifest
url, topic, to, where, point = sys.argv[1:]
module = {"archive": archive, "files": files, "manifest": manifest}[where]
real, calls = getattr(module, point), []
def dies(*args):
    calls.append(1)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
setattr(module, point, dies)
archive.archive_tasks.run = lambda spark, work, tasks, on_done=None: [work(task) for task in tasks]
archive.archive(None, FlightLink(url), topic, to, archive.ArchiveOptions(rows_per_task=100, wave=1, consume=True))
"""


@pytest.mark.rows("A22")
@pytest.mark.parametrize(
    ("where", "point", "left"),
    [("files", "total", 200), ("manifest", "append", 200), ("archive", "advance", 300), ("manifest", "_put", 200)],
)
def test_kill_9_leaves_what_the_next_run_needs(spark, broker, tmp_path, where, point, left):
    topic = broker.create()
    broker.publish(topic, texts(0, 300))
    everything = log_of(broker, topic)
    command = [sys.executable, "-c", KILLED, broker.url, topic, str(tmp_path), where, point]
    process = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert len(broker.rows(topic)) == left, "what no manifest covers is there"
    done = archive(spark, broker.link, topic, str(tmp_path), SMALL)
    assert (done.archived_rows, int(done.sum, 16)) == everything == archive_of(topic, tmp_path)
    assert broker.rows(topic) == []


@pytest.mark.parametrize("point", [(manifest, "append"), (archive_tasks, "run")])
@pytest.mark.parametrize("kept", [{"keep": "age", "keep_ms": 3_600_000}, {}])
def test_two_jobs_at_a_time_archive_each_row_once(spark, broker, tmp_path, monkeypatch, point, kept):
    """Let two jobs meet: by then a queue has dropped what the first one archived, but nothing is lost."""
    topic = broker.create(**kept)
    broker.publish(topic, texts(0, 200))
    everything = log_of(broker, topic)
    module, name = point
    real, inside = getattr(module, name), list[int]()

    def other_first(*args):
        if not inside:
            inside.append(1)
            archive(spark, broker.link, topic, str(tmp_path), UNDER_WAY)
        return real(*args)

    monkeypatch.setattr(module, name, other_first)
    with pytest.raises(manifest.Conflict, match="nothing is lost: run this one again"):
        archive(spark, broker.link, topic, str(tmp_path), UNDER_WAY)
    assert archive_of(topic, tmp_path) == everything


def test_files_that_only_an_executor_sees_are_no_archive(spark, broker, tmp_path, monkeypatch):
    """Write files as on a cluster whose workers have disks of their own."""
    topic = broker.create()
    broker.publish(topic, texts(0, 20))
    here, real = store(str(tmp_path)).under(manifest.folder(topic)), archive_tasks.run

    def elsewhere(*args):
        made = real(*args)
        (tmp_path / manifest.folder(topic) / made[0][0].path).rename(tmp_path / "a disk of a worker")
        return made

    with monkeypatch.context() as patched:
        patched.setattr(archive_tasks, "run", elsewhere)
        with pytest.raises(StorageError, match="must see the same folder"):
            archive(spark, broker.link, topic, str(tmp_path), SMALL)
    assert manifest.need(here, topic).covered == {}
    assert len(broker.rows(topic)) == 20, "the broker keeps them"
    assert archive(spark, broker.link, topic, str(tmp_path), SMALL).rows == 20


def test_the_first_archive_of_a_busy_queue(spark, broker, tmp_path, monkeypatch):
    """Let others settle messages until the archive holds them back: those are not in the archive, and no loss."""
    topic = broker.create()
    broker.link.action("subscribe", {"topic": topic, "name": "w", "start": "earliest"})
    broker.publish(topic, texts(0, 10))
    real = manifest.begun

    def meanwhile(*args):
        broker.link.action("advance", {"topic": topic, "subscription": "w", "offsets": {0: 4}})
        return real(*args)

    monkeypatch.setattr(manifest, "begun", meanwhile)
    done = archive(spark, broker.link, topic, str(tmp_path), SMALL)
    assert (done.rows, done.ends) == (6, {0: 10})


def test_trimmed_messages_that_were_not_archived_are_reported(spark, broker, tmp_path):
    topic = broker.create(keep="bytes", keep_bytes=1_000_000)
    broker.publish(topic, texts(0, 20))
    archive(spark, broker.link, topic, str(tmp_path), SMALL)
    for first in range(20, 80, 10):
        broker.publish(topic, texts(first, 10))
    broker.link.action("create-topic", {"name": topic, "keep_bytes": 100})
    until = time.monotonic() + 60
    while broker.link.action("extents", {"topic": topic})["start"]["0"] <= 20:
        assert time.monotonic() < until
        time.sleep(0.1)
    with pytest.raises(HistoryLost, match="on-loss go-on"):
        archive(spark, broker.link, topic, str(tmp_path), SMALL)
    left = len(broker.rows(topic))
    done = archive(spark, broker.link, topic, str(tmp_path), ArchiveOptions(go_on_after_loss=True))
    assert (done.rows, done.ends) == (left, {0: 80})
    here = store(str(tmp_path)).under(manifest.folder(topic))
    assert manifest.need(here, topic).lost == [(0, 20, 80 - left)]


def test_a_subscription_that_was_deleted_is_reported(spark, broker, tmp_path):
    topic = broker.create()
    broker.publish(topic, texts(0, 5))
    archive(spark, broker.link, topic, str(tmp_path), ArchiveOptions(subscription="lake", consume=True))
    broker.link.action("unsubscribe", {"topic": topic, "name": "lake"})
    with pytest.raises(WherryError, match=r"'lake' of the archive .* was deleted"):
        archive(spark, broker.link, topic, str(tmp_path), SMALL)
    archive(spark, broker.link, topic, str(tmp_path), ArchiveOptions(go_on_after_loss=True))
    assert list(broker.subscriptions(topic)) == ["lake"]


def test_a_topic_that_was_made_anew_is_no_more_of_the_same(spark, broker, tmp_path):
    topic = broker.create()
    broker.publish(topic, texts(0, 5))
    archive(spark, broker.link, topic, str(tmp_path), ArchiveOptions(subscription="lake", consume=True))
    broker.link.action("delete-topic", {"topic": topic})
    broker.link.action("create-topic", {"name": topic})
    broker.link.action("subscribe", {"topic": topic, "name": "lake"})
    with pytest.raises(InvalidInput, match="another topic of that name"):
        archive(spark, broker.link, topic, str(tmp_path), SMALL)


def test_no_topic_leaves_nothing_behind(spark, broker, tmp_path):
    with pytest.raises(NotFound):
        archive(spark, broker.link, "nobody", str(tmp_path / "a"), SMALL)
    assert not (tmp_path / "a").exists()


def test_names_that_are_no_file_names(spark, broker, tmp_path):
    topic = broker.create(name="a/b %2F é *" + "x" * 200)
    broker.publish(topic, texts(0, 5))
    archive(spark, broker.link, topic, str(tmp_path / "a b"), SMALL)
    assert archive_of(topic, tmp_path / "a b")[0] == 5
    assert archived(spark, topic, archive=str(tmp_path / "a b")).count() == 5
    (folder,) = (tmp_path / "a b").iterdir()
    assert folder.name == manifest.folder(topic)
