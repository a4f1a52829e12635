"""What a subscription sees: starts, sharing, at-most-once, ephemeral readers, retention."""

import asyncio

import msgspec
import pytest

from tests.behaviour.world import Home, VirtualClock, bodies, drain, in_loop, in_virtual_time, reader_of
from wherry import AlreadyExists, Broker, CutOff, InvalidInput, Message, NotFound, PublishOptions, Retry

ORDERS = ("fifo", "priority", "timeline")


@pytest.mark.rows("K10")
@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_a_subscription_from_the_latest_message_gets_nothing_older(home: Home, how: str, order: str):
    broker = await home.open()
    await broker.create_topic("t", order=order, partitions=3)
    await broker.publish("t", [b"old"], PublishOptions(partition=0))
    await broker.publish("t", [b"old"] * 3, PublishOptions(partition=2))
    await broker.subscribe("t", "readers", start="latest")
    broker = await home.again(how)
    home.clock.advance(1)
    for partition in (0, 1, 2):
        await broker.publish("t", [f"new {partition}"], PublishOptions(partition=partition))
    assert sorted(await drain(await broker.consumer("t", "readers"))) == [b"new 0", b"new 1", b"new 2"]
    assert broker.stats("t").messages == 0  # messages that no subscription can ever ask for are removed


