"""Replay and backfill: exactly once for the name of a job, however often and however far it ran."""

import csv
import json
import secrets
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wherry.model.calls.where import Where
from wherry.model.errors import AlreadyExists, HistoryLost, InvalidInput, NotFound, WherryError
from wherry.spark.pipelines.archive import manifest, manifest_store
from wherry.spark.pipelines.archive.archive import ArchiveOptions, archive
from wherry.spark.pipelines.archive.manifest import ArchiveFile, Manifest
from wherry.spark.pipelines.archive.manifest_store import store
from wherry.spark.pipelines.backfill import backfill as backfills
from wherry.spark.pipelines.backfill import files as backfill_files
from wherry.spark.pipelines.backfill.backfill import backfill
from wherry.spark.pipelines.backfill.files import ColumnNames, SourceFile
from wherry.spark.pipelines.replay import ledger as replay_ledger
from wherry.spark.pipelines.replay.replay import (
    Chunk,
    ReplayPlan,
    ReplayRequest,
    chunks,
    replay,
    with_files,
)

STREAM = {"keep": "age", "keep_ms": 3_600_000}


def texts(first, count):
    return [f"m{n}".encode() for n in range(first, first + count)]


def keys(count):
    return [f"k{n % 5}" for n in range(count)]


def name():
    return f"job-{secrets.token_hex(4)}"


@pytest.fixture
def small(monkeypatch):
    """Make chunks of a few rows."""
    monkeypatch.setattr(replay_ledger, "CHUNK_ROWS", 40)
    monkeypatch.setattr(replay_ledger, "WAVE", 2)


@pytest.fixture
def dies():
    """Fail at the n-th commit: before it, or behind it."""

    def plan(monkeypatch, at, *, behind):
        real, calls = replay_ledger.Ledger.commit, []

        def commit(self, part, *stages):
            calls.append(part)
            if len(calls) == at and not behind:
                raise RuntimeError("planned")
            placed = real(self, part, *stages)
            if len(calls) == at:
                raise RuntimeError("planned")
            return placed

        monkeypatch.setattr(replay_ledger.Ledger, "commit", commit)

    return plan


@pytest.mark.rows("A22")
@pytest.mark.parametrize("behind", [False, True])
def test_a_replay_of_a_log_is_taken_up_and_done_once(spark, broker, small, dies, monkeypatch, behind):
    here, there, job = broker.create(partitions=2, **STREAM), broker.create(partitions=2), name()
    broker.publish(here, texts(0, 200), key=keys(200))
    ask = ReplayRequest(topic=here, into=there)
    with monkeypatch.context() as patched:
        dies(patched, 4, behind=behind)
        with pytest.raises(RuntimeError, match="planned"):
            replay(spark, broker.link, job, ask)
    broker.publish(here, texts(200, 50), key=keys(50))  # published after the job began: not part of the job
    assert 0 < len(broker.payloads(there)) < 200
    done = replay(spark, broker.link, job, ask)
    assert done.rows + done.rows_before == 200
    assert done.rows_before > 0
    assert sorted(broker.payloads(there)) == sorted(texts(0, 200))
    for partition in range(2):
        order = [int(row["payload"][1:]) for row in broker.rows(there) if row["partition"] == partition]
        by_key = {key: [n for n in order if n % 5 == key] for key in range(5)}
        assert all(found == sorted(found) for found in by_key.values()), "keys keep their order"
    again = replay(spark, broker.link, job, ask)
    assert (again.rows, again.rows_before, again.repeated) == (0, 200, True)
    assert len(broker.payloads(there)) == 200
    with pytest.raises(AlreadyExists, match="terms was"):
        replay(spark, broker.link, job, ReplayRequest(topic=here, into=there, where=Where(keys=["k1"])))


def test_a_replay_of_an_archive_by_key_and_time(spark, broker, small, tmp_path):
    here, there = broker.create(), broker.create()
    broker.publish(here, texts(0, 100), key=keys(100))
    time.sleep(0.05)
    middle = int(time.time() * 1_000)
    time.sleep(0.05)
    broker.publish(here, texts(100, 100), key=keys(100))
    archive(spark, broker.link, here, str(tmp_path), ArchiveOptions(consume=True))
    assert broker.rows(here) == []
    where = Where(keys=["k1", "k2"], from_ms=middle)
    job = name()
    done = replay(spark, broker.link, job, ReplayRequest(topic=here, into=there, archive=str(tmp_path), where=where))
    assert done.rows == 40
    assert broker.payloads(there) == [text for n, text in enumerate(texts(100, 100)) if n % 5 in (1, 2)]
    assert replay(
        spark, broker.link, job, ReplayRequest(topic=here, into=there, archive=str(tmp_path), where=where)
    ).repeated


