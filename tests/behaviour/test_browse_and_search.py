"""Looking without touching: browse, search, get, stats."""

import asyncio
import datetime

import pytest

from tests.behaviour.world import Home, VirtualClock, bodies, drain, in_loop, reader_of
from wherry import Broker, InvalidInput, Message, NotFound, PublishOptions, Retry, Search
from wherry.core.state import snapshot


async def payloads(broker: Broker, **wanted: object) -> list[bytes]:
    return (await broker.search("t", **wanted)).column("payload").to_pylist()


@pytest.mark.rows("A13")
@pytest.mark.parametrize("order", ["fifo", "priority", "timeline"])
@in_loop
async def test_looking_changes_no_delivery_count_order_or_lease(home: Home, clock: VirtualClock, how: str, order: str):
    broker = await home.open()
    await broker.create_topic("t", order=order, partitions=2)
    reader = await reader_of(broker, "t", lease_ms=1_000, retry=Retry(attempts=2, first_ms=60_000, jitter=0.0))
    for number in range(10):
        due_ms = clock.now_ms + (10**6 if number == 9 else -number)
        await broker.publish("t", [Message(payload=b"%d" % number, id=f"id{number}", key="k", due_ms=due_ms)])
    held = await reader.pull(4)
    await held.ack([0])
    await held.nack([1])
    await held.dead_letter([2])
    broker_state = broker.shard.state
    before = (snapshot.digest(broker_state), broker.stats("t"))
    for _ in range(3):
        for partition in (0, 1):
            await broker.browse("t", partition=partition)
        assert (await broker.search("t", key="k")).num_rows == 9
        for number in range(10):
            await broker.get("t", f"id{number}")
        await broker.scheduled("t", "readers")
        assert (await broker.dead_letters("t")).num_rows == 1
    assert (snapshot.digest(broker_state), broker.stats("t")) == before
    await held.ack([3])  # still this worker's
    broker = await home.again(how)
    rest = await (await broker.consumer("t", "readers")).pull()
    assert [message.attempt for message in rest] == [1] * 5


@pytest.mark.rows("A13")
@in_loop
async def test_browse_shows_messages_by_offset_wherever_they_are(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(6))
    await broker.publish("t", [Message(payload=b"later", due_ms=clock.now_ms + 10**6)])
    held = await reader.pull(3)
    await held.ack([1])
    await held.dead_letter([2])
    broker = await home.again(how)
    everything = await broker.browse("t")
    assert everything.column("offset").to_pylist() == [0, 2, 3, 4, 5, 6]
    assert everything.column("payload").to_pylist() == [b"m0", b"m2", b"m3", b"m4", b"m5", b"later"]
    assert (await broker.browse("t", start=3, limit=2)).column("offset").to_pylist() == [3, 4]
    assert (await broker.browse("t", start=7)).num_rows == 0
    assert everything.column("published").to_pylist()[0] == datetime.datetime.fromtimestamp(
        clock.now_ms / 1000, datetime.UTC
    )
    for wrong in ({"partition": 1}, {"partition": -1}, {"start": -1}, {"limit": 0}, {"limit": 1_000_001}):
        with pytest.raises(InvalidInput):
            await broker.browse("t", **wrong)
    with pytest.raises(NotFound):
        await broker.browse("nowhere")


@pytest.mark.rows("A14")
@in_loop
async def test_messages_are_found_by_key_header_time_and_all_of_them_together(
    home: Home, clock: VirtualClock, how: str
):
    broker = await home.open()
    await broker.create_topic("t", partitions=3)
    await broker.subscribe("t", "readers")
    began_ms = clock.now_ms
    for number in range(12):
        sent = Message(
            payload=b"%d" % number,
            key=f"user-{number % 3}",
            headers={"colour": "red" if number % 2 else "blue", "n": str(number)} if number < 10 else None,
        )
        await broker.publish("t", [sent, Message(payload=b"noise")])
        clock.advance(1_000)
    broker = await home.again(how)
    assert sorted(await payloads(broker, key="user-1")) == [b"1", b"10", b"4", b"7"]
    assert await payloads(broker, key="user-") == []
    assert sorted(await payloads(broker, headers={"colour": "red"})) == [b"1", b"3", b"5", b"7", b"9"]
    assert await payloads(broker, headers={"colour": "red", "n": "4"}) == []
    assert await payloads(broker, headers={"colour": "red", "n": "5"}) == [b"5"]
    assert await payloads(broker, headers={"unknown": "x"}) == []
    assert set(await payloads(broker, from_ms=began_ms + 10_000)) == {b"10", b"11", b"noise"}
    assert set(await payloads(broker, to_ms=began_ms + 1_000)) == {b"0", b"noise"}
    assert set(await payloads(broker, from_ms=began_ms + 3_000, to_ms=began_ms + 5_000, key="user-0")) == {b"3"}
    assert await payloads(broker, from_ms=began_ms + 12_000) == []
    assert len(await payloads(broker)) == 24
    assert len(await payloads(broker, limit=7)) == 7
    assert (await broker.search("t", Search(key="user-1", limit=2))).num_rows == 2
    for wrong in ({"key": 1}, {"headers": {"a": 1}}, {"limit": 0}, {"from_ms": -1}, {"colour": "red"}):
        with pytest.raises(InvalidInput):
            await broker.search("t", **wrong)


