"""Messages for later: timelines, due times in other orders, expiry."""

import asyncio
import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.behaviour.world import RESTARTS, START_MS, Home, VirtualClock, drain, in_loop, in_virtual_time, reader_of
from wherry import Broker, DeadFilter, Message, NotFound, NotWaiting, PublishOptions, Retry, StaleLease
from wherry.journal.bodies.segments.reading import ReadCache
from wherry.model import limits

ORDERS = ("fifo", "priority", "timeline")
SECOND_MS, DAY_MS = 1_000, 24 * 3_600_000
YEAR_MS = 365 * DAY_MS


def later(clock: VirtualClock, *delays_ms: int) -> list[Message]:
    return [Message(payload=str(delay).encode(), due_ms=clock.now_ms + delay) for delay in delays_ms]


@pytest.mark.rows("D36", "D1", "A1")
@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_nothing_is_early_at_any_horizon_and_all_is_there_in_time(
    home: Home, clock: VirtualClock, how: str, order: str
):
    delays = [1, SECOND_MS, DAY_MS, YEAR_MS, 100 * YEAR_MS]
    broker = await home.open()
    await broker.create_topic("t", order=order, partitions=2)
    await broker.subscribe("t", "readers")
    await broker.publish("t", later(clock, *reversed(delays)))
    began_ms = clock.now_ms
    for number, delay in enumerate(delays):
        broker = await home.again(how)
        reader = await broker.consumer("t", "readers")
        clock.advance(began_ms + delay - 1 - clock.now_ms)
        assert await drain(reader) == []
        stats = broker.stats("t").subscriptions[0]
        assert (stats.scheduled, stats.ready) == (len(delays) - number, 0)
        clock.advance(1)
        assert await drain(reader) == [str(delay).encode()]
    assert broker.stats("t").messages == 0


@pytest.mark.rows("D36")
@in_loop
async def test_a_timeline_delivers_by_due_time_over_all_partitions_and_arrival_among_equals(
    home: Home, clock: VirtualClock
):
    broker = await home.open()
    await broker.create_topic("t", order="timeline", partitions=3)
    reader = await reader_of(broker, "t")
    for delay in (30, 10, 20, 5, 25, 15):
        await broker.publish("t", later(clock, delay))
    await broker.publish("t", [Message(payload=b"now"), *later(clock, -DAY_MS)], PublishOptions(partition=1))
    clock.advance(22)
    assert await drain(reader, batch=3) == [str(-DAY_MS).encode(), b"now", b"5", b"10", b"15", b"20"]
    same = [Message(payload=str(n).encode(), due_ms=clock.now_ms) for n in range(5)]
    await broker.publish("t", same, PublishOptions(partition=0))
    assert await drain(reader) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.rows("D36", "A1")
@in_virtual_time
async def test_a_waiting_pull_gets_each_message_at_its_time_with_little_lateness(broker: Broker, clock: VirtualClock):
    await broker.create_topic("t", order="timeline", partitions=2)
    reader = await reader_of(broker, "t")
    delays = (1, 17, 500, 999, 1_000, 1_001, 60_000, 3_600_000)
    for delay in delays:
        await broker.publish("t", later(clock, delay))
    began_ms = clock.now_ms
    for delay in delays:
        delivery = await reader.pull(wait_ms=None)
        assert delivery.payloads() == [str(delay).encode()]
        assert 0 <= clock.now_ms - began_ms - delay <= 2
        await delivery.ack()


@pytest.mark.rows("D36", "A1")
@in_virtual_time
async def test_a_sooner_message_wakes_a_pull_that_waits_for_a_later_one(broker: Broker, clock: VirtualClock):
    await broker.create_topic("t", order="timeline")
    reader = await reader_of(broker, "t")
    await broker.publish("t", later(clock, DAY_MS))
    waiting = asyncio.create_task(reader.pull(wait_ms=None))
    await asyncio.sleep(10)
    began_ms = clock.now_ms
    await broker.publish("t", later(clock, 50))
    assert (await waiting).payloads() == [b"50"]
    assert clock.now_ms - began_ms <= 52


