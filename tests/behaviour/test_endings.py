"""How things end: a broker that is closed under load, a settle over several partitions, a journal that is trimmed."""

import asyncio

import pytest

import wherry
from tests.behaviour.world import VirtualClock
from wherry import Closed, LimitReached, Message, PublishOptions, Retry


def test_a_broker_closes_while_others_still_publish_and_can_be_opened_again(tmp_path):
    async def main():
        confirmed = 0

        async def publish(broker):
            nonlocal confirmed
            while True:
                await broker.publish("t", [b"x"])
                confirmed += 1

        async with wherry.open(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.subscribe("t", "readers")
            publishers = [asyncio.create_task(publish(broker)) for _ in range(4)]
            await asyncio.sleep(0.1)
            await asyncio.wait_for(broker.close(), 10)
            ends = await asyncio.gather(*publishers, return_exceptions=True)
            assert all(isinstance(end, Closed) for end in ends)
        async with wherry.open(tmp_path) as broker:
            assert broker.stats("t").subscriptions[0].ready >= confirmed > 0

    asyncio.run(main())


@pytest.mark.rows("A11", "A6")
def test_a_settle_over_several_partitions_is_all_or_nothing():
    async def main():
        async with wherry.open() as broker:
            await broker.create_topic("t", partitions=2, dead_messages_max=1)
            await broker.subscribe("t", "readers", assignment="shared", retry=Retry(attempts=1, first_ms=0))
            reader = await broker.consumer("t", "readers")
            for partition in (0, 1):
                await broker.publish("t", [b"x"], PublishOptions(partition=partition))
            got = await reader.pull(10)
            assert len(got.tokens) == 2
            with pytest.raises(LimitReached):
                await got.dead_letter()
            stats = broker.stats("t")
            assert (stats.dead, stats.subscriptions[0].leased) == (0, 2)
            await got.nack()  # one dies, the other finds the dead letters full and stays in retry
            stats = broker.stats("t")
            assert (stats.dead, stats.subscriptions[0].leased, stats.subscriptions[0].ready) == (1, 0, 1)

    asyncio.run(main())


@pytest.mark.rows("D3")
def test_a_pull_over_partitions_is_in_order_also_where_priorities_look_like_offsets():
    async def main():
        async with wherry.open() as broker:
            await broker.create_topic("t", order="priority", partitions=2)
            await broker.subscribe("t", "readers", assignment="shared")
            for partition in (0, 1):
                messages = [Message(payload=b"x", priority=number) for number in range(3)]
                await broker.publish("t", messages, PublishOptions(partition=partition))
            got = await (await broker.consumer("t", "readers")).pull(10)
            assert [message.priority for message in got] == [0, 0, 1, 1, 2, 2]

    asyncio.run(main())


def test_one_message_that_waits_does_not_keep_memory_or_the_journal(tmp_path):
    async def main():
        async with wherry.open(tmp_path) as broker:
            broker._housekeeper._checkpoint_bytes = 8 << 20
            for topic in ("idle", "busy"):
                await broker.create_topic(topic)
                await broker.subscribe(topic, "readers")
            await broker.publish("idle", [b"waits"])
            reader = await broker.consumer("busy", "readers")
            for _ in range(12):
                await broker.publish("busy", [b"x" * 60_000] * 300)
                await (await reader.pull(1_000, bytes_max=1 << 30)).ack()
                await asyncio.sleep(0.05)
                broker.shard.housekeeping_due.set()
            shard = broker.shard
            async with asyncio.timeout(30):
                while shard.store.cached_bytes >= 1 << 20 or shard.writer.stored_bytes() >= 150 << 20:  # noqa: ASYNC110  nothing signals it
                    await asyncio.sleep(0.02)
            idle = await broker.consumer("idle", "readers")
            assert (await idle.pull()).payloads() == [b"waits"]

    asyncio.run(main())


def test_a_subscription_that_is_deleted_while_it_is_filled_leaves_a_directory_that_opens(tmp_path):
    async def main():
        async with wherry.open(tmp_path, cache_bytes=1 << 20) as broker:
            await broker.create_topic("t", order="priority")
            for _ in range(30):
                await broker.publish("t", [b"x" * 200] * 1_000)
            filling = asyncio.create_task(broker.subscribe("t", "late"))
            while not broker.has_subscription("t", "late"):  # noqa: ASYNC110  nothing signals it
                await asyncio.sleep(0)
            await broker.unsubscribe("t", "late")
            await asyncio.gather(filling, return_exceptions=True)
            await broker.publish("t", [b"after"])
        async with wherry.open(tmp_path) as broker:
            assert broker.stats("t").messages == 30_001

    asyncio.run(main())


@pytest.mark.rows("G18")
def test_a_lease_that_has_just_ended_does_not_spare_the_others_that_a_consumer_failed_with():
    async def main():
        clock = VirtualClock()
        async with wherry.open(clock=clock) as broker:
            await broker.create_topic("t")
            await broker.subscribe("t", "readers", lease_ms=1_000, retry=Retry(first_ms=0))
            await broker.publish("t", [b"late", b"poison", b"other"])
            with pytest.raises(ValueError, match="poison"):
                async with await broker.consumer("t", "readers") as reader:
                    await reader.pull(1)
                    for _ in range(2):
                        await (await reader.pull(1)).renew(60_000)
                    clock.advance(1_200)
                    raise ValueError("poison")
            clock.advance(10)
            again = await (await broker.consumer("t", "readers")).pull()
            assert {each.payload: each.attempt for each in again} == {b"late": 2, b"poison": 2, b"other": 2}

    asyncio.run(main())