@pytest.mark.rows("A14")
@in_loop
async def test_a_message_is_found_by_id_from_memory_and_from_disk(home: Home, how: str):
    broker = await home.open(cache_bytes=1 << 20)
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    for number in range(40):
        sent = Message(payload=b"%d" % number + b"." * 60_000, id=f"id{number}", key="k", headers={"n": str(number)})
        await broker.publish("t", [sent])
    for _ in range(500):
        if any(home.path.rglob("*.arrow")):
            break
        await asyncio.sleep(0.01)
    assert any(home.path.rglob("*.arrow")), "nothing was moved to a segment"
    for again in (False, True):
        broker = await home.again(how) if again else broker
        for number in (0, 20, 39):
            found = await broker.get("t", f"id{number}")
            assert found.column("payload").to_pylist()[0].startswith(b"%d." % number)
            assert await broker.state_of("t", "readers", f"id{number}") == "waiting"
            hit = await broker.search("t", headers={"n": str(number)})
            assert hit.column("offset").to_pylist() == [number]
        assert (await broker.search("t", key="k")).num_rows == 40
        assert (await broker.browse("t", start=1, limit=1)).column("offset").to_pylist() == [1]


@pytest.mark.rows("A14")
@in_loop
async def test_what_is_gone_is_not_found(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", [Message(payload=b"x", id="mine", key="k"), Message(payload=b"y", key="k")])
    await (await reader.pull(1)).ack()
    broker = await home.again(how)
    assert (await broker.get("t", "mine")).num_rows == 0
    assert await payloads(broker, key="k") == [b"y"]


@in_loop
async def test_where_a_message_stands_can_be_asked(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.subscribe("t", "keeps")  # so that what is acked stays to be asked about
    names = ("acked", "dead", "leased", "nacked", "waiting")
    await broker.publish("t", [Message(payload=name.encode(), id=name) for name in names])
    await broker.publish("t", [Message(payload=b"", id="later", due_ms=clock.now_ms + 10)])
    held = await reader.pull(4)
    await held.ack([0])
    await held.dead_letter([1])
    await held.nack([3])
    states = {name: await broker.state_of("t", "readers", name) for name in (*names, "later")}
    assert states == {
        "acked": "settled",
        "dead": "dead",
        "leased": "leased",
        "nacked": "scheduled",
        "waiting": "waiting",
        "later": "scheduled",
    }
    clock.advance(10)
    assert await broker.state_of("t", "readers", "later") == "waiting"


@in_loop
async def test_stats_show_what_waits_where_and_how_far_behind_a_subscription_is(
    home: Home, clock: VirtualClock, how: str
):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    reader = await reader_of(broker, "t")
    for partition in (0, 1):
        await broker.publish("t", bodies(5), PublishOptions(partition=partition))
        clock.advance(1_000)
    await broker.publish("t", [Message(payload=b"later", due_ms=clock.now_ms + 10**6)], PublishOptions(partition=0))
    held = await reader.pull(5)
    await held.ack([0, 1])
    await held.dead_letter([2])
    stats = broker.stats("t").subscriptions[0]
    assert (stats.ready, stats.leased, stats.scheduled, stats.dead) == (5, 2, 1, 1)
    assert (stats.lag, stats.lag_ms, stats.consumers) == (8, 2_000, 1)
    broker = await home.again(how)
    stats = broker.stats("t").subscriptions[0]
    assert (stats.ready, stats.leased, stats.scheduled, stats.dead) == (7, 0, 1, 1)
    assert (stats.lag, stats.consumers) == (8, 0)
    topic = broker.stats("t")
    assert (topic.messages, topic.dead, topic.counters["published"]) == (8, 1, 11)
    await drain(await broker.consumer("t", "readers"))
    assert broker.stats("t").subscriptions[0].lag == 1
