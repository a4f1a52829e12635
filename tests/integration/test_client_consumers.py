"""The client against each of its brokers: consumers, alone and together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import wherry
from tests.integration.worlds import on_each


@on_each
@pytest.mark.rows("A18")
async def test_a_consumer_hands_out_each_message_and_acks_together(world):
    await world.jobs(lease_ms=60_000)
    await world.client.publish("jobs", [b"%d" % n for n in range(500)])
    seen = []
    async with world.client.consumer("jobs", "workers", pull_messages=64, buffer_messages=128) as consumer:
        async for message in consumer:
            seen.append(int(message.payload))
            message.ack_later()
            if len(seen) == 100:
                break
        async for message in consumer:  # the consumer continues where it stood
            seen.append(int(message.payload))
            await message.ack()
            if len(seen) == 120:
                break
        stats = (await world.client.stats("jobs")).subscriptions[0]
        assert stats.leased <= 128
        assert stats.counters["acked"] >= 20
    assert seen == list(range(120))
    batch = await world.pull()
    assert batch.payloads()[0] == b"120"  # what was held and not settled waits again, no attempt counted
    assert {message.attempt for message in batch} == {1}


@on_each
@pytest.mark.rows("A18")
async def test_a_slow_consumer_leaves_the_rest_to_others(world):
    await world.jobs(lease_ms=60_000, assignment="shared")
    await world.client.publish("jobs", [b"%d" % n for n in range(2_000)])
    async with world.client.consumer("jobs", "workers") as slow, world.client.consumer("jobs", "workers") as fast:
        async for _ in slow:
            break
        await asyncio.sleep(0.2)
        seen = 0
        async for message in fast:
            message.ack_later()
            seen += 1
            if seen == 1_800:
                break
        await fast.flush()
        assert (await world.client.stats("jobs")).subscriptions[0].leased <= 200


@on_each
@pytest.mark.rows("A18")
async def test_a_consumer_may_ack_by_itself_what_its_loop_has_dealt_with(world):
    await world.jobs(lease_ms=60_000)
    await world.client.publish("jobs", [b"%d" % n for n in range(10)])
    with pytest.raises(ZeroDivisionError):
        async with world.client.consumer("jobs", "workers", ack="auto") as consumer:
            async for message in consumer:
                if message.payload == b"3":
                    await message.nack(delay_ms=0)
                elif message.payload == b"7":
                    raise ZeroDivisionError
    assert sorted((await world.pull()).payloads()) == [b"3", b"8", b"9"]  # and the message that failed, after its delay


@on_each
@pytest.mark.rows("A5")
async def test_a_consumer_renews_the_lease_of_work_ten_times_its_length(world):
    await world.jobs(lease_ms=400)
    await world.client.publish("jobs", [b"long"])
    async with world.client.consumer("jobs", "workers") as consumer:
        async for message in consumer:
            begun_ms = world.now_ms
            while world.now_ms < begun_ms + 4_000:
                await asyncio.sleep(0.1)
                await world.later(100)
            await message.ack()
            break
        assert (await world.client.stats("jobs")).subscriptions[0].counters == {"acked": 1}


@on_each
@pytest.mark.rows("A6")
async def test_a_consumer_whose_lease_is_lost_gets_an_error(world):
    await world.jobs(lease_ms=400)
    await world.client.publish("jobs", [b"a", b"b"])
    async with world.client.consumer("jobs", "workers", renew=False) as consumer:
        async for message in consumer:
            await world.later(500)
            with pytest.raises(wherry.StaleLease):
                await message.ack()
            with pytest.raises(wherry.StaleLease):
                await message.nack()
            break


@on_each
@pytest.mark.rows("A18")
async def test_without_acks_a_message_is_handed_out_once(world):
    await world.jobs(acks=False)
    await world.client.publish("jobs", [b"a", b"b"])
    async with world.client.consumer("jobs", "workers", ack="auto") as consumer:
        async for message in consumer:
            await message.ack()  # nothing to do, and no error
            break
    assert (await world.client.stats("jobs")).subscriptions[0].lag == 0


@on_each
async def test_a_consumer_of_a_missing_subscription_raises(world):
    with pytest.raises(wherry.NotFound):
        async with world.client.consumer("nowhere", "workers"):
            pass
    await world.jobs()
    async with world.client.consumer("jobs", "workers") as consumer:
        deleting = asyncio.create_task(world.client.delete_topic("jobs"))
        with pytest.raises((wherry.CutOff, wherry.NotFound)):
            async for _ in consumer:
                pass
        await deleting


@on_each
async def test_of_two_consumers_of_the_same_name_one_may_leave(world):
    await world.jobs(lease_ms=60_000, assignment="shared")
    async with world.client.consumer("jobs", "workers", name="worker") as stays:
        reading = asyncio.create_task(anext(aiter(stays)))
        async with world.client.consumer("jobs", "workers", name="worker") as leaves:
            assert stays.name != leaves.name
            assert stays.name.startswith("worker-")
            while (await world.client.stats("jobs")).subscriptions[0].consumers < 2:  # noqa: ASYNC110  no event to wait for
                await asyncio.sleep(0.01)
        await world.client.publish("jobs", [b"a"])
        assert (await reading).payload == b"a"


@on_each
async def test_a_consumer_that_is_sent_away_joins_again_without_what_it_held(world):
    await world.jobs(lease_ms=60_000)
    await world.client.publish("jobs", [b"a", b"b"])
    async with world.client.consumer("jobs", "workers", pull_messages=1) as consumer:
        messages = aiter(consumer)
        held = await anext(messages)
        reading = asyncio.create_task(_rest(messages, 2))
        while len(consumer._held) < 2:  # noqa: ASYNC110  no event to wait for
            await asyncio.sleep(0.01)
        await world.client.subscription_requests("jobs", "workers").leave(consumer.name)
        assert sorted(await reading) == [b"a", b"b"]
        with pytest.raises(wherry.StaleLease):
            await held.ack()
    assert (await world.client.stats("jobs")).subscriptions[0].lag == 0


async def _rest(messages: AsyncIterator[wherry.Leased], count: int) -> list[bytes]:
    """Return so many payloads more, each acked in the end."""
    got = []
    async for message in messages:
        await asyncio.sleep(0.2)
        try:
            await message.ack()
        except wherry.StaleLease:
            continue
        got.append(message.payload)
        if len(got) == count:
            break
    return got


@pytest.mark.rows("K14")
@on_each
async def test_workers_are_attached_at_any_time_and_share_the_work(world):
    await world.jobs(partitions=4)
    jobs = [wherry.Message(payload=b"x", key=str(number)) for number in range(40)]
    at_work = {"first": asyncio.Event(), "second": asyncio.Event()}

    async def work(name: str) -> None:
        async with world.client.consumer("jobs", "workers", pull_messages=5) as consumer:
            async for message in consumer:
                await message.ack()
                at_work[name].set()

    await world.client.publish("jobs", jobs)
    first = asyncio.create_task(work("first"))
    await at_work["first"].wait()
    second = asyncio.create_task(work("second"))
    while not at_work["second"].is_set():
        await world.client.publish("jobs", jobs)
        await asyncio.sleep(0.02)
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
