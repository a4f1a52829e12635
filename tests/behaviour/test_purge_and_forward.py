"""Messages that are taken out of a subscription unread, and dead letters that go on to other topics."""

from __future__ import annotations

import asyncio

import pytest

from tests.behaviour.world import Home, VirtualClock, bodies, drain, in_loop, reader_of
from wherry import DeadFilter, LimitReached, Message, NotFound, Subscription
from wherry.broker.calls import settle


@pytest.mark.rows("A23")
@in_loop
async def test_dead_letters_are_forwarded_to_other_topics_both_or_neither(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.create_topic("graves", messages_max=2)
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(3))
    await (await reader.pull()).dead_letter()
    first_two = DeadFilter(subscription="readers", partition=0, offsets=(0, 1))
    assert await broker.forward([("t", first_two)], [("graves", [b"a", b"b"], True)], by="exchange") == 2
    assert await broker.forward([("t", first_two)], [("graves", [b"a", b"b"], True)]) == 0
    with pytest.raises(LimitReached):
        await broker.forward([("t", DeadFilter())], [("graves", [b"c"], True)])
    broker = await home.again(how)
    assert (await broker.dead_letters("t")).column("offset").to_pylist() == [2]
    assert (await broker.browse("graves")).column("payload").to_pylist() == [b"a", b"b"]
    assert [action.by for action in broker.audit("t")] == ["exchange"]


@in_loop
async def test_a_purge_settles_what_is_ready_and_nothing_else(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    reader = await reader_of(broker, "t")
    other = await reader_of(broker, "t", "others")
    await broker.publish("t", [Message(payload=b"%d" % n, key=str(n)) for n in range(6)])
    await broker.publish("t", [Message(payload=b"later", due_ms=clock.now_ms + 1_000)])
    held = await reader.pull(2)
    assert await broker.purge("t", "readers") == 4
    assert await broker.purge("t", "readers") == 0
    await held.nack(delay_ms=0)
    broker = await home.again(how)
    clock.advance(1_000)
    reader, other = await broker.consumer("t", "readers"), await broker.consumer("t", "others")
    assert sorted(await drain(reader)) == sorted([*held.payloads(), b"later"])
    assert len(await drain(other)) == 7
    with pytest.raises(NotFound):
        await broker.purge("t", "nobody")


@in_loop
async def test_a_purge_in_steps_leaves_what_comes_meanwhile(home: Home, monkeypatch: pytest.MonkeyPatch):
    """Publish meanwhile what is more urgent than all that the purge takes."""
    monkeypatch.setattr(settle, "PURGE_STEP", 3)
    broker = await home.open()
    await broker.create_topic("t", order="priority")
    reader = await reader_of(broker, "t")
    await broker.publish("t", [Message(payload=b"old", priority=9) for _ in range(10)])
    purging = asyncio.create_task(broker.purge("t", "readers"))
    await asyncio.sleep(0)
    await broker.publish("t", [Message(payload=b"new", priority=0) for _ in range(5)])
    assert await purging == 10
    assert await drain(reader) == [b"new"] * 5


@in_loop
async def test_a_purge_where_keys_keep_their_order_reads_what_is_on_disk(home: Home):
    broker = await home.open(cache_bytes=1 << 20)
    await broker.create_topic("t")
    await broker.subscribe(Subscription(topic="t", name="readers", key_order=True))
    for _ in range(4):
        await broker.publish("t", [Message(payload=bytes(1_000), key=str(n % 5)) for n in range(1_000)])
    broker = await home.again("closed")
    assert await broker.purge("t", "readers") > 0


@in_loop
async def test_dead_letters_that_another_call_took_are_not_forwarded_again(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.create_topic("graves")
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(3))
    await (await reader.pull()).dead_letter()
    await broker.discard("t", DeadFilter(offsets=(1,)))
    with pytest.raises(NotFound, match="1"):
        await broker.forward([("t", DeadFilter(offsets=(0, 1)))], [("graves", [b"a", b"b"], True)])
    assert (await broker.browse("graves")).num_rows == 0
    assert (await broker.dead_letters("t")).column("offset").to_pylist() == [0, 2]


@in_loop
async def test_lasting_and_transient_messages_of_one_forward_have_places_of_their_own(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.create_topic("graves")
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(2))
    await (await reader.pull()).dead_letter()
    await broker.forward([("t", DeadFilter())], [("graves", [b"lasting"], True), ("graves", [b"passing"], False)])
    assert (await broker.browse("graves")).column("payload").to_pylist() == [b"lasting", b"passing"]
    broker = await home.again(how)
    assert b"lasting" in (await broker.browse("graves")).column("payload").to_pylist()


@in_loop
async def test_dead_letters_of_several_topics_are_forwarded_in_one_step_or_not_at_all(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("graves")
    for topic in ("a", "b"):
        await broker.create_topic(topic)
        reader = await reader_of(broker, topic)
        await broker.publish(topic, bodies(2))
        await (await reader.pull()).dead_letter()
    both = [(topic, DeadFilter(subscription="readers", partition=0, offsets=(0,))) for topic in ("a", "b")]
    assert await broker.forward(both, [("graves", [b"a0", b"b0"], True)]) == 2
    assert await broker.forward(both, [("graves", [b"a0", b"b0"], True)]) == 0, "another caller was first"
    late = [("a", DeadFilter(offsets=(1,))), ("b", DeadFilter(offsets=(0,)))]
    with pytest.raises(NotFound, match="b/0"):
        await broker.forward(late, [("graves", [b"a1", b"b0"], True)])
    broker = await home.again(how)
    assert [(await broker.dead_letters(topic)).column("offset").to_pylist() for topic in ("a", "b")] == [[1], [1]]
    assert (await broker.browse("graves")).column("payload").to_pylist() == [b"a0", b"b0"]
