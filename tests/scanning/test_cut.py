"""One cut: each row once and none missing, wherever the cut is and whatever happens behind it."""

import random
import threading
import time

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from polars.testing import assert_frame_equal

from tests.examples import scaled
from tests.scanning.worlds import World
from wherry.model.errors import Corrupt, HistoryLost, NotFound, StorageError
from wherry.scanning.cut import resolve
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive.tail import UnarchivedRange, tail

PLACE = ["partition", "offset"]
PATIENCE_S = 60


@pytest.fixture
def queue(broker, tmp_path):
    """Make a queue whose messages leave the log when they are archived and let go."""
    made = World(broker, tmp_path, keep="settled", keep_bytes=None)
    made.hold()
    return made


def places(frame):
    return frame.select(PLACE).sort(PLACE).rows()


def all_places(stop):
    return [(partition, offset) for partition, end in sorted(stop.items()) for offset in range(end)]


@pytest.mark.rows("A22")
def test_archive_and_log_together_are_the_topic_at_random_cuts(queue):
    chance = random.Random(4)
    queue.publish(50, chance)
    queue.archive()
    for cut in range(scaled(12)):
        for _ in range(chance.randrange(3)):
            queue.publish(chance.randrange(1, 90), chance)
        if chance.random() < 0.4:
            queue.archive()
        if chance.random() < 0.5:
            queue.let_go()
        scan, expected = queue.scan(archive=queue.to), queue.published
        frame, before = scan.polars(), None
        if chance.random() < 0.5:
            before = frame.collect()
        if chance.random() < 0.5:  # messages behind the cut are not in the frame
            queue.publish(chance.randrange(1, 60), chance)
        if chance.random() < 0.6:  # rows move from the log to the archive before they are read
            queue.let_go()
            queue.archive()
        rows = frame.collect()
        assert places(rows) == all_places(scan.stop), f"cut {cut}"
        assert rows.height == expected
        assert_frame_equal(rows if before is None else before, rows, check_row_order=False)
        assert len(scan.duckdb(duckdb.connect()).fetchall()) == expected
        keyed = frame.filter(key="ann").collect()  # where the broker filters, and the archive has what it lost
        assert_frame_equal(keyed, rows.filter(key="ann"), check_row_order=False)


def test_publishes_archiving_and_removals_go_on_beside_scans(queue):
    queue.publish(10, random.Random(1))
    queue.archive()
    stopped, failed = threading.Event(), []

    def goes_on():
        chance = random.Random(2)
        try:
            while not stopped.is_set():
                queue.publish(chance.randrange(1, 80), chance)
                if chance.random() < 0.7:
                    queue.let_go()
                    queue.archive()
        except Exception as fault:
            failed.append(fault)

    thread = threading.Thread(target=goes_on)
    thread.start()
    try:
        for _ in range(scaled(8)):
            scan = queue.scan(archive=queue.to)
            frame, expected = scan.polars(), all_places(scan.stop)
            assert places(frame.collect()) == expected
            assert scan.duckdb(duckdb.connect()).aggregate("count(*)").fetchall() == [(len(expected),)]
            twice = frame.join(frame, on=PLACE)  # a frame that is joined with itself has one end
            assert places(twice.collect(engine="streaming")) == expected
            assert places(frame.collect()) == expected, "the same again"
    finally:
        stopped.set()
        thread.join(PATIENCE_S)
    assert failed == []


def trimmed(world):
    """Publish until the broker has removed the first messages."""
    chance, until = random.Random(3), time.monotonic() + PATIENCE_S
    while not any(world.extents()["start"].values()):
        assert time.monotonic() < until
        world.publish(200, chance)