def test_a_replay_keeps_its_rate(spark, broker, monkeypatch):
    here, there = broker.create(**STREAM), broker.create()
    broker.publish(here, texts(0, 60))
    real, times = replay_ledger.Ledger.commit, {}

    def commit(self, part, *stages):
        times[part] = time.monotonic()
        return real(self, part, *stages)

    monkeypatch.setattr(replay_ledger.Ledger, "commit", commit)
    monkeypatch.setattr(replay_ledger, "WAVE", 2)
    replay(spark, broker.link, name(), ReplayRequest(topic=here, into=there, rate=40.0))
    assert len(broker.payloads(there)) == 60
    shown = [times[str(chunk)] for chunk in range(6)]
    assert shown == sorted(shown)
    assert shown[-1] - shown[0] >= 50 / 40 - 0.3, "six chunks of ten, a little made up for"


@pytest.mark.parametrize("archived", [False, True])
def test_a_rate_is_of_messages_that_are_wanted(spark, broker, monkeypatch, tmp_path, archived):
    """Replay forty of two thousand at forty a second: that takes four chunks a second for a second, not two hundred."""
    here, there = broker.create(partitions=2, **STREAM), broker.create()
    broker.publish(here, texts(0, 2_000), key=[f"k{n % 50}" for n in range(2_000)])
    if archived:
        archive(spark, broker.link, here, str(tmp_path), ArchiveOptions())
    waited = []
    monkeypatch.setattr(replay_ledger.Pace, "wait", lambda self, rows: waited.append(rows))
    ask = ReplayRequest(
        topic=here, into=there, where=Where(keys=["k7"]), rate=40.0, archive=str(tmp_path) if archived else None
    )
    done = replay(spark, broker.link, name(), ask)
    assert (done.rows, sum(waited), max(waited)) == (40, 40, 10)
    assert done.chunks == len(waited) <= 6
    assert sorted(broker.payloads(there)) == sorted(texts(0, 2_000)[7::50])


def test_chunks_by_what_is_wanted():
    plan = ReplayPlan(
        topic="t",
        into="u",
        archive=None,
        where=Where(keys=["k"]),
        keep_ids=False,
        keep_times=False,
        spans={0: (3, 25), 1: (0, 7), 2: (0, 9)},
        chunk_rows=10,
        cuts={0: [5, 11], 1: [6], 2: []},
    )
    assert [chunk[:3] for chunk in chunks(plan)] == [(0, 5, 11), (1, 6, 7), (0, 11, 25)]


def test_a_replay_of_lost_messages_names_their_archive_and_the_name_stays_free(spark, broker):
    here, there, job = broker.create(), broker.create(), name()
    broker.link.action("subscribe", {"topic": here, "name": "w", "start": "earliest"})
    broker.publish(here, texts(0, 50))
    time.sleep(0.01)
    middle = int(time.time() * 1_000)
    time.sleep(0.01)
    broker.publish(here, texts(50, 50))
    advance = {"topic": here, "subscription": "w"}
    broker.link.action("advance", {**advance, "offsets": {0: 10}})
    with pytest.raises(HistoryLost, match=r"offset 0 is gone.*a queue, and it was settled by w.*still free"):
        replay(spark, broker.link, job, ReplayRequest(topic=here, into=there))
    assert list(broker.subscriptions(here)) == ["w"]
    later = ReplayRequest(topic=here, into=there, where=Where(from_ms=middle))
    assert replay(spark, broker.link, job, later).rows == 50, "none of what is gone was asked for"
    broker.link.action("advance", {**advance, "offsets": {0: 100}})
    with pytest.raises(HistoryLost, match="settled by w"):
        replay(spark, broker.link, name(), later)
    go_on = ReplayRequest(topic=here, into=there, go_on_after_loss=True)
    assert replay(spark, broker.link, name(), go_on).rows == 0


