"""Messages expire at once where a decision looks, and in rounds elsewhere: one entry for all topics (ADR 0026)."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from tests.behaviour.world import Home, LoopClock, VirtualClock, drain, in_loop, in_virtual_time, reader_of
from wherry import Broker, Message, PublishOptions
from wherry.broker.commit import shard
from wherry.broker.commit.shard import ROUND_MS
from wherry.core.decide import upkeep


@pytest.fixture(autouse=True)
def far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rounds `ROUND_MS` apart, as after one with many topics."""
    monkeypatch.setattr(shard, "ROUND_MIN_MS", ROUND_MS)


async def topics_with(broker: Broker, expires_ms: int, *names: str) -> None:
    """Make topics with one message each that expires at a time."""
    for name in names:
        await broker.create_topic(name, order="timeline")
        await broker.subscribe(name, "readers")
        await broker.publish(name, [Message(payload=name.encode(), id=name, expires_ms=expires_ms)])


async def begin_a_round(broker: Broker, clock: VirtualClock) -> None:
    """Have a message expire in a round now, so that the next round comes `ROUND_MS` later."""
    await topics_with(broker, clock.now_ms + 1, "earlier")
    clock.advance(1)
    assert broker.stats("earlier").messages == 0


def count(broker: Broker, topic: str) -> int:
    """Return how many messages a topic has; nothing expires by asking."""
    return broker.shard.state.topic(topic).messages


@in_loop
async def test_a_pull_gets_no_expired_message_before_the_round_has_come(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    reader = await reader_of(broker, (await broker.create_topic("t")).name)
    await topics_with(broker, clock.now_ms + 5, "other")
    await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms + 5)])
    await begin_a_round(broker, clock)
    clock.advance(4)
    assert await drain(reader) == []
    assert (count(broker, "t"), count(broker, "other")) == (0, 1), "the round came, so this test shows nothing"
    await home.again(how)


@in_loop
async def test_other_topics_expire_within_one_round(home: Home, clock: VirtualClock):
    broker = await home.open()
    await topics_with(broker, clock.now_ms + 2, "a", "b")
    await broker.create_topic("t")
    await begin_a_round(broker, clock)
    clock.advance(ROUND_MS - 1)
    await broker.publish("t", [b"1"])
    assert (count(broker, "a"), count(broker, "b")) == (1, 1)
    clock.advance(1)
    await broker.publish("t", [b"2"])
    assert (count(broker, "a"), count(broker, "b")) == (0, 0)


@in_loop
async def test_a_round_is_one_entry_for_all_topics(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    names = [f"t{number}" for number in range(20)]
    await topics_with(broker, clock.now_ms + 5, *names)
    clock.advance(5)
    before = broker.shard.committer.submitted
    assert broker.stats("t0").messages == 0
    assert broker.shard.committer.submitted == before + 1
    assert [count(broker, name) for name in names] == [0] * 20
    await home.again(how)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 3), (7, 1, 5), (1,) * 7])
@in_loop
async def test_the_bound_of_an_entry_forgets_no_partition(
    home: Home, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
):
    monkeypatch.setattr(upkeep, "EXPIRE_STEP", 3)
    broker = await home.open()
    for number, size in enumerate(sizes):
        await broker.create_topic(f"t{number}", partitions=2)
        for partition in (0, 1):
            messages = [Message(payload=b"x", expires_ms=clock.now_ms + 5) for _ in range(size)]
            await broker.publish(f"t{number}", messages, PublishOptions(partition=partition))
    clock.advance(5)
    broker.stats("t0")
    assert [count(broker, f"t{number}") for number in range(len(sizes))] == [0] * len(sizes)
    await home.again()


@in_loop
async def test_no_listing_shows_an_expired_message(home: Home, clock: VirtualClock):
    broker = await home.open()
    names = ("browse", "get", "search", "scheduled")
    soon_ms = clock.now_ms + 5
    await topics_with(broker, soon_ms, *names)
    await broker.publish("scheduled", [Message(payload=b"x", due_ms=soon_ms + 50, expires_ms=soon_ms)])
    await begin_a_round(broker, clock)
    assert (await broker.scheduled("scheduled", "readers")).num_rows == 1
    clock.advance(4)
    assert (await broker.browse("browse")).num_rows == 0
    assert (await broker.get("get", "get")).num_rows == 0
    assert (await broker.search("search")).num_rows == 0
    assert count(broker, "scheduled") == 2, "the round came, so this test shows nothing"
    assert (await broker.scheduled("scheduled", "readers")).num_rows == 0


@in_virtual_time
async def test_a_message_that_expires_after_a_pause_does_so_at_once(broker: Broker, clock: LoopClock):
    await broker.create_topic("t", expired="dead-letter")
    await broker.subscribe("t", "readers")
    for _ in range(3):
        await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms + 1_000)])
        await asyncio.sleep(0.995)
        assert count(broker, "t") == 1
        await asyncio.sleep(0.007)
        assert count(broker, "t") == 0


@in_virtual_time
async def test_a_message_that_expired_on_lease_is_removed_within_a_round_of_its_release(
    broker: Broker, clock: LoopClock
):
    await broker.create_topic("t")
    await broker.subscribe("t", "readers", lease_ms=2_500)
    for end in ("release", "nack", "close", "lease"):
        reader = await broker.consumer("t", "readers")
        await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms + 100)])
        held = await reader.pull(1)
        await asyncio.sleep(2.5 if end == "lease" else 0.333)
        assert count(broker, "t") == int(end != "lease")
        if end == "release":
            await held.release()
        elif end == "nack":
            await held.nack()
        await (reader.close() if end == "close" else asyncio.sleep(0))
        await asyncio.sleep((ROUND_MS + 3) / 1_000)
        assert count(broker, "t") == 0, end
        await reader.close()


@in_loop
async def test_a_publish_finds_neither_the_place_nor_the_id_of_an_expired_message_taken(
    home: Home, clock: VirtualClock, how: str
):
    broker = await home.open()
    await broker.create_topic("open")
    await broker.create_topic("bounded", messages_max=1)
    for topic in ("open", "bounded"):
        await broker.publish(topic, [Message(payload=b"x", id="taken", expires_ms=clock.now_ms + 5)])
    await begin_a_round(broker, clock)
    clock.advance(4)
    await broker.publish("open", b"one row, which observes nothing")
    assert count(broker, "open") == 2, "the round came, so this test shows nothing"
    await broker.publish("bounded", b"one row")
    await broker.publish("open", [Message(payload=b"y", id="taken")])
    assert (count(broker, "open"), count(broker, "bounded")) == (2, 1)
    await home.again(how)


@in_loop
async def test_expired_messages_do_not_fill_the_buffer_of_a_subscription(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers", buffer_messages=1)
    await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms + 5)])
    await begin_a_round(broker, clock)
    clock.advance(4)
    await broker.publish("t", b"one row")
    assert [each.name for each in broker.subscriptions("t")] == ["readers"]


@in_virtual_time
async def test_a_round_that_found_no_room_is_over_when_nothing_is_left_to_expire(
    broker: Broker, clock: LoopClock
) -> None:
    """End such a round, since the housekeeper would else ask a full disk for room for ever."""
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    shard = broker.shard
    with mock.patch.object(shard, "_upkeep_room", upkeep.Room(expiry=lambda _: False)):
        await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms + 1_000)])
        await asyncio.sleep(2)
        assert shard.expiry_refused
        await broker.delete_topic("t")
        await asyncio.sleep(2)
        assert not shard.expiry_refused