def test_a_stream_that_was_trimmed_behind_the_cut_is_an_error(broker, tmp_path):
    world = World(broker, tmp_path, partitions=1, keep="bytes", keep_bytes=20_000)
    world.publish(100, random.Random(3))
    strict, lenient = world.scan(), world.scan(fail_on_loss=False)
    first = strict.polars().select("published").head(1).collect().item()
    trimmed(world)
    for frame in (strict.polars(), strict.polars().filter(key="ann"), strict.polars().filter(published=first)):
        with pytest.raises(HistoryLost):
            frame.collect()
    with pytest.raises(HistoryLost):  # which messages of that time are gone is not known
        strict.polars().filter(pl.col("published") > first).collect()
    with pytest.raises(Exception, match="is gone"):
        strict.duckdb(duckdb.connect()).fetchall()
    with pytest.raises(HistoryLost):
        strict.polars().select(pl.len()).collect()
    rows = lenient.polars().collect().height
    assert rows < 100
    assert lenient.polars().select(pl.len()).collect().item() == rows


def test_a_stream_that_was_trimmed_after_it_was_archived_is_whole(broker, tmp_path):
    world = World(broker, tmp_path, partitions=1, keep="bytes", keep_bytes=20_000)
    world.publish(100, random.Random(3))
    world.archive()
    world.publish(50, random.Random(5))
    scan = world.scan(archive=world.to)
    rows = scan.polars().collect()
    last = rows["published"].max()
    world.archive()
    trimmed(world)
    assert_frame_equal(scan.polars().collect(), rows, check_row_order=False)
    late = scan.polars().filter(published=last).collect()
    assert_frame_equal(late, rows.filter(published=last), check_row_order=False)
    assert late.height > 0


def test_what_neither_log_nor_archive_has_is_an_error_or_left_out(broker, tmp_path):
    world = World(broker, tmp_path, partitions=1, keep="bytes", keep_bytes=20_000)
    world.publish(50, random.Random(3))
    world.archive()
    world.publish(50, random.Random(5))
    strict, lenient = world.scan(archive=world.to), world.scan(archive=world.to, fail_on_loss=False)
    trimmed(world)
    with pytest.raises(HistoryLost):
        strict.polars().collect()
    found = lenient.polars().collect()["offset"].to_list()
    assert found[:50] == list(range(50)), "the archive has these"
    assert found == sorted(set(found)), "none twice"
    assert len(found) < 100
    world.archive()  # now the archive has what is left of them, and they may be in the log as well
    assert lenient.polars().collect()["offset"].to_list() == found


def test_the_log_behind_an_archive_is_not_held_in_memory(queue):
    queue.publish(10, random.Random(1))
    queue.archive()
    rows, count = 10_000, 100

    def read(ticket):
        for at in range(0, count * rows, rows):
            yield pa.record_batch([pc.add(pa.array(np.arange(at, at + rows)), ticket["start"])], names=["offset"])

    span = UnarchivedRange(queue.topic, 0, 10, 10 + count * rows)
    before, most, last = pa.total_allocated_bytes(), 0, 9
    for batch in tail(queue.broker.link, queue.here, span, ["offset"], read=read):
        assert batch.column("offset")[0].as_py() == last + 1
        last, most = batch.column("offset")[-1].as_py(), max(most, pa.total_allocated_bytes() - before)
    assert last + 1 == span.stop
    assert most < 10 * rows * 8, "a few batches"


def test_a_queue_with_an_archive_has_all_or_fails(queue):
    queue.publish(30, random.Random(3))
    queue.archive()
    queue.publish(30, random.Random(4))
    strict, lenient = queue.scan(archive=queue.to), queue.scan(archive=queue.to, fail_on_loss=False)
    queue.broker.link.action("unsubscribe", {"topic": queue.topic, "name": "archive"})
    queue.let_go()
    with pytest.raises(HistoryLost):
        strict.polars().collect()
    assert lenient.polars().collect().height == 30


def test_settled_messages_of_a_queue_are_left_out(queue):
    queue.publish(30, random.Random(3))
    scan = queue.scan()
    queue.let_go()
    assert scan.polars().collect().height == 0