def test_a_stream_is_what_there_is_of_it_unless_a_time_before_is_asked_for(spark, broker):
    here, there = broker.create(keep="age", keep_ms=3_600_000), broker.create()
    for first in range(0, 30, 10):
        broker.publish(here, texts(first, 10))
    broker.link.action("create-topic", {"name": here, "keep_ms": 0})
    until = time.monotonic() + 60
    while broker.link.action("extents", {"topic": here})["start"]["0"] < 30:
        assert time.monotonic() < until
        time.sleep(0.05)
    broker.link.action("create-topic", {"name": here, "keep_ms": 3_600_000})
    with pytest.raises(HistoryLost, match="keeps messages by age"):
        replay(spark, broker.link, name(), ReplayRequest(topic=here, into=there))  # nothing at all is left
    broker.publish(here, texts(30, 5))
    now = int(time.time() * 1_000)
    for where in (Where(), Where(from_ms=now - 600_000)):  # nothing that the stream keeps is gone
        assert replay(spark, broker.link, name(), ReplayRequest(topic=here, into=there, where=where)).rows == 5
    with pytest.raises(HistoryLost, match="keeps messages by age"):
        replay(spark, broker.link, name(), ReplayRequest(topic=here, into=there, where=Where(from_ms=now - 7_200_000)))


def test_nothing_to_replay_is_done_too(spark, broker):
    here, there, job = broker.create(), broker.create(), name()
    ask = ReplayRequest(topic=here, into=there, where=Where(keys=["nobody"]))
    assert (replay(spark, broker.link, job, ask).rows, replay(spark, broker.link, job, ask).repeated) == (0, True)


def test_what_cannot_be_replayed_is_refused_before_anything_is_done(spark, broker, tmp_path):
    here = broker.create()
    with pytest.raises(NotFound, match="nobody"):
        replay(spark, broker.link, name(), ReplayRequest(topic=here, into="nobody"))
    with pytest.raises(InvalidInput, match="keep_ids"):
        replay(spark, broker.link, name(), ReplayRequest(topic=here, into=here, keep_ids=True))
    with pytest.raises(InvalidInput, match="an archive of topic"):
        replay(spark, broker.link, name(), ReplayRequest(topic=here, into=here, archive=str(tmp_path)))
    with pytest.raises(InvalidInput, match="job"):
        replay(spark, broker.link, "x" * 200, ReplayRequest(topic=here, into=here))


def test_chunks_cover_every_offset_once():
    plan = ReplayPlan(
        topic="t",
        into="u",
        archive=None,
        where=Where(),
        keep_ids=False,
        keep_times=False,
        spans={0: (3, 25), 1: (0, 7)},
        chunk_rows=10,
    )
    found = chunks(plan)
    assert [chunk[:3] for chunk in found] == [(0, 3, 13), (1, 0, 7), (0, 13, 23), (0, 23, 25)]


@pytest.mark.parametrize("at", [4, 100])
def test_a_job_outlives_the_memory_of_its_commits(spark, broker, small, dies, monkeypatch, at):
    """Forget the commits: the broker keeps 100,000 keys, and the topic of jobs what a job is and how far it is."""
    here, there, job = broker.create(**STREAM), broker.create(), name()
    broker.publish(here, texts(0, 200))
    ask = ReplayRequest(topic=here, into=there, where=Where(keys=None))
    with monkeypatch.context() as patched:
        dies(patched, at, behind=True)
        if at == 4:
            with pytest.raises(RuntimeError, match="planned"):
                replay(spark, broker.link, job, ask)
        else:
            replay(spark, broker.link, job, ask)
    monkeypatch.setattr(replay_ledger.Ledger, "key", lambda self, part: f"all keys are forgotten/{self.job}/{part}")
    done = replay(spark, broker.link, job, ask)
    assert (done.rows + done.rows_before, done.repeated) == (200, at == 100)
    assert broker.payloads(there) == texts(0, 200)
    with pytest.raises(AlreadyExists, match="terms was"):
        replay(spark, broker.link, job, ReplayRequest(topic=here, into=there, where=Where(keys=["k1"])))


def test_a_plan_that_is_gone_is_not_made_again(spark, broker, monkeypatch):
    here, there, job = broker.create(**STREAM), broker.create(), name()
    replay(spark, broker.link, job, ReplayRequest(topic=here, into=there))
    monkeypatch.setattr(replay_ledger, "notes", lambda link, key: iter(()))
    with pytest.raises(NotFound, match="use another name"):
        replay(spark, broker.link, job, ReplayRequest(topic=here, into=there))