@pytest.mark.rows("A1")
@in_virtual_time
async def test_of_millions_scheduled_each_comes_in_its_time(broker: Broker, clock: VirtualClock):
    await broker.create_topic("t", order="timeline")
    reader = await reader_of(broker, "t")
    due = np.random.default_rng(3).permutation(2_000_000) * 1_000 + START_MS + 1_000_000
    for part in np.split(due, 10):
        empty = pa.array([b""] * len(part), pa.binary())
        times = pa.array(part, pa.int64()).view(pa.timestamp("ms", tz="UTC"))
        await broker.publish("t", pa.record_batch({"payload": empty, "due": times}))
    assert broker.stats("t").subscriptions[0].scheduled == 2_000_000
    for expected in (START_MS + 1_000_000, START_MS + 1_001_000):
        delivery = await reader.pull(wait_ms=None)
        assert [message.due_ms for message in delivery] == [expected]
        assert 0 <= clock.now_ms - expected <= 2
        await delivery.ack()
    await asyncio.sleep(20.5)
    assert len(await reader.pull()) == 20


@pytest.mark.rows("A1", "D36")
@in_loop
async def test_a_clock_that_is_set_back_delivers_nothing_early(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", order="timeline")
    reader = await reader_of(broker, "t")
    due_ms = clock.now_ms + 1_000
    await broker.publish("t", later(clock, 1_000))
    clock.set_wall(clock.now_ms - DAY_MS)
    clock.advance(2_000)
    assert await drain(reader) == []
    clock.set_wall(due_ms)
    assert await drain(reader) == [b"1000"]


@pytest.mark.rows("A1")
@in_loop
async def test_a_due_time_and_a_priority_together_wait_first_and_then_rank(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", order="priority")
    await broker.subscribe("t", "readers")
    sent = [
        Message(payload=b"urgent, later", priority=0, due_ms=clock.now_ms + 100),
        Message(payload=b"plain", priority=5),
        Message(payload=b"slow", priority=9),
    ]
    await broker.publish("t", sent)
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    assert (await reader.pull(1)).payloads() == [b"plain"]
    clock.advance(100)
    assert await drain(reader) == [b"urgent, later", b"slow"]


@pytest.mark.rows("A1")
@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_a_late_subscription_gets_scheduled_messages_in_their_time(
    home: Home, clock: VirtualClock, how: str, order: str
):
    broker = await home.open()
    await broker.create_topic("t", order=order)
    await broker.publish("t", [*later(clock, 300, 100, 200), Message(payload=b"0")])
    await broker.subscribe("t", "readers")
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    seen = []
    for _ in range(4):
        seen.append(await drain(reader))
        clock.advance(100)
    assert seen == [[b"0"], [b"100"], [b"200"], [b"300"]]


@pytest.mark.rows("A1")
@in_loop
async def test_a_failed_message_of_a_timeline_backs_off_and_keeps_its_place(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", order="timeline")
    reader = await reader_of(broker, "t", retry=Retry(first_ms=50, jitter=0.0))
    await broker.publish("t", later(clock, 10, 20, 60))
    clock.advance(20)
    await (await reader.pull(1)).nack()
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    assert await drain(reader) == [b"20"]
    clock.advance(50)
    assert await drain(reader) == [b"10", b"60"]


# Listing, cancelling.


@pytest.mark.rows("A4", "A13")
@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_what_is_scheduled_is_listed_by_time_range_without_consuming_it(
    home: Home, clock: VirtualClock, how: str, order: str
):
    broker = await home.open()
    await broker.create_topic("t", order=order, partitions=3)
    await broker.subscribe("t", "readers")
    now_ms = clock.now_ms
    for delay in (500, 100, 400, 200, 300):
        await broker.publish("t", later(clock, delay))
    await broker.publish("t", [b"ready"])
    broker = await home.again(how)

    async def listed(**span: int) -> list[int]:
        batch = await broker.scheduled("t", "readers", **span)
        ats = [int(at.timestamp() * 1000) - now_ms for at in batch.column("at").to_pylist()]
        assert [int(body) for body in batch.column("payload").to_pylist()] == ats
        return ats

    assert await listed() == [100, 200, 300, 400, 500]
    assert await listed(from_ms=now_ms + 200, to_ms=now_ms + 400) == [200, 300]
    assert await listed(to_ms=now_ms + 101) == [100]
    assert await listed(from_ms=now_ms + 501) == []
    assert await listed(limit=2) == [100, 200]
    stats = broker.stats("t").subscriptions[0]
    assert (stats.scheduled, stats.ready, stats.leased) == (5, 1, 0)
    clock.advance(1_000)
    assert [m.attempt for m in await (await broker.consumer("t", "readers")).pull()] == [1] * 6


@pytest.mark.rows("A4")
@in_loop
async def test_a_back_off_is_listed_with_the_time_it_ends(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", [b"x"])
    await (await reader.pull()).nack(delay_ms=5_000)
    at = datetime.datetime.fromtimestamp((clock.now_ms + 5_000) / 1000, datetime.UTC)
    assert (await broker.scheduled("t", "readers")).column("at").to_pylist() == [at]


@pytest.mark.rows("A2", "D37")
@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_a_cancelled_message_is_never_delivered(home: Home, clock: VirtualClock, how: str, order: str):
    broker = await home.open()
    await broker.create_topic("t", order=order, partitions=2)
    await broker.subscribe("t", "one")
    await broker.subscribe("t", "other")
    ready = await broker.publish("t", [b"ready", b"stays"])
    await broker.publish("t", [Message(payload=b"later", id="mine", due_ms=clock.now_ms + 100)])
    await broker.cancel("t", "mine", ready.ids()[0])
    broker = await home.again(how)
    assert broker.stats("t").messages == 1
    assert (await broker.get("t", "mine")).num_rows == 0
    clock.advance(1_000)
    for name in ("one", "other"):
        assert await drain(await broker.consumer("t", name)) == [b"stays"]
    await broker.subscribe("t", "late")
    assert await drain(await broker.consumer("t", "late")) == []


@pytest.mark.rows("A2")
@in_loop
async def test_cancel_and_deliver_exclude_each_other(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", order="timeline")
    reader = await reader_of(broker, "t", lease_ms=1_000, retry=Retry(first_ms=100, jitter=0.0))
    ids = [f"job-{n}" for n in range(4)]
    await broker.publish("t", [Message(payload=i.encode(), id=i, due_ms=clock.now_ms + 10) for i in ids])
    clock.advance(10)
    held = await reader.pull(2)
    for out in held:
        with pytest.raises(NotWaiting, match="leased"):
            await broker.cancel("t", out.id)
    with pytest.raises(NotWaiting):
        await broker.cancel("t", "job-3", "job-0")  # all or none
    await held.ack([0])
    assert (await broker.get("t", "job-0")).num_rows == 0
    clock.advance(1_000)  # job-1 was not settled, and waits again
    await broker.cancel("t", "job-1", "job-2")
    with pytest.raises(StaleLease):
        await held.ack([1])
    clock.advance(1_000)
    assert await drain(reader) == [b"job-3"]


@pytest.mark.rows("A2")
@in_loop
async def test_what_an_ephemeral_reader_holds_or_what_is_dead_can_not_be_cancelled(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", "durable")
    tab = await reader_of(broker, "t", "tab", durable=False)
    answer = await broker.publish("t", [b"x", b"y"])
    held = await tab.pull(1)
    with pytest.raises(NotWaiting, match="leased"):
        await broker.cancel("t", answer.ids()[0])
    await held.ack()
    await (await reader.pull()).dead_letter([1])
    with pytest.raises(NotWaiting, match="dead"):
        await broker.cancel("t", answer.ids()[1])


# Expiry.


@in_loop
async def test_an_expired_message_is_not_delivered_and_frees_its_room(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", messages_max=2)
    await broker.subscribe("t", "readers")
    await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms + 100), Message(payload=b"stays")])
    broker = await home.again(how)
    clock.advance(99)
    reader = await broker.consumer("t", "readers")
    delivery = await reader.pull(1)
    assert delivery.payloads() == [b"x"]
    await delivery.release()
    clock.advance(1)
    await broker.publish("t", [b"room"])
    assert await drain(reader) == [b"stays", b"room"]
    assert broker.stats("t").counters["expired"] == 1


@in_loop
async def test_a_message_that_expires_while_it_is_out_may_be_acked_and_does_not_come_back(
    home: Home, clock: VirtualClock
):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", retry=Retry(first_ms=10, jitter=0.0))
    await broker.publish("t", [Message(payload=body, expires_ms=clock.now_ms + 100) for body in (b"1", b"2")])
    delivery = await reader.pull()
    clock.advance(200)
    await delivery.ack([0])
    await delivery.nack([1])
    clock.advance(10)
    assert await drain(reader) == []
    assert broker.stats("t").messages == 0


@pytest.mark.rows("A11")
@in_loop
async def test_expired_messages_become_dead_letters_where_the_topic_is_set_so(
    home: Home, clock: VirtualClock, how: str
):
    broker = await home.open()
    await broker.create_topic("t", expired="dead-letter")
    await broker.subscribe("t", "readers")
    tab = await reader_of(broker, "t", "tab", durable=False)
    await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms + 100)])
    await tab.pull()
    clock.advance(100)
    assert broker.stats("t").dead == 1
    broker = await home.again(how)
    dead = await broker.dead_letters("t", DeadFilter(reason="expired"))
    assert dead.column("payload").to_pylist() == [b"x"]
    assert await drain(await broker.consumer("t", "readers")) == []


@in_loop
async def test_a_message_that_expires_before_it_is_due_is_never_delivered(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", order="timeline")
    reader = await reader_of(broker, "t")
    await broker.publish("t", [Message(payload=b"x", due_ms=clock.now_ms + 200, expires_ms=clock.now_ms + 100)])
    clock.advance(200)
    assert await drain(reader) == []
    assert broker.stats("t").messages == 0


@in_loop
async def test_the_last_possible_time_is_in(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", order="timeline")
    await broker.subscribe("t", "readers")
    await broker.publish("t", [Message(payload=b"x", due_ms=limits.TIME_MS_MAX)])
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    clock.set_wall(limits.TIME_MS_MAX - 1)
    assert await drain(reader) == []
    clock.set_wall(limits.TIME_MS_MAX)
    assert await drain(reader) == [b"x"]


@in_loop
async def test_a_message_that_is_expired_when_it_comes_is_never_delivered(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms)])
    assert await drain(reader) == []


@pytest.mark.rows("A1")
@pytest.mark.parametrize("count", [200_000, pytest.param(2_000_000, marks=pytest.mark.long)])
@in_loop
async def test_millions_scheduled_on_disk_come_in_their_time_after_restarts_of_every_kind(
    home: Home, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, count: int
):
    """Pull the first of them by their times: none early, none missing, and little read for each pull."""
    first_ms, cache_bytes = START_MS + YEAR_MS, 2 * count
    due = np.random.default_rng(3).permutation(count) * SECOND_MS + first_ms
    offset_of = np.argsort(due)  # by due time
    broker = await home.open(cache_bytes=cache_bytes)
    await broker.create_topic("t", order="timeline")
    await broker.subscribe("t", "readers")
    for part in np.split(due, 20):
        empty = pa.array([b""] * len(part), pa.binary())
        times = pa.array(part, pa.int64()).view(pa.timestamp("ms", tz="UTC"))
        await broker.publish("t", pa.record_batch({"payload": empty, "due": times}))
    clock.advance(first_ms - 1 - clock.now_ms)
    turn = 0
    for how in RESTARTS:
        await broker.cancel("t", f"0-{offset_of[turn + 1]}")
        broker = await home.again(how, cache_bytes=cache_bytes)
        stats = broker.stats("t").subscriptions[0]
        assert (stats.scheduled, stats.ready) == (count - turn - 1, 0)
        reader = await broker.consumer("t", "readers")
        assert len(await reader.pull()) == 0
        reads = _reads(monkeypatch, broker)
        clock.advance(20 * SECOND_MS)
        delivery = await reader.pull()
        wanted = [turn, *range(turn + 2, turn + 20)]
        assert [each.offset for each in delivery] == offset_of[wanted].tolist()
        assert 0 < len(reads) <= len(delivery), "more was read than a block for each message"
        assert len(await reader.pull()) == 0
        await delivery.ack()
        turn += 20
    with pytest.raises(NotFound):
        await broker.cancel("t", f"0-{offset_of[1]}")
    assert broker.stats("t").messages == count - turn


def _reads(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> list[object]:
    """Blocks that are read from now on."""
    read, reads = ReadCache._read, list[object]()

    async def counted(self: ReadCache, *place: Any) -> bool:
        reads.append(place)
        return await read(self, *place)

    monkeypatch.setattr(ReadCache, "_read", counted)
    return reads