def test_another_topic_of_the_same_name_is_not_read(broker, tmp_path):
    world = World(broker, tmp_path)
    world.publish(30, random.Random(3))
    scan = world.scan()
    broker.link.action("delete-topic", {"topic": world.topic})
    with pytest.raises(NotFound, match="no topic"):
        scan.polars().collect()
    broker.link.action("create-topic", {"name": world.topic, "partitions": 3})
    world.publish(30, random.Random(4))
    with pytest.raises(NotFound, match="deleted and created again"):
        scan.polars().collect()


def test_a_topic_that_is_made_anew_while_a_scan_is_made(broker, tmp_path):
    world = World(broker, tmp_path)
    world.publish(30, random.Random(3))
    asked = []

    class Link(FlightLink):
        """A link to the broker beside which the topic is made anew between two questions."""

        def action(self, name, body, wait_ms=0):
            asked.append(name)
            if len(asked) == 2:
                broker.link.action("delete-topic", {"topic": world.topic})
                broker.link.action("create-topic", {"name": world.topic, "partitions": 3})
            return super().action(name, body, wait_ms)

    with pytest.raises(NotFound, match="deleted and created again"):
        resolve(Link(broker.url), world.topic, {}, {}, None)


def test_an_offset_that_is_named_and_gone_is_an_error_beside_an_archive(broker, tmp_path):
    world = World(broker, tmp_path, partitions=1, keep="bytes", keep_bytes=20_000)
    world.archive()
    world.publish(100, random.Random(3))
    trimmed(world)
    for archive in (None, world.to):
        with pytest.raises(HistoryLost):
            world.scan(archive=archive, start={0: 0}).polars().collect()
        rest = world.scan(archive=archive).polars().collect()
        assert 0 not in rest["offset"].to_list()
        found = world.scan(archive=archive, start={0: 0}, fail_on_loss=False).polars().collect()
        assert_frame_equal(found, rest)


def test_a_file_that_was_removed_is_an_error(broker, tmp_path):
    world = World(broker, tmp_path)
    world.publish(30, random.Random(3))
    world.archive()
    scan = world.scan(archive=world.to)
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(StorageError, match="scan again"):
        scan.polars().collect()


@pytest.mark.parametrize("damage", [lambda _: b"", lambda whole: whole[:300], lambda whole: whole[:-4] + b"nope"])
def test_a_file_that_was_damaged_is_an_error_that_names_it(broker, tmp_path, damage):
    world = World(broker, tmp_path, partitions=1)
    world.publish(30, random.Random(3))
    world.archive()
    (path,) = tmp_path.rglob("*.parquet")
    path.write_bytes(damage(path.read_bytes()))
    for use in (world.scan(archive=world.to).polars().collect, world.scan(archive=world.to).arrow().read_all):
        with pytest.raises(Corrupt, match=path.name):
            use()


def test_a_damaged_place_in_a_file_is_an_error_that_names_it(broker, tmp_path):
    world = World(broker, tmp_path, partitions=1)
    world.publish(300, random.Random(3))
    world.archive()
    (path,) = tmp_path.rglob("*.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(1_000) + whole[1_004:])
    with pytest.raises(StorageError, match=path.name):
        world.scan(archive=world.to).polars().collect()


def test_the_next_scan_begins_where_the_last_one_ended(broker, tmp_path):
    world, chance = World(broker, tmp_path), random.Random(3)
    world.publish(30, chance)
    first = world.scan()
    world.publish(40, chance)
    second = world.scan(start=first.stop)
    third = world.scan(start=first.stop, end=second.stop)
    world.publish(50, chance)
    assert first.polars().collect().height == 30
    assert sorted(places(first.polars().collect()) + places(second.polars().collect())) == all_places(second.stop)
    assert places(third.polars().collect()) == places(second.polars().collect())
    world.archive()
    archived = world.scan(start=first.stop, end=second.stop, archive=world.to)
    assert places(archived.polars().collect()) == places(second.polars().collect())