def test_a_job_has_so_many_chunks_at_most(monkeypatch, tmp_path):
    assert replay_ledger.rows_per_chunk(100.0, 2_000, rate=100.0) == 25
    assert 5_000_000 / replay_ledger.rows_per_chunk(100.0, 5_000_000, rate=100.0) <= replay_ledger.CHUNKS_MAX
    monkeypatch.setattr(replay_ledger, "CHUNKS_MAX", 20)
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"due": [DUE_MS] * 1_000, "payload": [b"x"] * 1_000}), file)
    lines = tmp_path / "x.csv"
    lines.write_text("due,payload\n" + f"{DUE_MS},{'x' * 100}\n" * 2_000)
    for path in (file, lines):
        source = [backfill_files.source(str(path))]
        plan = backfills._planned("t", source, ColumnNames(), 4.0)
        assert len(backfill_files.pieces(source, plan.chunk_rows, plan.chunk_bytes)) == 20


def test_a_file_of_too_many_row_groups_is_refused(spark, broker, monkeypatch, tmp_path):
    file = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"due": [DUE_MS] * 40, "payload": [b"x"] * 40}), file, row_group_size=1)
    monkeypatch.setattr(backfills, "PIECES_MAX", 39)
    with pytest.raises(InvalidInput, match="larger row groups"):
        backfill(spark, broker.link, broker.create(), [file])


@pytest.mark.rows("A22")
def test_what_a_job_has_still_to_read_stays_in_the_log(spark, broker, small, dies, monkeypatch):
    here, there, job = broker.create(partitions=2), broker.create(), name()
    broker.link.action("subscribe", {"topic": here, "name": "w", "start": "earliest"})
    broker.publish(here, texts(0, 200), key=keys(200))
    ends = {int(n): stop for n, stop in broker.link.action("extents", {"topic": here})["stop"].items()}
    with monkeypatch.context() as patched:
        dies(patched, 4, behind=True)
        with pytest.raises(RuntimeError, match="planned"):
            replay(spark, broker.link, job, ReplayRequest(topic=here, into=there))
    broker.link.action("advance", {"topic": here, "subscription": "w", "offsets": ends})
    assert len(broker.rows(here)) == 200
    assert replay(spark, broker.link, job, ReplayRequest(topic=here, into=there)).rows > 0
    assert sorted(broker.payloads(there)) == sorted(texts(0, 200))
    assert list(broker.subscriptions(here)) == ["w"]
    assert broker.rows(here) == [], "and nothing is held any more"


def test_a_replay_takes_nothing_from_a_queue_that_has_no_reader_yet(spark, broker):
    here, there = broker.create(), broker.create()
    broker.publish(here, texts(0, 20))
    assert replay(spark, broker.link, name(), ReplayRequest(topic=here, into=there)).rows == 20
    assert broker.subscriptions(here) == {}
    broker.link.action("subscribe", {"topic": here, "name": "w", "start": "earliest"})
    assert broker.payloads(here) == texts(0, 20)
    assert broker.subscriptions(here)["w"]["ready"] == 20


def test_messages_that_were_removed_before_they_were_read_are_reported(spark, broker, small, dies, monkeypatch):
    here, there = broker.create(), broker.create()
    broker.link.action("subscribe", {"topic": here, "name": "w", "start": "earliest"})
    broker.publish(here, texts(0, 100))
    job = name()
    with monkeypatch.context() as patched:
        dies(patched, 2, behind=True)
        with pytest.raises(RuntimeError, match="planned"):
            replay(spark, broker.link, job, ReplayRequest(topic=here, into=there))
    broker.link.action("unsubscribe", {"topic": here, "name": f"replay-{job}"})
    with pytest.raises(WherryError, match="was deleted"):
        replay(spark, broker.link, job, ReplayRequest(topic=here, into=there))
    broker.link.action("subscribe", {"topic": here, "name": f"replay-{job}", "start": "latest"})
    broker.link.action("advance", {"topic": here, "subscription": "w", "offsets": {0: 70}})
    with pytest.raises(HistoryLost, match="on-loss go-on"):
        replay(spark, broker.link, job, ReplayRequest(topic=here, into=there))
    done = replay(spark, broker.link, job, ReplayRequest(topic=here, into=there, go_on_after_loss=True))
    assert done.rows + done.rows_before == 40 + 30


