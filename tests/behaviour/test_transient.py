"""Messages that are never stored, alone and among those that are."""

import asyncio
import itertools

import pytest

from tests.behaviour.world import Home, VirtualClock, bodies, drain, in_loop, reader_of
from wherry import AlreadyExists, DeadFilter, LimitReached, Message, PublishOptions, Retry
from wherry.broker.upkeep import backfill
from wherry.model.ops import Admit, Entry, from_ranges

MEMORY = PublishOptions(persistent=False)
DISK = PublishOptions(persistent=True)


@pytest.mark.rows("G10", "Q15")
@in_loop
async def test_transient_messages_are_delivered_never_stored_and_lost_with_the_process(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    answer = await broker.publish("t", [b"in memory only"] * 3, MEMORY)
    assert not answer.durable
    await (await reader.pull(1)).ack()
    assert not home.disk_holds(b"in memory only")
    broker = await home.again(how)
    assert not home.disk_holds(b"in memory only")
    assert await drain(await broker.consumer("t", "readers")) == []
    assert broker.stats("t").messages == 0


@pytest.mark.rows("Q15")
@in_loop
async def test_storage_is_a_choice_of_each_topic_and_a_publish_may_choose_otherwise(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("kept")
    await broker.create_topic("memory", persistent=False)
    for topic in ("kept", "memory"):
        await broker.subscribe(topic, "readers")
        await broker.publish(topic, [f"{topic}: by the topic"])
        await broker.publish(topic, [f"{topic}: on disk"], DISK)
        await broker.publish(topic, [f"{topic}: in memory"], MEMORY)
    assert home.disk_holds(b"kept: by the topic")
    for text in (b"memory: by the topic", b"kept: in memory", b"memory: in memory"):
        assert not home.disk_holds(text)
    broker = await home.again(how)
    assert await drain(await broker.consumer("kept", "readers")) == [b"kept: by the topic", b"kept: on disk"]
    assert await drain(await broker.consumer("memory", "readers")) == [b"memory: on disk"]
    with pytest.raises(AlreadyExists):
        await broker.create_topic("memory", persistent=True)


@pytest.mark.rows("G10", "G20")
@pytest.mark.parametrize("order", ["fifo", "priority", "timeline"])
@in_loop
async def test_a_mixed_topic_comes_back_with_its_persistent_messages_in_order(home: Home, how: str, order: str):
    broker = await home.open()
    await broker.create_topic("t", order=order, partitions=2)
    reader = await reader_of(broker, "t")
    places = []
    for number in range(12):
        sent = Message(payload=b"%d" % number, priority=number, due_ms=home.clock.now_ms - 100 + number)
        answer = await broker.publish("t", [sent], DISK if number % 3 else MEMORY)
        places += answer.ids()
    delivery = await reader.pull(4)
    await delivery.ack([0, 1])
    gone = set(delivery.payloads()[:2])
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    left = [b"%d" % n for n in range(12) if n % 3 and b"%d" % n not in gone]
    assert sorted(await drain(reader)) == sorted(left)
    later = [(await broker.publish("t", [b"new"], DISK)).ids()[0] for _ in range(4)]
    assert not set(later) & set(places)  # an offset is never given twice
    assert await drain(reader) == [b"new"] * 4
    assert broker.stats("t").messages == 0


@pytest.mark.rows("G10")
@in_loop
async def test_mixed_deliveries_are_acked_nacked_and_buried_as_one(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", retry=Retry(first_ms=10, jitter=0.0))
    for name in ("acked", "nacked", "buried"):
        await broker.publish("t", [name], DISK)
        await broker.publish("t", [f"{name} in memory"], MEMORY)
    delivery = await reader.pull()
    await delivery.ack([0, 1])
    await delivery.nack([2, 3])
    await delivery.dead_letter([4, 5])
    assert broker.stats("t").dead == 2
    clock.advance(10)
    await (await reader.pull()).nack()
    broker = await home.again(how)
    clock.advance(20)
    again = await (await broker.consumer("t", "readers")).pull()
    assert [(m.payload, m.attempt) for m in again] == [(b"nacked", 3)]
    assert (await broker.dead_letters("t")).column("payload").to_pylist() == [b"buried"]
    assert (broker.stats("t").dead, broker.stats("t").messages) == (1, 1)


@pytest.mark.rows("G10", "G23", "A12")
@in_loop
async def test_transient_dead_letters_are_redriven_in_memory_only(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", messages_max=1, overflow="dead-letter")
    reader = await reader_of(broker, "t")
    await broker.publish("t", [b"fits"])
    await broker.publish("t", [b"overflow in memory"], MEMORY)
    await broker.publish("t", [b"overflow on disk"])
    assert broker.stats("t").dead == 2
    await drain(reader)
    await broker.create_topic("t", messages_max=10, overflow="dead-letter")
    assert await broker.redrive("t", DeadFilter(subscription="")) == 2
    assert not home.disk_holds(b"overflow in memory")
    assert sorted((await reader.pull()).payloads()) == [b"overflow in memory", b"overflow on disk"]
    broker = await home.again(how)
    assert not home.disk_holds(b"overflow in memory")
    assert await drain(await broker.consumer("t", "readers")) == [b"overflow on disk"]
    assert (broker.stats("t").dead, broker.stats("t").messages) == (0, 0)


@pytest.mark.rows("G10")
@in_loop
async def test_transient_messages_stay_off_the_disk_when_memory_is_short(home: Home):
    broker = await home.open(cache_bytes=1 << 20)
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    for number in range(45):
        name, kind = (b"disk", DISK) if number % 3 else (b"memory", MEMORY)
        await broker.publish("t", [b"%s %d" % (name, number) + b"." * 60_000], kind)
    for _ in range(200):
        if any(home.path.rglob("*.arrow")):
            break
        await asyncio.sleep(0.01)
    assert any(home.path.rglob("*.arrow")), "nothing was moved to a segment"
    assert not home.disk_holds(b"memory 3")
    assert [int(body.rstrip(b".").split()[1]) for body in await drain(reader)] == list(range(45))


@pytest.mark.rows("G10", "K7")
@in_loop
async def test_a_first_reader_of_a_transient_topic_gets_what_was_kept_in_memory(home: Home):
    broker = await home.open()
    await broker.create_topic("t", persistent=False, order="priority")
    await broker.publish("t", [Message(payload=b"2", priority=2), Message(payload=b"1", priority=1)])
    assert await drain(await reader_of(broker, "t")) == [b"1", b"2"]


@pytest.mark.rows("G10")
@in_loop
async def test_a_repeat_of_a_transient_call_is_answered_as_not_durable(home: Home):
    broker = await home.open()
    await broker.create_topic("t", persistent=False)
    options = PublishOptions(producer="p", sequence=0)
    first = await broker.publish("t", bodies(2), options)
    again = await broker.publish("t", bodies(2), options)
    assert (again.repeated, again.durable, again.ids()) == (True, False, first.ids())


@in_loop
async def test_cancelled_expired_and_dropped_transient_messages_leave_right_counts(
    home: Home, clock: VirtualClock, how: str
):
    broker = await home.open()
    await broker.create_topic("t", messages_max=4, overflow="drop-oldest")
    await broker.subscribe("t", "readers")
    await broker.publish(
        "t", [Message(payload=b"0", id="c"), Message(payload=b"1", expires_ms=clock.now_ms + 5)], MEMORY
    )
    await broker.publish("t", [b"2"], DISK)
    await broker.publish("t", [b"3"], MEMORY)
    await broker.cancel("t", "c")
    clock.advance(5)
    await broker.publish("t", bodies(3), DISK)
    assert broker.stats("t").messages == 4
    broker = await home.again(how)
    assert broker.stats("t").messages == 3
    assert await drain(await broker.consumer("t", "readers")) == bodies(3)


@in_loop
async def test_transient_messages_have_a_bound_of_memory_and_the_other_topics_continue(home: Home):
    broker = await home.open(cache_bytes=1 << 20)
    await broker.create_topic("memory", persistent=False)
    await broker.create_topic("disk")
    reader = await reader_of(broker, "memory")
    with pytest.raises(LimitReached, match="memory for transient messages"):
        for _ in range(20):
            await broker.publish("memory", [b"x" * 60_000])
    for _ in range(60):
        await asyncio.wait_for(broker.publish("disk", [b"x" * 60_000]), 10)
    await drain(reader)
    await broker.publish("memory", [b"x" * 60_000])


def _not_parted(state, at_us, steps):
    """Return one entry, as in journals that were written before the operation was parted."""
    return [Entry(at_us, list(steps))]


@pytest.mark.rows("G10", "K7")
@pytest.mark.parametrize("old", [False, True])
@in_loop
async def test_a_late_subscription_orders_what_is_in_memory_without_journaling_it(
    home: Home, clock: VirtualClock, monkeypatch, how: str, old: bool
):
    if old:
        monkeypatch.setattr(backfill, "separate", _not_parted)
    broker = await home.open()
    mixtures = [(MEMORY,), (DISK, MEMORY), (MEMORY, DISK), (DISK, MEMORY, DISK, MEMORY)]
    stored: dict[str, list[bytes]] = {}
    for order, kinds in itertools.product(("fifo", "priority", "timeline"), mixtures):
        topic = (await broker.create_topic(f"{order}-{len(stored)}", order=order)).name
        for number, kind in enumerate(kinds):
            message = Message(payload=b"%d" % number, due_ms=clock.now_ms + 5 if kind is MEMORY else None)
            await broker.publish(topic, [message], kind)
        await broker.subscribe(topic, "late", start="earliest")
        stored[topic] = [b"%d" % number for number, kind in enumerate(kinds) if kind is DISK]
    broker = await home.again(how)
    clock.advance(10)
    for topic, left in stored.items():
        await broker.publish(topic, [b"new"], DISK)
        assert await drain(await broker.consumer(topic, "late")) == [*left, b"new"]
        assert broker.stats(topic).messages == 0
    await home.again("crashed")


@pytest.mark.rows("G10", "K7")
@in_loop
async def test_a_late_subscription_gets_what_is_in_memory_and_not_what_is_dead_or_gone(home: Home):
    broker = await home.open()
    await broker.create_topic("t", order="priority", messages_max=4, overflow="dead-letter")
    await broker.publish("t", [Message(payload=b"gone", id="gone"), b"a"], MEMORY)
    await broker.publish("t", [b"b"], DISK)
    await broker.publish("t", [b"c"], MEMORY)
    await broker.publish("t", [b"dead"], MEMORY)
    await broker.cancel("t", "gone")
    assert await drain(await reader_of(broker, "t", "late", start="earliest")) == [b"a", b"b", b"c"]
    named = [from_ranges(op.ranges).tolist() for op in await home.journal() if isinstance(op, Admit)]
    assert named == [[2]]
    assert (broker.stats("t").messages, broker.stats("t").subscriptions[0].lag) == (0, 0)
