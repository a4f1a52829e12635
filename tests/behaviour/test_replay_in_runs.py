"""Publishes that recovery applies together give the same state as one by one, and the same messages."""

import asyncio
import shutil
from random import Random

import pytest

import wherry
from wherry.broker.commit import recovery
from wherry.core.index import directory
from wherry.core.inspect.audit import audit
from wherry.core.state import snapshot
from wherry.journal.bodies.store import BodyStore
from wherry.model.calls.publish import PublishOptions
from wherry.model.catalog.topic import Topic

TOPICS = (
    Topic(name="plain", partitions=3),
    Topic(name="stream", keep="age", keep_ms=3_600_000),
    Topic(name="ranked", order="priority"),
    Topic(name="timed", order="timeline"),
    Topic(name="small", messages_max=40, overflow="dead-letter"),
)


async def work(broker, random: Random) -> None:
    """Do all that may stand between two publishes of one message."""
    for topic in TOPICS:
        await broker.create_topic(topic)
        await broker.subscribe(topic.name, "one")
    await broker.subscribe("plain", "two", key_order=True)
    consumer = await broker.consumer("plain", "one")
    for number in range(400):
        name = random.choice(["plain"] * 8 + ["stream", "ranked", "timed", "small"])
        message = wherry.Message(payload=b"%d" % number * random.randint(1, 9))
        odd = random.random()
        if odd < 0.05:
            message = wherry.Message(payload=message.payload, id=f"id-{number}", key="k")
        elif odd < 0.1:
            message = wherry.Message(payload=message.payload, headers={"a": "b"}, key=f"{number % 3}")
        elif odd < 0.15:
            message = wherry.Message(payload=message.payload, expires_ms=4_000_000_000_000)
        await broker.publish(name, [message] * random.randint(1, 3) if odd >= 0.05 else [message])
        if odd > 0.97:
            await (await consumer.pull(5)).ack([0])
        elif odd > 0.95:
            await broker.publish("plain", [b"gone with the process"], PublishOptions(persistent=False))
        elif odd > 0.93:
            await broker.stage(f"s{number}", "plain", [b"staged"])
            await broker.commit(f"s{number}")
        elif odd > 0.92:
            await broker.checkpoint()


async def found(path) -> tuple[str, dict[str, list[dict[str, object]]]]:
    """Start on a directory, and return the state and every message with its place."""
    async with wherry.open(path) as broker:
        audit(broker.shard.state)
        digest = snapshot.digest(broker.shard.state)
        places = [(topic.name, partition) for topic in TOPICS for partition in range(topic.partitions)]
        bodies = {
            f"{name}-{partition}": (await broker.browse(name, partition=partition)).to_pylist()
            for name, partition in places
        }
        return digest, bodies


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.more)])
def test_replay_in_runs_gives_the_state_of_entry_by_entry(tmp_path, monkeypatch, seed):
    """Let a run fill several parts of a directory too."""
    monkeypatch.setattr(directory, "PART_ROWS", 16)

    async def main():
        async with wherry.open(tmp_path / "live") as broker:
            await work(broker, Random(seed))
            for name in ("single", "pairs", "runs"):
                shutil.copytree(tmp_path / "live", tmp_path / name)
        runs = await found(tmp_path / "runs")
        monkeypatch.setattr(recovery, "RUN_MAX", 2)
        pairs = await found(tmp_path / "pairs")
        monkeypatch.setattr(recovery, "is_plain", lambda state, found: False)
        single = await found(tmp_path / "single")
        assert runs == pairs == single
        assert len(runs[1]["plain-0"]) > 50

    asyncio.run(main())


def test_a_run_ends_when_its_bytes_are_many_so_that_memory_stays_near_its_budget(tmp_path, monkeypatch):
    most = 0
    put = BodyStore.put

    def spied(store, cached):
        nonlocal most
        put(store, cached)
        most = max(most, store.cached_bytes)

    async def main():
        async with wherry.open(tmp_path / "live") as broker:
            await broker.create_topic("t")
            await broker.subscribe("t", "readers")
            for _ in range(70):
                await broker.publish("t", [bytes(60_000)])
            shutil.copytree(tmp_path / "live", tmp_path / "copy")
        monkeypatch.setattr(recovery, "RUN_BYTES_MAX", 1 << 20)
        monkeypatch.setattr(BodyStore, "put", spied)
        async with wherry.open(tmp_path / "copy", cache_bytes=1 << 20) as broker:
            assert broker.stats("t").messages == 70

    asyncio.run(main())
    assert 1 << 20 < most < 3 << 20