def test_a_chunk_of_an_archive_is_sent_to_its_task_with_its_files_only():
    def file(partition, first, last):
        return ArchiveFile(
            path=f"{first}",
            partition=partition,
            date="",
            first=first,
            last=last,
            rows=1,
            bytes=1,
            content=1,
            sum="0",
        )

    files = [file(0, 0, 9), file(0, 10, 19), file(0, 20, 29), file(1, 0, 99)]
    parts = with_files(
        [Chunk(0, 5, 20), Chunk(1, 0, 5), Chunk(2, 0, 5)], Manifest(topic="t", subscription="s", number=1, files=files)
    )
    assert [[each.path for each in part.files] for part in parts] == [["0", "10"], ["0"], []]


def test_no_secret_of_a_url_is_kept(spark, broker, monkeypatch, tmp_path):
    secret = "s3://KEY:SECRET@lake/x.csv?region=eu-west-1"
    kept = backfills._planned("t", [SourceFile(url=secret, format="csv", bytes=1, digest="d")], ColumnNames(), None)
    assert kept.files[0].url == "s3://lake/x.csv"
    here, there, job = broker.create(), broker.create(), name()
    opened, there_is = manifest_store._opened, tmp_path.as_uri()
    monkeypatch.setattr(
        manifest_store, "_opened", lambda url: opened(manifest_store.plain(url).replace("s3://lake", there_is))
    )
    lake, later = "s3://KEY:SECRET@lake/a?region=eu-west-1", "s3://OTHER:SECRET@lake/a"
    manifest.begun(store(lake).under(manifest.folder(here)), here, "s", "x")
    assert replay(spark, broker.link, job, ReplayRequest(topic=here, into=there, archive=lake)).rows == 0
    assert replay(spark, broker.link, job, ReplayRequest(topic=here, into=there, archive=later)).repeated
    records = [row["payload"] for row in broker.rows(replay_ledger.JOBS) if row["key"] == f"replay/{job}"]
    assert any(b"s3://lake/a" in each for each in records)
    assert not any(b"SECRET" in each for each in records)


DUE_MS = 1_800_000_000_000


def test_a_backfill_that_died_is_taken_up(spark, broker, small, dies, monkeypatch, tmp_path):
    there = broker.create(order="timeline", partitions=2)
    table = pa.table(
        {
            "send_at": pa.array([DUE_MS + n for n in range(300)], pa.timestamp("ms")),
            "payload": texts(0, 300),
            "key": keys(300),
            "priority": pa.array([n % 3 for n in range(300)], pa.int32()),
        }
    )
    file = str(tmp_path / "due.parquet")
    pq.write_table(table, file, row_group_size=130)
    with monkeypatch.context() as patched:
        dies(patched, 4, behind=True)
        with pytest.raises(RuntimeError, match="planned"):
            backfill(spark, broker.link, there, [file], names=ColumnNames(due="send_at"))
    done = backfill(spark, broker.link, there, [file], names=ColumnNames(due="send_at"))
    assert 0 < done.rows < 300
    assert done.rows + done.rows_before == 300
    rows = sorted(broker.rows(there), key=lambda row: row["due"])
    assert [row["payload"] for row in rows] == texts(0, 300)
    assert [int(row["due"].timestamp() * 1_000) for row in rows] == [DUE_MS + n for n in range(300)]
    assert [row["priority"] for row in rows] == [n % 3 for n in range(300)]
    assert backfill(spark, broker.link, there, [file], names=ColumnNames(due="send_at")).repeated
    moved = str(tmp_path / "moved.parquet")
    (tmp_path / "due.parquet").rename(moved)
    assert backfill(spark, broker.link, there, [moved], names=ColumnNames(due="send_at")).repeated, (
        "the same file elsewhere"
    )
    with pytest.raises(AlreadyExists, match="digests"):
        pq.write_table(table.slice(0, 10), file)
        backfill(spark, broker.link, there, [file], job=done.job, names=ColumnNames(due="send_at"))


