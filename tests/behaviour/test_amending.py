"""Changing a message that waits: its time, priority, body; versions; places."""

import pytest

from tests.behaviour.world import Home, VirtualClock, drain, in_loop, reader_of
from wherry import (
    Amendment,
    InvalidInput,
    LimitReached,
    Message,
    NotFound,
    NotWaiting,
    PublishOptions,
    Retry,
    VersionConflict,
)


@pytest.mark.rows("D38", "A3")
@in_loop
async def test_time_priority_body_and_headers_change_and_the_rest_stays(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    await broker.publish("t", [Message(payload=b"old", id="mine", key="k", priority=1, headers={"a": "1"})])
    amended = await broker.amend("t", "mine", payload=b"", priority=65_535, headers={"b": "2"})
    assert (amended.id, amended.version) == ("mine", 2)
    amended = await broker.amend("t", "mine", Amendment(due_ms=clock.now_ms + 10), version=2)
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    assert await drain(reader) == []
    clock.advance(10)
    (got,) = (await reader.pull()).messages()
    assert (got.payload, got.id, got.key, got.priority, got.headers) == (b"", "mine", "k", 65_535, {"b": "2"})
    assert got.offset == amended.offset
    assert broker.stats("t").messages == 1


@pytest.mark.rows("A3")
@in_loop
async def test_an_edit_of_an_old_version_is_refused(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    (message_id,) = (await broker.publish("t", [b"1"])).ids()
    assert (await broker.amend("t", message_id, payload=b"2", version=1)).version == 2
    with pytest.raises(VersionConflict, match="version 2") as conflict:
        await broker.amend("t", message_id, payload=b"lost", version=1)
    assert (conflict.value.expected, conflict.value.actual) == (1, 2)
    broker = await home.again(how)
    for stale in (1, 3):
        with pytest.raises(VersionConflict):
            await broker.amend("t", message_id, payload=b"lost", version=stale)
    assert (await broker.amend("t", message_id, payload=b"3", version=2)).version == 3
    assert (await broker.amend("t", message_id, payload=b"4")).version == 4
    assert await drain(await broker.consumer("t", "readers")) == [b"4"]


@pytest.mark.rows("D38", "A3")
@in_loop
async def test_an_amended_message_keeps_its_place_in_a_fifo(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", retry=Retry(first_ms=5, jitter=0.0))
    ids = (await broker.publish("t", [b"0", b"1", b"2"])).ids()
    for _ in range(3):
        await broker.amend("t", ids[1], payload=b"one")
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    delivery = await reader.pull()
    assert delivery.payloads() == [b"0", b"one", b"2"]
    await delivery.nack()
    clock.advance(5)
    broker = await home.again(how)
    assert await drain(await broker.consumer("t", "readers"), batch=1) == [b"0", b"one", b"2"]


@pytest.mark.rows("D38", "A3")
@in_loop
async def test_a_delayed_message_of_a_fifo_can_be_moved_and_returns_to_its_place(
    home: Home, clock: VirtualClock, how: str
):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    day_ms = 24 * 3_600_000
    first = Message(payload=b"0", id="moved", due_ms=clock.now_ms + day_ms)
    await broker.publish("t", [first, Message(payload=b"1")])
    await broker.amend("t", "moved", due_ms=clock.now_ms + 100)
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    clock.advance(99)
    held = await reader.pull()
    assert held.payloads() == [b"1"]
    await held.release()
    clock.advance(1)
    assert await drain(reader) == [b"0", b"1"]


@pytest.mark.rows("D38", "A3", "A7")
@in_loop
async def test_a_waiting_message_moves_in_priority_and_in_time(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("p", order="priority")
    await broker.create_topic("d", order="timeline")
    for topic in ("p", "d"):
        await broker.subscribe(topic, "readers")
    now_ms = clock.now_ms
    for n in (1, 2, 3):
        await broker.publish("p", [Message(payload=str(n).encode(), id=f"j{n}", priority=n)])
        await broker.publish("d", [Message(payload=str(n).encode(), id=f"j{n}", due_ms=now_ms + n)])
    await broker.amend("p", "j3", priority=0)
    await broker.amend("p", "j1", priority=9)
    await broker.amend("d", "j3", due_ms=now_ms)
    await broker.amend("d", "j1", due_ms=now_ms + 9)
    broker = await home.again(how)
    assert await drain(await broker.consumer("p", "readers")) == [b"3", b"2", b"1"]
    reader = await broker.consumer("d", "readers")
    assert await drain(reader) == [b"3"]
    clock.advance(2)
    assert await drain(reader) == [b"2"]
    clock.advance(6)
    assert await drain(reader) == []
    clock.advance(1)
    assert await drain(reader) == [b"1"]


@pytest.mark.rows("A3")
@in_loop
async def test_only_a_waiting_message_can_be_changed(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    ids = (await broker.publish("t", [b"leased", b"acked", b"dead", b"waits"])).ids()
    delivery = await reader.pull(3)
    await delivery.ack([1])
    await delivery.dead_letter([2])
    with pytest.raises(NotWaiting, match="leased"):
        await broker.amend("t", ids[0], payload=b"x")
    with pytest.raises(NotFound):
        await broker.amend("t", ids[1], payload=b"x")
    with pytest.raises(NotWaiting, match="dead"):
        await broker.amend("t", ids[2], payload=b"x")
    with pytest.raises(NotFound):
        await broker.amend("t", "nobody", payload=b"x")
    for wrong in ({}, {"colour": "red"}, {"payload": None}):
        with pytest.raises(InvalidInput):
            await broker.amend("t", ids[3], **wrong)
    with pytest.raises(InvalidInput, match="version"):
        await broker.amend("t", ids[3], payload=b"x", version=0)
    await delivery.release([0])
    await broker.amend("t", ids[0], payload=b"changed")
    assert await drain(reader) == [b"changed", b"waits"]


@pytest.mark.rows("A3")
@in_loop
async def test_a_subscription_that_is_done_with_a_message_does_not_get_the_amended_one(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    quick = await reader_of(broker, "t", "quick")
    await broker.subscribe("t", "slow")
    (message_id,) = (await broker.publish("t", [b"old"])).ids()
    await drain(quick)
    await broker.amend("t", message_id, payload=b"new")
    broker = await home.again(how)
    assert await drain(await broker.consumer("t", "quick")) == []
    assert await drain(await broker.consumer("t", "slow")) == [b"new"]
    assert broker.stats("t").messages == 0


@pytest.mark.rows("A3")
@in_loop
async def test_an_amended_message_is_found_and_cancelled_by_its_id(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    await broker.subscribe("t", "readers")
    ids = (await broker.publish("t", [b"0", b"1"])).ids()
    await broker.amend("t", ids[0], payload=b"x")
    broker = await home.again(how)
    assert (await broker.get("t", ids[0])).column("payload").to_pylist() == [b"x"]
    assert await broker.state_of("t", "readers", ids[0]) == "waiting"
    await broker.cancel("t", ids[0])
    assert await drain(await broker.consumer("t", "readers")) == [b"1"]


@pytest.mark.rows("A3", "G22")
@in_loop
async def test_an_edit_respects_the_bound_of_bytes_whatever_the_policy(home: Home):
    broker = await home.open()
    for policy in ("refuse", "dead-letter", "drop-oldest"):
        await broker.create_topic(policy, bytes_max=100, overflow=policy)
        await broker.subscribe(policy, "readers")
        await broker.publish(policy, [Message(payload=b"a" * 46, id="mine")])
        await broker.publish(policy, [b"b" * 50])
        await broker.amend(policy, "mine", payload=b"a" * 45)
        with pytest.raises(LimitReached):
            await broker.amend(policy, "mine", payload=b"a" * 200)
        if policy != "drop-oldest":
            with pytest.raises(LimitReached):
                await broker.amend(policy, "mine", payload=b"a" * 47)
            assert broker.stats(policy).messages == 2
    await broker.amend("drop-oldest", "mine", payload=b"a" * 47)  # other messages are dropped, never the one that grows
    assert await drain(await broker.consumer("drop-oldest", "readers")) == [b"a" * 47]


@pytest.mark.rows("A3", "G10")
@in_loop
async def test_an_amended_transient_message_stays_transient(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    for name in ("one", "two"):
        await broker.publish("t", [Message(payload=b"x", id=name)], PublishOptions(persistent=False))
        await broker.amend("t", name, payload=b"only in memory")
    assert await drain(await broker.consumer("t", "readers")) == [b"only in memory"] * 2
    await broker.publish("t", [Message(payload=b"x", id="three")], PublishOptions(persistent=False))
    changed = await broker.amend("t", "three", payload=b"only in memory")
    assert not home.disk_holds(b"only in memory")
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    assert await drain(reader) == []
    answer = await broker.publish("t", [b"next"])
    assert answer.offset[0] > changed.offset  # an offset is never given twice
    assert await drain(reader) == [b"next"]


@pytest.mark.rows("A3")
@in_loop
async def test_a_client_that_browses_a_message_sees_the_version_that_an_edit_names(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    await broker.publish("t", [Message(payload=b"a", id="mine"), b"b"])
    assert (await broker.browse("t")).column("version").to_pylist() == [1, 1]
    seen = (await broker.get("t", "mine")).column("version")[0].as_py()
    await broker.amend("t", "mine", payload=b"c", version=seen)
    broker = await home.again()
    assert (await broker.get("t", "mine")).column("version").to_pylist() == [2]
