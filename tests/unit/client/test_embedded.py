"""The broker in process: its clock, its sync face, and the fixture that comes with the package."""

from __future__ import annotations

import asyncio
import time

import pytest

import wherry


@pytest.mark.rows("A18")
def test_the_fixture_is_a_broker_whose_time_the_test_decides(wherry_broker):
    wherry_broker.create_topic("jobs")
    wherry_broker.subscribe("jobs", "workers", lease_ms=30_000, retry=wherry.Retry(first_ms=60_000, jitter=0.0))
    year_ms = 365 * 86_400_000
    due_ms = wherry_broker.clock.now_ms + year_ms
    wherry_broker.publish("jobs", [wherry.Message(payload=b"now"), wherry.Message(payload=b"then", due_ms=due_ms)])
    held = wherry_broker.pull("jobs", "workers")
    assert held.payloads() == [b"now"]
    wherry_broker.clock.advance(29.999)
    held.renew()
    wherry_broker.clock.advance(29.999)
    assert len(wherry_broker.pull("jobs", "workers")) == 0
    wherry_broker.clock.advance(0.001)  # the lease is over; the retry comes a minute later, to the millisecond
    wherry_broker.clock.advance(59.999)
    assert len(wherry_broker.pull("jobs", "workers")) == 0
    wherry_broker.clock.advance(0.001)
    [again] = wherry_broker.pull("jobs", "workers")
    assert (again.payload, again.attempt) == (b"now", 2)
    again.ack()
    with pytest.raises(wherry.StaleLease):
        held.ack()
    wherry_broker.clock.advance((due_ms - wherry_broker.clock.now_ms - 1) / 1000)
    assert len(wherry_broker.pull("jobs", "workers")) == 0
    wherry_broker.clock.advance(0.001)
    assert wherry_broker.pull("jobs", "workers").payloads() == [b"then"]


@pytest.mark.rows("A18")
def test_two_runs_are_the_same_to_the_millisecond():
    def times() -> list[int]:
        seen = []
        with wherry.embedded_sync(clock=wherry.VirtualClock(seed=3)) as client:
            client.create_topic("jobs")
            client.subscribe("jobs", "workers", retry=wherry.Retry(first_ms=50, jitter=0.5))
            client.publish("jobs", [b"a"])
            client.pull("jobs", "workers").nack()
            while not len(again := client.pull("jobs", "workers")):
                client.clock.advance(0.001)
            seen.append(client.clock.now_ms)
            again.ack()
        return seen

    assert times() == times()


def test_a_pull_that_waits_ends_in_real_time_and_wakes_with_the_clock():
    async def main() -> None:
        clock = wherry.VirtualClock()
        async with wherry.embedded(clock=clock) as client:
            await client.create_topic("jobs")
            await client.subscribe("jobs", "workers")
            assert len(await client.pull("jobs", "workers", wait_ms=20)) == 0
            await client.publish("jobs", [wherry.Message(payload=b"a", due_ms=clock.now_ms + 3_600_000)])
            waiting = asyncio.create_task(client.pull("jobs", "workers", wait_ms=10_000))
            await asyncio.sleep(0.01)
            begun = time.monotonic()
            clock.advance(3_600)
            assert (await waiting).payloads() == [b"a"]
            assert time.monotonic() - begun < 5

    asyncio.run(main())


@pytest.mark.rows("A22")
def test_the_sync_client_produces_and_consumes():
    with wherry.embedded_sync() as client:
        client.create_topic("jobs")
        client.subscribe("jobs", "workers")
        with client.producer("jobs") as producer:
            for number in range(1_200):
                producer.publish(b"%d" % number, key="k")
        seen = []
        with client.consumer("jobs", "workers", ack="auto") as consumer:
            for message in consumer:
                seen.append(int(message.payload))
                if len(seen) == 600:
                    message.ack()
                    break
            for message in consumer:
                message.ack_later()
                seen.append(int(message.payload))
                if len(seen) == 1_000:
                    break
            consumer.flush()
        with client.consumer("jobs", "workers") as consumer:
            for batch in consumer.consume_batches():
                seen += [int(payload) for payload in batch.data.column("payload").to_pylist()]
                batch.ack()
                if len(seen) == 1_200:
                    break
        assert seen == list(range(1_200))
        assert client.stats("jobs").subscriptions[0].lag == 0


def test_a_sync_producer_reports_refusals_at_the_end():
    with wherry.embedded_sync() as client:
        client.create_topic("jobs")
        with pytest.raises(wherry.InvalidInput, match="priority"), client.producer("jobs") as producer:
            producer.publish(b"a", priority=-1)
            producer.publish(b"b")
        assert client.stats("jobs").messages == 1


def test_a_producer_works_inside_its_with_only():
    async def main() -> None:
        async with wherry.embedded() as client:
            await client.create_topic("jobs")
            producer = client.producer("jobs")
            with pytest.raises(wherry.Closed):
                await producer.publish(b"a")
            async with producer:
                await producer.publish(b"a")
            with pytest.raises(wherry.Closed):
                await producer.publish(b"a")
            assert (await client.stats("jobs")).messages == 1

    asyncio.run(main())


def test_a_full_buffer_makes_publish_wait():
    async def main() -> None:
        async with wherry.embedded() as client:
            await client.create_topic("jobs")
            async with client.producer("jobs", batch_messages=10, buffer_messages=20, buffer_bytes=1 << 20) as producer:
                held = []
                for number in range(500):
                    await producer.publish(b"%d" % number)
                    held.append(producer.held_messages)
                assert max(held) <= 20
            assert (await client.stats("jobs")).messages == 500

    asyncio.run(main())
