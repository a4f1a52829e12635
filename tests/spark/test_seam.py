"""One DataFrame over archive and log: no gap, no overlap, wherever the cut is and whatever happens meanwhile."""

import os
import random

import pytest

from tests.integration.flights import Flights, Pushed
from wherry.model.errors import InvalidInput, NotFound
from wherry.spark.options.options import RETRY_S
from wherry.spark.pipelines.archive import manifest
from wherry.spark.pipelines.archive.archive import ArchiveOptions, archive
from wherry.spark.pipelines.archive.manifest_store import store
from wherry.spark.pipelines.archive.seam import _link, archived, whole
from wherry.spark.pipelines.archive.tail import UnarchivedRange, tail

CUTS = int(os.environ.get("SEAM_CUTS", "10"))
SEED = int(os.environ.get("SEAM_SEED", "4"))
COLUMNS = ("partition", "offset", "key", "payload")


def rows_of(frame):
    return sorted((row["partition"], row["offset"], row["key"], bytes(row["payload"])) for row in frame.collect())


class World:
    """A topic, its archive, and all that was ever published."""

    def __init__(self, spark, broker, folder, **topic):
        self.spark, self.broker, self.to = spark, broker, str(folder)
        self.topic = broker.create(partitions=3, **topic)
        broker.link.action("subscribe", {"topic": self.topic, "name": "holds", "start": "earliest"})
        self.ends = {0: 0, 1: 0, 2: 0}
        self.all = []

    def publish(self, count):
        first = len(self.all)
        payloads = [f"m{first + n}".encode() for n in range(count)]
        self.broker.publish(self.topic, payloads, key=[f"k{(first + n) % 13}" for n in range(count)])
        for partition, start in self.ends.items():
            ticket = {"topic": self.topic, "partition": partition, "start": start, "stop": 1 << 40}
            for batch in self.broker.link.read(ticket):
                self.all += [(partition, *(row[name] for name in COLUMNS[1:])) for row in batch.to_pylist()]
        self.ends = {int(n): stop for n, stop in self.extents()["stop"].items()}
        self.all.sort()

    def extents(self):
        return self.broker.link.action("extents", {"topic": self.topic})

    def let_go(self):
        """Settle everything for all subscriptions but the archive's."""
        self.broker.link.action("advance", {"topic": self.topic, "subscription": "holds", "offsets": self.ends})

    def archive(self, **options):
        return archive(
            self.spark,
            self.broker.link,
            self.topic,
            self.to,
            ArchiveOptions(rows_per_task=120, consume=True, **options),
        )

    def whole(self, **options):
        return whole(self.spark, self.topic, archive=self.to, url=self.broker.url, rows_per_task=70, **options)


@pytest.mark.rows("A22")
def test_archive_and_log_together_are_the_topic_at_random_cuts(spark, broker, tmp_path):
    chance, world = random.Random(SEED), World(spark, broker, tmp_path)
    world.publish(50)
    world.archive()
    for cut in range(CUTS):
        for _ in range(chance.randrange(3)):
            world.publish(chance.randrange(1, 90))
        if chance.random() < 0.4:
            world.archive(compact=chance.random() < 0.5)
        if chance.random() < 0.5:
            world.let_go()
        frame, expected = world.whole(), list(world.all)
        if chance.random() < 0.5:  # messages behind the cut are not in the frame
            world.publish(chance.randrange(1, 60))
        if chance.random() < 0.6:  # rows move from the log to the archive before they are read
            world.let_go()
            world.archive(compact=chance.random() < 0.5)
        assert rows_of(frame) == expected, f"seed {SEED}, cut {cut}"
    assert rows_of(frame) == expected, "the same again"


def test_rows_that_move_to_the_archive_behind_a_reader_are_found_there(spark, broker, tmp_path):
    """Start behind the beginning: another subscription still holds the first rows, so nothing looks lost."""
    world = World(spark, broker, tmp_path)
    world.publish(3)
    world.archive()
    world.publish(200)
    frame = world.whole()
    pushed = Pushed(Flights(broker.url), topic=world.topic, subscription="holds", messages=1_000)
    pushed.send(credit=1_000)
    got = list[tuple[int, int, int]]()
    while len(got) < 203:
        batch = pushed.next()
        got += zip(*(batch.column(name).to_pylist() for name in ("lease", "partition", "offset")), strict=True)
    pushed.send(ack=[f"{lease}:{offset}" for lease, _, offset in got if offset > 10], id=1)
    assert pushed.next() == {"done": 1}
    world.archive()
    left = broker.rows(world.topic)
    assert 0 < len(left) < 50, "holes behind what is held"
    assert rows_of(frame) == world.all
    assert len(world.all) == 203
    pushed.end()


def test_columns_and_the_archive_alone(spark, broker, tmp_path):
    world = World(spark, broker, tmp_path)
    world.publish(40)
    world.archive()
    world.publish(5)
    frame = world.whole(columns=["key", "topic"])
    assert frame.columns == ["key", "topic"]
    assert frame.groupBy("topic").count().collect() == [(world.topic, 45)]
    for native in (True, False):
        rows = archived(spark, world.topic, archive=world.to, native=native)
        assert rows.dtypes == world.whole().dtypes
        assert rows.count() == 40
        assert rows.where("published > current_timestamp() - interval 1 hour AND priority = 32768").count() == 40
    both = [archived(spark, world.topic, archive=world.to, native=native) for native in (True, False)]
    assert rows_of(both[0]) == rows_of(both[1])


def test_the_broker_is_as_the_environment_names_it(spark, broker, tmp_path, monkeypatch):
    world = World(spark, broker, tmp_path)
    world.publish(3)
    world.archive()
    monkeypatch.setenv("WHERRY_FLIGHT_URL", broker.url)
    assert whole(spark, world.topic, archive=world.to).count() == 3
    monkeypatch.setenv("WHERRY_KEY", "wk_a_b")
    monkeypatch.setenv("WHERRY_CA", "here.pem")
    assert _link(None, None, None) == (broker.url, "wk_a_b", "here.pem", RETRY_S)
    assert _link("grpc://x:1", "k", "c") == ("grpc://x:1", "k", "c", RETRY_S)


def test_a_wrong_option_is_refused(spark, broker, tmp_path):
    world = World(spark, broker, tmp_path)
    with pytest.raises(InvalidInput, match="an archive of topic"):
        world.whole()
    world.publish(3)
    world.archive()
    with pytest.raises(InvalidInput, match="some of topic, partition"):
        world.whole(columns=["color"])
    broker.link.action("delete-topic", {"topic": world.topic})
    with pytest.raises(NotFound):
        world.whole()


def test_a_tail_that_was_not_archived_is_lost(broker, tmp_path, spark):
    world = World(spark, broker, tmp_path)
    world.publish(30)
    here = store(world.to).under(manifest.folder(world.topic))
    manifest.begun(here, world.topic, "archive", "x")
    world.let_go()
    partition, stop = max(world.ends.items(), key=lambda each: each[1])
    with pytest.raises(Exception, match="is gone"):
        list(tail(broker.link, here, UnarchivedRange(world.topic, partition, 0, stop), ["offset", "payload"]))
