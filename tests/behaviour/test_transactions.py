"""Publishes and acks under a key: all of them at once, once, or not at all."""

import asyncio

import pytest

from tests.behaviour.world import Home, LoopClock, VirtualClock, bodies, drain, in_loop, in_virtual_time, reader_of
from wherry import (
    Broker,
    DiskFull,
    DuplicateId,
    InvalidInput,
    LimitReached,
    Message,
    NotFound,
    Retry,
    StageLost,
    StaleLease,
)
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.sim.world import loop as sim


@in_loop
async def test_what_is_staged_over_topics_and_calls_is_visible_at_the_commit_and_not_before(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("a")
    await broker.create_topic("b", order="priority", partitions=3)
    for topic in ("a", "b"):
        await broker.subscribe(topic, "readers")
    await broker.stage("k", "a", bodies(2))
    await broker.stage("k", "b", [Message(payload=b"later", priority=9)], partition=2)
    broker = await home.again(how)
    await broker.publish("a", [b"between"])
    await broker.stage("k", "b", [Message(payload=b"first", priority=1)], partition=2)
    assert (broker.stats("a").messages, broker.stats("b").messages) == (1, 0)
    assert (await broker.browse("b", partition=2)).num_rows == 0
    answer = await broker.commit("k")
    assert answer == [("a", 0, 1, 2), ("b", 2, 0, 1), ("b", 2, 1, 1)]
    broker = await home.again(how)
    assert await drain(await broker.consumer("a", "readers")) == [b"between", b"m0", b"m1"]
    assert await drain(await broker.consumer("b", "readers")) == [b"first", b"later"]


@in_loop
async def test_a_repeated_commit_is_a_success_that_does_nothing(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    await broker.stage("k", "t", bodies(2))
    answer = await broker.commit("k")
    assert await broker.commit("k") == answer
    broker = await home.again(how)
    assert await broker.commit("k") == answer
    assert await drain(await broker.consumer("t", "readers")) == bodies(2)
    with pytest.raises(StageLost, match="committed before"):
        await broker.stage("k", "t", b"more")
    with pytest.raises(NotFound, match="stage"):
        await broker.commit("never seen")


@in_loop
async def test_an_aborted_stage_leaves_nothing_and_its_key_is_free(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    await broker.stage("k", "t", [b"thrown away"])
    await broker.abort("k")
    await broker.abort("k")
    broker = await home.again(how)
    with pytest.raises(NotFound):
        await broker.commit("k")
    await broker.stage("k", "t", [b"kept"])
    await broker.commit("k")
    assert await drain(await broker.consumer("t", "readers")) == [b"kept"]


@in_loop
async def test_acks_and_publishes_move_together(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("in", partitions=2)
    await broker.create_topic("out")
    reader = await reader_of(broker, "in")
    await broker.subscribe("out", "readers")
    for number in range(4):
        await broker.publish("in", f"{number}")
    delivery = await reader.pull()
    await delivery.stage_ack("k", [0])
    await delivery.stage_ack("k", [1, 2])
    await delivery.stage_ack("k", [2])  # again: no harm
    await broker.stage("k", "out", [b"result"])
    stats = broker.stats("in").subscriptions[0]
    assert (stats.leased, broker.stats("out").messages) == (4, 0)
    await broker.commit("k")
    stats = broker.stats("in").subscriptions[0]
    assert (stats.leased, broker.stats("out").messages) == (1, 1)
    left = delivery.payloads()[3]
    broker = await home.again(how)
    assert await drain(await broker.consumer("in", "readers")) == [left]
    assert await drain(await broker.consumer("out", "readers")) == [b"result"]


@in_loop
async def test_a_commit_whose_lease_is_over_does_nothing_at_all(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", lease_ms=1_000, retry=Retry(first_ms=0, jitter=0.0))
    await broker.publish("t", [b"x"])
    delivery = await reader.pull()
    await broker.stage("k", "t", [b"result"])
    await delivery.stage_ack("k")
    clock.advance(1_000)
    with pytest.raises(StaleLease):
        await broker.commit("k")
    assert [(m.payload, m.attempt) for m in await reader.pull()] == [(b"x", 2)]


@in_loop
async def test_a_stage_that_lost_its_leases_in_a_restart_can_only_be_aborted(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(2))
    await (await reader.pull(1)).stage_ack("k")
    await broker.stage("k", "t", [b"result"])
    broker = await home.again(how)
    delivery = await (await broker.consumer("t", "readers")).pull()
    with pytest.raises(StageLost, match="restart"):
        await broker.commit("k")
    with pytest.raises(StageLost, match="restart"):
        await delivery.stage_ack("k", [1])
    with pytest.raises(StageLost, match="restart"):
        await broker.stage("k", "t", [b"more"])
    await broker.abort("k")
    await delivery.ack()
    assert broker.stats("t").messages == 0


@in_virtual_time
async def test_an_abandoned_stage_expires_by_age(broker: Broker, clock: VirtualClock):
    await broker.create_topic("t")
    await broker.stage("k", "t", [b"x"])
    await asyncio.sleep(3_590)
    await broker.stage("k", "t", [b"y"])
    await asyncio.sleep(20)
    for late in (broker.commit("k"), broker.stage("k", "t", [b"z"])):  # neither joins the commit
        with pytest.raises(StageLost, match="in time"):
            await late
    assert broker.stats("t").messages == 0


@in_loop
async def test_a_commit_that_breaks_a_rule_of_one_topic_does_nothing_in_the_others(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("free")
    await broker.create_topic("full", messages_max=1)
    for policy in ("dead-letter", "refuse"):
        await broker.create_topic("full", messages_max=1, overflow=policy)
        await broker.stage(policy, "free", [b"x"])
        await broker.stage(policy, "full", bodies(2))
        with pytest.raises(LimitReached):
            await broker.commit(policy)
    await broker.publish("free", [Message(payload=b"x", id="taken")])
    await broker.stage("ids", "full", [b"x"])
    await broker.stage("ids", "free", [Message(payload=b"y", id="taken")])
    with pytest.raises(DuplicateId, match="taken"):
        await broker.commit("ids")
    broker = await home.again(how)
    assert (broker.stats("free").messages, broker.stats("full").messages, broker.stats("full").dead) == (1, 0, 0)
    await broker.cancel("free", "taken")
    await broker.commit("ids")
    assert broker.stats("free").messages == 1


@pytest.mark.rows("D39")
@in_loop
async def test_an_id_twice_in_one_stage_is_refused_at_the_commit(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    await broker.stage("k", "t", [Message(payload=b"1", id="same")], partition=0)
    await broker.stage("k", "t", [Message(payload=b"2", id="same")], partition=1)
    with pytest.raises(DuplicateId, match="same"):
        await broker.commit("k")
    assert broker.stats("t").messages == 0


@in_loop
async def test_a_stage_outlives_a_topic_it_named(home: Home, how: str):
    broker = await home.open()
    for topic in ("gone", "stays"):
        await broker.create_topic(topic)
        await broker.stage("k", topic, [topic.encode()])
    await broker.delete_topic("gone")
    broker = await home.again(how)
    answer = await broker.commit("k")
    assert answer == [("stays", 0, 0, 1)]
    assert await broker.commit("k") == answer


@in_loop
async def test_stages_do_not_mix(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.stage("one", "t", [b"1"])
    await broker.stage("two", "t", [b"2"])
    await broker.commit("two")
    assert await drain(reader) == [b"2"]
    await broker.commit("one")
    assert await drain(reader) == [b"1"]
    with pytest.raises(InvalidInput, match="partition"):
        await broker.stage("three", "t", [b"x"], partition=1)


@in_loop
async def test_staged_messages_keep_key_order_and_due_time(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=4)
    reader = await reader_of(broker, "t", key_order=True)
    await broker.publish("t", [Message(payload=b"a0", key="a")])
    await broker.stage("k", "t", [Message(payload=b"a1", key="a")])
    await broker.stage("k", "t", [Message(payload=b"later", key="b", due_ms=clock.now_ms + 100)])
    await broker.commit("k")
    assert (await reader.pull()).payloads() == [b"a0", b"a1"]
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    assert await drain(reader, batch=1) == [b"a0", b"a1"]
    clock.advance(100)
    assert await drain(reader) == [b"later"]


def test_a_commit_that_finds_no_room_leaves_the_leases_as_they_are():
    async def main() -> None:
        engine = MemoryEngine()
        broker = await start(engine, None, LoopClock())
        await broker.create_topic("t")
        reader = await reader_of(broker, "t")
        await broker.publish("t", [b"work"])
        delivery = await reader.pull()
        await delivery.stage_ack("k")
        await broker.stage("k", "t", [b"result"])
        engine.bytes_max = engine.stored_bytes
        with pytest.raises(DiskFull):
            await broker.commit("k")
        assert broker.stats("t").subscriptions[0].leased == 1
        await delivery.ack()
        await broker.close()

    sim.run(main())