def test_a_backfill_of_lines(spark, broker, tmp_path):
    there = broker.create(order="timeline")
    lines = [{"payload": {"n": n}, "due": DUE_MS + n, "headers": {"n": str(n)}} for n in range(50)]
    lines += [{"payload": "text", "due": "2027-01-31T12:00:00Z", "id": secrets.token_hex(4)}]
    (tmp_path / "a.ndjson").write_text("\n".join(map(json.dumps, lines)))
    with (tmp_path / "b.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["payload", "due", "key", "headers"])
        writer.writerows([[f"é, {n}", DUE_MS + n, "" if n % 2 else "k", '{"a": "b"}'] for n in range(30)])
    done = backfill(spark, broker.link, there, [str(tmp_path / "a.ndjson"), str(tmp_path / "b.csv")])
    assert done.rows == 81
    rows = broker.rows(there)
    assert json.loads(rows[7]["payload"]) == {"n": 7}
    assert rows[7]["headers"] == [("n", "7")]
    assert (rows[50]["payload"], rows[50]["due"].isoformat()) == (b"text", "2027-01-31T12:00:00+00:00")
    assert [row["payload"].decode() for row in rows[51:]] == [f"é, {n}" for n in range(30)]
    assert [row["key"] for row in rows[51:54]] == ["k", None, "k"]


def test_files_that_differ_anywhere_are_other_jobs(tmp_path):
    lines = [f'{{"payload": "{n:06}", "due": {DUE_MS}}}' for n in range(6_000)]
    (tmp_path / "one.ndjson").write_text("\n".join(lines))
    lines[3_000] = lines[3_000].replace("003000", "003001")
    (tmp_path / "two.ndjson").write_text("\n".join(lines))
    one, two = (backfill_files.source(str(tmp_path / f"{each}.ndjson")) for each in ("one", "two"))
    assert one.bytes == two.bytes
    assert backfills._called("t", [one], ColumnNames()) != backfills._called("t", [two], ColumnNames())


def test_files_by_url_with_settings_and_odd_names(tmp_path):
    place, file = backfill_files._split("s3://KEY:SECRET@lake/a/b%20c.csv?region=eu-west-1&endpoint_override=h:1/x")
    assert (place.url, file) == ("s3://KEY:SECRET@lake/a?region=eu-west-1&endpoint_override=h:1/x", "b c.csv")
    odd = tmp_path / "a ?#%20.csv"
    odd.write_text(f"due,payload\n{DUE_MS},x\n")
    for path in (str(odd), odd.as_uri()):
        [source] = sources = [backfill_files.source(path)]
        [batch] = backfill_files.read(sources, ColumnNames(), backfill_files.FilePiece(0, 0, 0, source.bytes))
        assert batch.num_rows == 1


@pytest.mark.parametrize("size", [1, 3, 7, 10, 11, 1_000])
@pytest.mark.parametrize("end", ["", "\n"])
def test_every_line_is_in_one_piece(tmp_path, size, end):
    file = tmp_path / "x.csv"
    file.write_text("due,payload\n" + "\n".join(f"{DUE_MS + n},{'x' * n}" for n in range(20)) + end)
    sources = [backfill_files.source(str(file))]
    found = []
    for piece in backfill_files.pieces(sources, 5, size):
        for batch in backfill_files.read(sources, ColumnNames(), piece):
            found += [len(payload) for payload in batch.column("payload").to_pylist()]
    assert found == list(range(20))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("due,payload\nsoon,x\n", "due: got 'soon'"),
        ("when,payload\n1,x\n", "when"),
        ("payload\nx\n", "a column 'due'"),
        ("due,payload,color\n1,x,red\n", "color"),
    ],
)
def test_files_that_do_not_fit(tmp_path, content, match):
    (tmp_path / "x.csv").write_text(content)
    sources = [backfill_files.source(str(tmp_path / "x.csv"))]
    with pytest.raises(InvalidInput, match=match):
        for piece in backfill_files.pieces(sources, 10, 100):
            list(backfill_files.read(sources, ColumnNames(), piece))
    with pytest.raises(InvalidInput, match="a file that is there"):
        backfill_files.source(str(tmp_path / "y.csv"))
    (tmp_path / "x.ndjson").write_text('{"payload": 1, "dew": 3}\n')
    with pytest.raises(InvalidInput, match="dew"):
        list(
            backfill_files.read(
                [backfill_files.source(str(tmp_path / "x.ndjson"))],
                ColumnNames(),
                backfill_files.FilePiece(0, 0, 0, 99),
            )
        )