@pytest.mark.rows("K10")
@in_loop
async def test_what_was_scheduled_before_a_latest_subscription_is_not_for_it(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", order="timeline")
    await broker.subscribe("t", "first")
    await broker.publish("t", [Message(payload=b"old", due_ms=clock.now_ms + 100)])
    await broker.subscribe("t", "second", start="latest")
    await broker.publish("t", [Message(payload=b"new", due_ms=clock.now_ms + 100)])
    clock.advance(100)
    assert await drain(await broker.consumer("t", "second")) == [b"new"]
    assert await drain(await broker.consumer("t", "first")) == [b"old", b"new"]


@pytest.mark.rows("K10")
@in_loop
async def test_an_ephemeral_subscription_starts_at_the_latest_by_default(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.publish("t", [b"old"])
    plain = await reader_of(broker, "t", "plain", durable=False)
    early = await reader_of(broker, "t", "early", durable=False, start="earliest")
    await broker.publish("t", [b"new"])
    assert await drain(plain) == [b"new"]
    assert await drain(early) == [b"old", b"new"]


@in_loop
async def test_a_subscription_may_start_at_an_offset_or_a_time(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    for number in range(4):
        await broker.publish("t", [f"{number} a", f"{number} b"], PublishOptions(partition=number % 2))
        clock.advance(1_000)
    await broker.subscribe("t", "all")  # else the older messages, which no other subscription wants, would be dropped
    await broker.subscribe("t", "offset", start="offset", start_offset=3)
    await broker.subscribe("t", "beyond", start="offset", start_offset=100)
    await broker.subscribe("t", "time", start="time", start_ms=clock.now_ms - 2_000)
    await broker.subscribe("t", "future", start="time", start_ms=clock.now_ms + 1_000)
    broker = await home.again(how)
    seen = {n: sorted(await drain(await broker.consumer("t", n))) for n in ("offset", "beyond", "time", "future")}
    assert seen["offset"] == [b"2 b", b"3 b"]
    assert seen["beyond"] == seen["future"] == []
    assert seen["time"] == [b"2 a", b"2 b", b"3 a", b"3 b"]
    for wrong in ({"start": "offset"}, {"start_offset": 1}, {"start": "time"}, {"start_ms": 1}, {"start": "x"}):
        with pytest.raises(InvalidInput, match="start"):
            await broker.subscribe("t", "wrong", **wrong)


@in_loop
async def test_each_subscription_sees_every_message_and_its_consumers_share_them(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    for name in ("one", "other"):
        await broker.subscribe("t", name)
    await broker.publish("t", bodies(10))
    broker = await home.again(how)
    pair = [await broker.consumer("t", "one") for _ in range(2)]
    shared = [await consumer.pull(5) for consumer in pair]
    assert sorted(body for delivery in shared for body in delivery.payloads()) == sorted(bodies(10))
    assert await drain(await broker.consumer("t", "other")) == bodies(10)


@pytest.mark.parametrize("order", ORDERS)
@in_loop
async def test_a_late_subscription_gets_a_long_backlog_in_order_also_through_a_restart(
    home: Home, clock: VirtualClock, how: str, order: str
):
    count = 10_000  # more than one block of the backfill
    broker = await home.open()
    await broker.create_topic("t", order=order)
    await broker.subscribe("t", "early")
    early = await broker.consumer("t", "early")
    at_ms = clock.now_ms
    sent = [Message(payload=b"%d" % n, priority=n * 7 % count, due_ms=at_ms - n * 7 % count) for n in range(count)]
    if order == "priority":
        sent = [Message(payload=m.payload, priority=m.priority) for m in sent]
    await broker.publish("t", sent)
    await (await early.pull(100)).ack()
    await broker.subscribe("t", "late")
    broker = await home.again(how)
    early_rest = await drain(await broker.consumer("t", "early"), batch=5_000)
    late_all = await drain(await broker.consumer("t", "late"), batch=5_000)
    assert len(early_rest) == count - 100
    assert late_all == early_rest  # messages that every subscription had settled were gone when the late one came
    numbers = [int(body) for body in late_all]
    ranks = {
        "fifo": numbers,
        "priority": [n * 7 % count for n in numbers],
        "timeline": [-(n * 7 % count) for n in numbers],
    }[order]
    assert ranks == sorted(ranks)
    assert broker.stats("t").messages == 0


@in_loop
async def test_the_same_subscription_again_is_no_error_and_another_shape_is(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "s", lease_ms=5)
    broker = await home.again(how)
    await broker.subscribe("t", "s", lease_ms=5)
    with pytest.raises(AlreadyExists, match="lease_ms is 5, not 6"):
        await broker.subscribe("t", "s", lease_ms=6)
    with pytest.raises(NotFound, match="topic"):
        await broker.subscribe("nowhere", "s")
    with pytest.raises(NotFound, match="subscription"):
        await broker.consumer("t", "nobody")
    await broker.unsubscribe("t", "s")
    await broker.subscribe("t", "s", lease_ms=6)


# At most once.


@pytest.mark.rows("K11")
@in_loop
async def test_without_acks_what_is_handed_over_is_settled_for_good(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    reader = await reader_of(broker, "t", acks=False, lease_ms=1_000)
    for number in range(4):
        await broker.publish("t", f"{number}")
    handed = await reader.pull(3)
    assert len(handed) == 3
    assert broker.stats("t").subscriptions[0].leased == 0
    broker = await home.again(how)  # without acks the reader settles nothing
    clock.advance(60_000)
    rest = await (await broker.consumer("t", "readers")).pull()
    assert len(rest) == 1
    assert not set(rest.payloads()) & set(handed.payloads())
    assert broker.stats("t").messages == 0


@pytest.mark.rows("K11", "Q3")
@in_loop
async def test_without_acks_a_slow_reader_may_miss_messages(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", durable=False, acks=False, buffer_messages=2)
    await broker.publish("t", bodies(2))
    assert (await reader.pull()).payloads() == bodies(2)
    await broker.publish("t", bodies(3))
    with pytest.raises(CutOff):
        await reader.pull()
    again = await reader_of(broker, "t", durable=False, acks=False, buffer_messages=2)
    assert len(await again.pull()) == 0


# Ephemeral readers beside durable ones.


@in_loop
async def test_an_ephemeral_reader_gets_all_of_a_batch_that_others_are_done_with(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    durable = await reader_of(broker, "t", "durable")
    tab = await reader_of(broker, "t", "tab", durable=False)
    await broker.publish("t", bodies(10))
    await broker.publish("t", bodies(3, "x"))
    await (await tab.pull(5)).ack()
    await drain(durable)
    assert await drain(tab) == bodies(10)[5:] + bodies(3, "x")


@in_loop
async def test_an_ephemeral_subscription_is_gone_with_its_last_consumer_and_with_the_process(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "tab", durable=False)
    one, other = [await broker.consumer("t", "tab") for _ in range(2)]
    await one.close()
    await broker.publish("t", [b"x"])
    assert await drain(other) == [b"x"]
    await other.close()
    with pytest.raises(NotFound):
        await broker.consumer("t", "tab")
    await broker.subscribe("t", "tab", durable=False)
    broker = await home.again(how)
    with pytest.raises(NotFound):
        await broker.consumer("t", "tab")


@in_loop
async def test_deleting_a_topic_ends_everything_in_it_and_a_namesake_starts_empty(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", [Message(payload=b"x", id="mine"), Message(payload=b"y")])
    delivery = await reader.pull(1)
    await broker.delete_topic("t")
    with pytest.raises(CutOff, match="topic was deleted"):
        await reader.pull()
    with pytest.raises(NotFound):
        await broker.publish("t", b"x")
    await broker.create_topic("t")
    broker = await home.again(how)
    assert (await broker.get("t", "mine")).num_rows == 0
    fresh = await reader_of(broker, "t")
    assert await drain(fresh) == []
    del delivery


# Waiting.


@in_virtual_time
async def test_a_pull_waits_as_long_as_its_limit_and_no_longer(broker: Broker, clock: VirtualClock):
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    began_ms = clock.now_ms
    assert len(await reader.pull(wait_ms=1_500)) == 0
    assert 1_500 <= clock.now_ms - began_ms <= 1_502
    waiting = asyncio.create_task(reader.pull(wait_ms=None))
    await asyncio.sleep(3_600)
    await broker.publish("t", [b"x"])
    assert (await waiting).payloads() == [b"x"]
    assert clock.now_ms - began_ms <= 3_601_510


@in_virtual_time
async def test_waiting_pulls_are_served_one_message_each_and_a_cancelled_one_takes_none(
    broker: Broker, clock: VirtualClock
):
    await broker.create_topic("t")
    readers = [await reader_of(broker, "t") for _ in range(3)]
    waiting = [asyncio.create_task(reader.pull(1, wait_ms=None)) for reader in readers]
    await asyncio.sleep(1)
    waiting[0].cancel()
    await asyncio.sleep(0)
    await broker.publish("t", bodies(2))
    got = [body for task in waiting[1:] for body in (await task).payloads()]
    assert sorted(got) == bodies(2)
    assert broker.stats("t").subscriptions[0].leased == 2


@in_virtual_time
async def test_a_stream_of_deliveries_continues_as_messages_come(broker: Broker, clock: VirtualClock):
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")

    async def produce() -> None:
        for number in range(5):
            await asyncio.sleep(10)
            await broker.publish("t", f"{number}")

    producing = asyncio.create_task(produce())
    seen: list[bytes] = []
    async for delivery in reader.stream():
        seen += delivery.payloads()
        await delivery.ack()
        if len(seen) == 5:
            break
    await producing
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


# Streams: messages that stay.


@in_virtual_time
async def test_a_stream_keeps_messages_by_age_settled_or_not(broker: Broker, clock: VirtualClock):
    await broker.create_topic("t", keep="age", keep_ms=10_000)
    reader = await reader_of(broker, "t")
    await broker.publish("t", [b"old"])
    assert await drain(reader) == [b"old"]
    await asyncio.sleep(5)
    await broker.publish("t", [b"new"])
    late = await reader_of(broker, "t", "late")
    assert await drain(late) == [b"old", b"new"]
    await asyncio.sleep(7)
    later = await reader_of(broker, "t", "later")
    assert await drain(later) == [b"new"]


@in_virtual_time
async def test_a_stream_keeps_so_many_bytes_and_trims_the_oldest(broker: Broker, clock: VirtualClock):
    await broker.create_topic("t", keep="bytes", keep_bytes=100)
    for number in range(5):
        await broker.publish("t", [b"%d" % number * 40])
    await asyncio.sleep(2)
    reader = await reader_of(broker, "t")
    assert await drain(reader) == [b"3" * 40, b"4" * 40]


@in_loop
async def test_a_subscription_is_given_another_lease_retry_and_buffer_and_keeps_them(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    known = await broker.subscribe("t", "s")
    await broker.publish("t", bodies(3))
    wanted = msgspec.structs.replace(known, lease_ms=5_000, retry=Retry(attempts=1), buffer_bytes=40)
    assert await broker.change_subscription(wanted) == wanted
    assert await broker.change_subscription(wanted) == wanted
    broker = await home.again(how)
    assert broker.shard.state.subscription("t", "s").config == wanted
    consumer = await broker.consumer("t", "s")
    assert len(await consumer.pull()) == 3
    home.clock.advance(5_000)
    assert broker.stats("t").subscriptions[0].dead == 3


@in_loop
async def test_a_new_buffer_of_bytes_counts_what_waits_already(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    known = await broker.subscribe("t", "s")
    await broker.publish("t", [b"x" * 30])
    await broker.change_subscription(msgspec.structs.replace(known, buffer_bytes=40))
    consumer = await broker.consumer("t", "s")
    await broker.publish("t", [b"x" * 30])
    with pytest.raises(CutOff, match="fell further behind"):
        await consumer.pull()


@in_loop
async def test_what_a_subscription_is_cannot_change(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    known = await broker.subscribe("t", "s")
    for change in ({"durable": False}, {"start": "latest"}, {"acks": False}, {"key_order": True}):
        with pytest.raises(AlreadyExists, match=f"{next(iter(change))} is .* and cannot become"):
            await broker.change_subscription(msgspec.structs.replace(known, **change))
    with pytest.raises(NotFound):
        await broker.change_subscription(msgspec.structs.replace(known, name="another"))
    with pytest.raises(InvalidInput, match="lease_ms"):
        await broker.change_subscription(msgspec.structs.replace(known, lease_ms=0))


@in_loop
async def test_a_new_buffer_of_bytes_of_an_ephemeral_reader_counts_only_what_is_still_there(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "lasting")
    await broker.subscribe("t", "passing", durable=False)
    passing, lasting = await broker.consumer("t", "passing"), await broker.consumer("t", "lasting")
    await broker.publish("t", [b"x" * 60_000])
    for _ in range(20):
        await broker.publish("t", [b"y"] * 500)
    got = await lasting.pull(20_000)
    await got.ack(range(1, len(got)))
    known = broker.shard.state.subscription("t", "passing").config
    await broker.change_subscription(msgspec.structs.replace(known, buffer_bytes=1 << 20))
    assert broker.shard.state.subscription("t", "passing").backlog_bytes <= 70_000
    await passing.pull(1)


@in_loop
async def test_laggards_that_find_no_room_to_be_cut_off_do_not_fail_the_publish_that_overran_them(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    broker = await home.open()
    await broker.create_topic("t")
    for number in range(3):
        await broker.subscribe("t", f"s{number}", buffer_messages=1)
    admitted = iter([None, None, None])  # for the publish, and for one removal
    with monkeypatch.context() as patch:
        patch.setattr(broker.shard.writer, "admit", lambda *_, **__: next(admitted, 0))
        await broker.publish("t", [b"1", b"2"])
    assert len(broker.shard.state.topic("t").subscriptions) == 2
    await broker.publish("t", [b"3"])
    assert not broker.shard.state.topic("t").subscriptions


@in_loop
async def test_several_laggards_are_cut_off_at_once(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    for number in range(4):
        await broker.subscribe("t", f"s{number}", buffer_messages=1)
    await broker.subscribe("t", "patient")
    await broker.publish("t", [b"1", b"2"])
    assert [each.name for each in broker.stats("t").subscriptions] == ["patient"]
