"""Archives on a real Spark and a real broker, with jobs that die at each point."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from pyarrow import fs
from typer.testing import CliRunner

from wherry.cli import frame
from wherry.cli.commands.pipeline import archive as pipeline_archive
from wherry.cli.frame import Group
from wherry.model.calls.log import LOGGED
from wherry.model.errors import Corrupt, HistoryLost, InvalidInput, NotFound, StorageError, WherryError
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
from wherry.spark.pipelines.archive import (
    tasks as archive_tasks,
)
from wherry.spark.pipelines.archive.archive import Options, archive, verify
from wherry.spark.pipelines.archive.compact import groups
from wherry.spark.pipelines.archive.manifest import File
from wherry.spark.pipelines.archive.manifest_store import store
from wherry.spark.pipelines.archive.seam import archived
from wherry.spark.pipelines.run import session as run_session

SMALL = Options(rows_per_task=150, wave=2, grace_s=0, orphan_s=0, consume=True)
UNDER_WAY = Options(rows_per_task=150, wave=2, grace_s=0, consume=True)
"""Nothing is kept for readers; but what another job wrote is its own."""


def texts(first, count):
    return [f"m{n}".encode() for n in range(first, first + count)]


def keys(count):
    return [f"k{n % 11}" for n in range(count)]


def log_of(broker, topic):
    """All that is in the log: rows and sum."""
    rows = sums = 0
    for ticket in broker.link.parts({"topic": topic}):
        for batch in broker.link.read(json.loads(ticket)):
            rows, sums = rows + batch.num_rows, manifest_sums.added(sums, manifest_sums.total(batch))
    return rows, sums


def archive_of(topic, folder):
    """All that the files of the manifest have: rows and sum."""
    here = store(str(folder)).under(manifest.folder(topic))
    rows = sums = 0
    for file in manifest.need(here, topic).files:
        for batch in archive_files.read(here, file):
            rows, sums = rows + batch.num_rows, manifest_sums.added(sums, manifest_sums.total(batch))
    return rows, sums


@pytest.mark.rows("A22")
def test_an_archive_has_every_row_and_the_broker_lets_go_of_it(spark, broker, tmp_path):
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
        if point == "before the write":  # in the tasks: they do not see what is patched here
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
from wherry.spark.link import Link
from wherry.spark.pipelines import archive, archive_files, manifest
url, topic, to, where, point = sys.argv[1:]
module = {"archive": archive, "files": archive_files, "manifest": manifest}[where]
real, calls = getattr(module, point), []
def dies(*args):
    calls.append(1)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
setattr(module, point, dies)
archive.archive_tasks.run = lambda spark, work, tasks, on_done=None: [work(task) for task in tasks]
archive.archive(None, Link(url), topic, to, archive.Options(rows_per_task=100, wave=1, consume=True))
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
    """A queue has let go by then of what the first one archived: nothing is lost, and nobody is told to go on."""
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
    """As on a cluster whose workers have disks of their own."""
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


def test_a_merge_that_only_an_executor_sees_replaces_nothing(tmp_path):
    here = store(str(tmp_path))
    manifest.begun(here, "t", "s", "x")
    for name in "ab":
        (tmp_path / name).write_bytes(b"x")
    both = [
        File(path=name, partition=0, date="", first=n, last=n, rows=1, bytes=1, content=1, sum="1")
        for n, name in enumerate("ab")
    ]
    found = manifest.append(here, "x", {0: (0, 2)}, both, [])
    merged = File(path="c", partition=0, date="", first=0, last=1, rows=2, bytes=2, content=2, sum="2")
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


def rows_of(first, count):
    rows = range(first, first + count)
    return pa.RecordBatch.from_pylist(
        [{"offset": n, "priority": 1, "published": n, "payload": b"x", "partition": 0} for n in rows], schema=LOGGED
    )


def test_the_first_archive_of_a_busy_queue(spark, broker, tmp_path, monkeypatch):
    """Others settle messages until the archive holds them back: those are not its business, and no loss."""
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


def test_what_was_merged_and_removed_is_forgotten(spark, broker, tmp_path):
    topic = broker.create(keep="age", keep_ms=3_600_000)
    here = store(str(tmp_path)).under(manifest.folder(topic))
    for first in range(0, 60, 20):
        broker.publish(topic, texts(first, 20))
        archive(spark, broker.link, topic, str(tmp_path), Options(compact=False))
    archive(spark, broker.link, topic, str(tmp_path), Options())
    assert len(manifest.need(here, topic).replaced) == 3
    archive(spark, broker.link, topic, str(tmp_path), SMALL)  # removes them, and has nothing to commit
    broker.publish(topic, texts(60, 20))
    archive(spark, broker.link, topic, str(tmp_path), Options(compact=False))
    assert manifest.need(here, topic).replaced == {}
    assert archive_of(topic, tmp_path) == log_of(broker, topic)


def test_compaction_keeps_rows_and_sums(spark, broker, tmp_path):
    topic = broker.create(partitions=2, keep="age", keep_ms=3_600_000)
    loose = Options(rows_per_task=40, compact=False)
    for first in range(0, 400, 100):
        broker.publish(topic, texts(first, 100), key=keys(100))
        before = archive(spark, broker.link, topic, str(tmp_path), loose)
    assert before.archived_files >= 8
    here = store(str(tmp_path)).under(manifest.folder(topic))
    seen = manifest.need(here, topic)
    after = archive(spark, broker.link, topic, str(tmp_path), Options())
    assert after.archived_files == 2
    assert (after.archived_rows, after.sum) == (before.archived_rows, before.sum)
    assert archive_of(topic, tmp_path) == log_of(broker, topic)
    assert all(list(archive_files.read(here, file)) for file in seen.files), "readers of before are not disturbed"
    assert archive(spark, broker.link, topic, str(tmp_path), SMALL).files_removed == len(seen.files)


def test_compaction_that_lost_a_row_is_refused(tmp_path):
    here = store(str(tmp_path))
    manifest.begun(here, "t", "s", "x")
    (tmp_path / "a").write_bytes(b"x")
    one = File(path="a", partition=0, date="", first=0, last=1, rows=2, bytes=1, content=1, sum="2")
    found = manifest.append(here, "x", {0: (0, 2)}, [one], [])
    with pytest.raises(Corrupt, match="rows and sum differ"):
        manifest.compact(here, "x", found.files, [File(**{**_fields(one), "rows": 1})])


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
    damaged = File(**{**_fields(files[0]), "sum": "0" * 16})
    with pytest.raises(Corrupt, match="rows with sum"):
        archive_files.checked(here, damaged)


def test_small_files_of_a_day_become_large_ones():
    def file(first, size, date="d", partition=0):
        return File(
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


def test_what_went_unarchived_is_told(spark, broker, tmp_path):
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
    done = archive(spark, broker.link, topic, str(tmp_path), Options(go_on_after_loss=True))
    assert (done.rows, done.ends) == (left, {0: 80})
    here = store(str(tmp_path)).under(manifest.folder(topic))
    assert manifest.need(here, topic).lost == [(0, 20, 80 - left)]


def test_a_subscription_that_was_deleted_is_told(spark, broker, tmp_path):
    topic = broker.create()
    broker.publish(topic, texts(0, 5))
    archive(spark, broker.link, topic, str(tmp_path), Options(subscription="lake", consume=True))
    broker.link.action("unsubscribe", {"topic": topic, "name": "lake"})
    with pytest.raises(WherryError, match=r"'lake' of the archive .* was deleted"):
        archive(spark, broker.link, topic, str(tmp_path), SMALL)
    archive(spark, broker.link, topic, str(tmp_path), Options(go_on_after_loss=True))
    assert list(broker.subscriptions(topic)) == ["lake"]


def test_a_topic_that_was_made_anew_is_no_more_of_the_same(spark, broker, tmp_path):
    topic = broker.create()
    broker.publish(topic, texts(0, 5))
    archive(spark, broker.link, topic, str(tmp_path), Options(subscription="lake", consume=True))
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
    with pytest.raises(InvalidInput, match="memory://x/y") as told:
        store("memory://KEY:SECRET@x/y?z=1")
    assert "SECRET" not in str(told.value)
    assert "region" not in str(told.value)


@pytest.fixture
def wherry(broker, spark, monkeypatch):
    monkeypatch.setattr(run_session, "opened", lambda *_: nullcontext(spark))  # else it would end with the command
    app = typer.Typer(cls=Group)
    app.callback()(lambda: None)
    pipeline = typer.Typer()
    pipeline_archive.register(pipeline)
    app.add_typer(pipeline, name="pipeline")

    def run(*words, code=0):
        done = CliRunner().invoke(
            app, ["pipeline", *words, *(() if "--master" in words else ("--master", "local[2]")), "--url", broker.url]
        )
        assert done.exit_code == code, done.output
        return done

    return run


@pytest.fixture(autouse=True)
def _order(monkeypatch):
    monkeypatch.setattr(frame, "ORDER", (*frame.ORDER, "pipeline"))


def test_the_commands(spark, broker, tmp_path, wherry):
    topic, there = broker.create(name="cli", keep="age", keep_ms=3_600_000), broker.create()
    broker.publish(topic, texts(0, 30), key=keys(30))
    to = str(tmp_path / "lake")
    (told,) = map(json.loads, wherry("archive", f"{topic[:-1]}*", "--to", to, "--verify", "--json").stdout.splitlines())
    assert (told["rows"], told["verified"], told["ends"]) == (30, True, {"0": 30})
    shown = wherry("archive", topic, "--to", to).stdout
    assert "new rows" in shown
    assert topic in shown
    job = f"job-{topic}"
    words = (
        "replay",
        topic,
        "--into",
        there,
        "--job",
        job,
        "--archive",
        to,
        "--since",
        "2h ago",
        "--key",
        "k3",
        "--json",
    )
    assert json.loads(wherry(*words).stdout)["rows"] == 3
    assert json.loads(wherry(*words).stdout)["repeated"] is True
    assert "already exists and differs: terms" in wherry(*words[:-2], "k4", code=1).output
    file = tmp_path / "due.csv"
    file.write_text("send_at,text\n2027-01-01T00:00:00,hello\n1800000000000,you\n")
    due = ("backfill", there, str(file), "--due", "send_at", "--payload", "text")
    assert "2 messages into" in wherry(*due).output
    assert "nothing to do" in wherry(*due).output
    assert Path(to).is_dir()
    assert "ends in" in wherry("backfill", there, "x.txt", code=1).output
    assert "no topic" in wherry("archive", "nobody", "--to", to, code=1).output


def test_no_job_empties_a_queue_unasked_and_a_replay_says_where_messages_went(broker, tmp_path, wherry):
    queue, read, there = (broker.create(name=name) for name in ("queue", "read", "there"))
    lake = tmp_path / "lake"
    for topic in (queue, read):
        broker.publish(topic, texts(0, 30), key=keys(30))
    told = wherry("archive", queue, "--to", str(lake), code=1).output
    assert f"{queue}: a queue without a subscription" in told
    assert all(words in told for words in ("only reader", "--keep-for 7d", "--consume", "subscription create"))
    assert not lake.exists()
    assert (len(broker.rows(queue)), broker.subscriptions(queue)) == (30, {})

    broker.link.action("subscribe", {"topic": read, "name": "workers"})
    wherry("archive", read, "--to", str(lake))  # not the only one
    assert len(broker.rows(read)) == 30

    wherry("archive", queue, "--to", str(lake), "--consume")
    assert broker.rows(queue) == []
    wherry("archive", queue, "--to", str(lake))  # agreed to before
    job = ("replay", queue, "--into", there, "--job", f"b-{queue}")
    told = wherry(*job, code=1).output
    assert "offset 0 is gone" in told
    assert f"archived at {lake.as_uri()}" in told
    assert "name of the job is still free" in told
    assert not any(name.startswith("replay-") for name in broker.subscriptions(queue))
    assert "30 messages into" in wherry(*job, "--archive", str(lake)).output


def test_what_is_not_there_is_told_before_spark_starts(broker, tmp_path, wherry, monkeypatch):
    """A start of Spark takes as long as twenty commands."""
    monkeypatch.setattr(run_session, "opened", lambda *_: pytest.fail("Spark is started"))
    here, file = broker.create(), tmp_path / "x.csv"
    file.write_text("due,payload\n1,x\n")
    for words in (
        ("archive", here, "nobody", "--consume", "--to", str(tmp_path)),
        ("replay", "nobody", "--into", here, "--job", "x"),
        ("replay", here, "--into", "nobody", "--job", "x"),
        ("backfill", "nobody", str(file)),
    ):
        assert "no topic named 'nobody'" in wherry(*words, code=1).output
    assert (
        "an archive of topic"
        in wherry("replay", here, "--into", here, "--job", "x", "--archive", str(tmp_path), code=1).output
    )
    for file, topic in (("p.toml", "nobody"), ("q.toml", here)):
        (tmp_path / file).write_text(f'[sources.a]\ntopic = "{topic}"\n[sinks.b]\nfrom = "a"\ntopic = "b"\n')
    for command, said in (
        (("run", "p.toml"), "no topic named 'nobody'"),
        (("run", "q.toml"), "pipeline q would be its only reader"),
        (("report", "nobody"), "no topic named 'nobody'"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "wherry", "pipeline", *command, "--url", broker.url],
            cwd=tmp_path,
            env={**os.environ, "JAVA_HOME": str(tmp_path / "no java")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1, done.stdout + done.stderr
        assert said in " ".join(done.stderr.split())
    assert broker.subscriptions(here) == {}


def test_jobs_run_in_the_session_that_a_pipeline_has(broker, tmp_path, wherry, monkeypatch):
    made: dict[str, str] = {}

    def session(name, *, master, conf):
        made.update(conf)
        raise RuntimeError("planned")

    monkeypatch.undo()  # of the session of these tests
    monkeypatch.setattr(frame, "ORDER", (*frame.ORDER, "pipeline"))
    monkeypatch.setattr(run_session, "session", session)
    words = ("archive", broker.create(), "--to", str(tmp_path), "--consume", "--master")
    assert "local[2], spark://" in wherry(*words, "foo", code=1).output
    wherry(*words, "spark://127.0.0.1:7077", code=1)
    assert made["spark.executor.memory"] == "512m"
    assert made["spark.ui.showConsoleProgress"] == "false"
