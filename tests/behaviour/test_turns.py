"""Many pulls that wait: each message wakes one of them at once, and the others sleep on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

import pytest

import wherry
from tests.behaviour.world import LoopClock, in_virtual_time, reader_of
from wherry import Message, PublishOptions
from wherry.broker.waiting.waiters import WakeUp
from wherry.core.decide import leasing
from wherry.model.errors import CutOff, NotFound


@contextmanager
def looks() -> Iterator[mock.Mock]:
    """Count how often a pull looks for messages."""
    with mock.patch.object(leasing, "lease", wraps=leasing.lease) as counted:
        yield counted


async def waiting(
    broker: wherry.Broker, name: str, count: int
) -> tuple[list[wherry.Consumer], list[asyncio.Task[wherry.Delivery]]]:
    """Return so many consumers of a subscription of `t`, each with a pull of one message that waits."""
    consumers = [await broker.consumer("t", name) for _ in range(count)]
    pulls = [asyncio.create_task(consumer.pull(1, wait_ms=None)) for consumer in consumers]
    await asyncio.sleep(0.001)
    return consumers, pulls


def ended(pulls: list[asyncio.Task[wherry.Delivery]]) -> list[int]:
    return [number for number, pull in enumerate(pulls) if pull.done()]


async def stop(pulls: list[asyncio.Task[wherry.Delivery]]) -> None:
    for pull in pulls:
        pull.cancel()
    await asyncio.gather(*pulls, return_exceptions=True)


@pytest.mark.parametrize("assignment", ["balanced", "shared", "ordered", "exclusive"])
def test_a_message_is_looked_for_by_one_of_many_that_wait(assignment: str):
    @in_virtual_time
    async def test(broker: wherry.Broker, clock: LoopClock) -> None:
        await broker.create_topic("t", partitions=8)
        for name in ("a", "b"):
            await broker.subscribe("t", name, assignment=assignment)
        _, first = await waiting(broker, "a", 100)
        _, second = await waiting(broker, "b", 100)
        with looks() as counted:
            await broker.publish("t", [b"x"], PublishOptions(partition=5))
            await asyncio.sleep(0.001)
            assert len(ended(first)) == len(ended(second)) == 1
            assert counted.call_count == 2
        await stop(first + second)

    test()


@in_virtual_time
async def test_pulls_that_wait_are_served_in_the_order_they_came(broker: wherry.Broker, clock: LoopClock):
    await broker.create_topic("t", partitions=1)
    await broker.subscribe("t", "readers", assignment="shared")
    _, pulls = await waiting(broker, "readers", 50)
    with looks() as counted:
        await broker.publish("t", [b"%d" % number for number in range(20)])
        await asyncio.sleep(0.001)
        assert ended(pulls) == list(range(20))
        assert [pull.result().payloads() for pull in pulls[:20]] == [[b"%d" % number] for number in range(20)]
        assert counted.call_count == 20
        await broker.publish("t", [b"more"])
        await asyncio.sleep(0.001)
        assert ended(pulls) == list(range(21))
        assert counted.call_count == 21
    await stop(pulls)


@in_virtual_time
async def test_a_pull_that_was_woken_and_cancelled_leaves_the_message_to_the_next(
    broker: wherry.Broker, clock: LoopClock
):
    await broker.create_topic("t", partitions=1)
    await broker.subscribe("t", "readers")
    _, pulls = await waiting(broker, "readers", 5)
    await broker.publish("t", [b"x"])  # the publish has woken the first pull, which has not run yet
    for number in range(3):
        pulls[number].cancel()
    await asyncio.sleep(0.001)
    got = [pulls[number].result().payloads() for number in ended(pulls) if not pulls[number].cancelled()]
    assert got == [[b"x"]]
    await stop(pulls)


@in_virtual_time
async def test_a_message_too_large_for_a_consumer_that_holds_some_is_given_to_the_next(
    broker: wherry.Broker, clock: LoopClock
):
    await broker.create_topic("t", partitions=1)
    await broker.subscribe("t", "readers", assignment="shared")
    small = await broker.consumer("t", "readers", "small", buffer_bytes=100)
    await broker.publish("t", [b"." * 60])
    held = await small.pull(1)
    waits = asyncio.create_task(small.pull(1, wait_ms=None))
    await asyncio.sleep(0.001)
    _, others = await waiting(broker, "readers", 2)
    with looks() as counted:
        await broker.publish("t", [b"." * 90])
        await asyncio.sleep(0.001)
        assert ended([waits, *others]) == [1]
        assert counted.call_count == 2
    await broker.publish("t", [b"." * 90, b"." * 90])
    await asyncio.sleep(0.001)
    assert ended([waits, *others]) == [1, 2]
    await held.ack()  # room again, and the message that found no consumer is there
    await asyncio.sleep(0.001)
    assert ended([waits, *others]) == [0, 1, 2]


@pytest.mark.parametrize("assignment", ["ordered", "exclusive"])
def test_a_consumer_that_takes_a_partition_over_while_it_waits_gets_what_is_there(assignment: str):
    @in_virtual_time
    async def test(broker: wherry.Broker, clock: LoopClock) -> None:
        await broker.create_topic("t", partitions=1)
        await broker.subscribe("t", "readers", assignment=assignment)
        owner = await broker.consumer("t", "readers")
        _, pulls = await waiting(broker, "readers", 3)
        await broker.publish("t", [b"x"])
        await asyncio.sleep(0.001)
        assert ended(pulls) == []
        await owner.close()
        await asyncio.sleep(0.001)
        assert ended(pulls) == [0]
        await stop(pulls)

    test()


@in_virtual_time
async def test_a_due_time_that_a_pull_found_calls_another_one_that_waits(broker: wherry.Broker, clock: LoopClock):
    await broker.create_topic("t", order="timeline")
    await broker.subscribe("t", "readers", assignment="shared")
    _, pulls = await waiting(broker, "readers", 2)
    due = [Message(payload=b"now"), Message(payload=b"later", due_ms=clock.now_ms + 300)]
    await broker.publish("t", due)
    await asyncio.sleep(0.001)
    assert len(ended(pulls)) == 1
    await asyncio.sleep(0.4)
    assert len(ended(pulls)) == 2


@in_virtual_time
async def test_a_due_time_calls_one_of_many(broker: wherry.Broker, clock: LoopClock):
    await broker.create_topic("t", partitions=4)
    await broker.subscribe("t", "readers")
    _, pulls = await waiting(broker, "readers", 100)
    with looks() as counted:
        await broker.publish("t", [Message(payload=b"x", due_ms=clock.now_ms + 10_000)])
        await asyncio.sleep(9.99)
        assert ended(pulls) == []
        await asyncio.sleep(0.02)
        assert len(ended(pulls)) == 1
        assert counted.call_count <= 3
    await stop(pulls)


@in_virtual_time
async def test_a_key_that_is_free_again_wakes_a_pull_that_waits(broker: wherry.Broker, clock: LoopClock):
    await broker.create_topic("t", partitions=1)
    reader = await reader_of(broker, "t", key_order=True)
    await broker.publish("t", [Message(payload=b"1", key="k", id="one")])
    delivery = await reader.pull()
    await broker.publish("t", [Message(payload=b"2", key="k")])
    pull = asyncio.create_task(reader.pull(wait_ms=None))
    await delivery.nack(delay_ms=3_600_000)
    await asyncio.sleep(0.001)
    assert not pull.done()
    await broker.cancel("t", "one")
    await asyncio.sleep(0.001)
    assert (await pull).payloads() == [b"2"]


@in_virtual_time
async def test_pulls_that_wait_raise_when_their_subscription_or_consumer_is_deleted(
    broker: wherry.Broker, clock: LoopClock
):
    await broker.create_topic("t")
    for name in ("a", "b"):
        await broker.subscribe("t", name)
    consumers, pulls = await waiting(broker, "a", 3)
    _, others = await waiting(broker, "b", 3)
    await consumers[1].close()
    await asyncio.sleep(0.001)
    assert ended(pulls) == [1]
    with pytest.raises(NotFound):
        await pulls[1]
    await broker.unsubscribe("t", "a")
    await asyncio.sleep(0.001)
    assert ended(pulls) == [0, 1, 2]
    with pytest.raises(CutOff):
        await pulls[0]
    assert ended(others) == []
    await broker.delete_topic("t")
    with pytest.raises(CutOff):
        await others[2]
    await stop(pulls + others)


class Crowd:
    """Consumers that pull with time limits, are cancelled, come and go; what each subscription got."""

    def __init__(self, broker: wherry.Broker, random: Random) -> None:
        self.broker, self.random = broker, random
        self.got: dict[str, list[bytes]] = {}
        self.running = True

    async def member(self, name: str) -> None:
        """Joins, pulls a while, leaves, and joins again; never away for longer than it takes to come back."""
        while self.running:
            async with await self.broker.consumer(
                "t", name, buffer_bytes=self.random.choice([64, 1 << 20])
            ) as consumer:
                for _ in range(self.random.randint(1, 8)):
                    await self._pull(name, consumer)

    async def _pull(self, name: str, consumer: wherry.Consumer) -> None:
        random = self.random
        pull = asyncio.create_task(consumer.pull(random.randint(1, 3), wait_ms=random.choice([1, 20, 200])))
        if random.random() < 0.3:
            await asyncio.sleep(random.choice([0, 0.001, 0.03]))
            pull.cancel()
        await asyncio.wait([pull])
        if pull.cancelled() or not len(pull.result()):
            return
        delivery, fate = pull.result(), random.random()
        if fate < 0.1:
            await delivery.nack(delay_ms=random.choice([0, 5]))
        elif fate < 0.2:
            await delivery.release()
        else:
            self.got[name] += delivery.payloads()
            await delivery.ack()


SUBSCRIPTIONS: dict[str, dict[str, Any]] = {
    "shared": {"assignment": "shared"},
    "balanced": {"assignment": "balanced"},
    "ordered": {"assignment": "ordered"},
    "exclusive": {"assignment": "exclusive"},
    "keyed": {"assignment": "balanced", "key_order": True},
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.more) for seed in range(1, 6))])
def test_every_message_is_delivered_at_once_while_consumers_come_leave_and_give_up(seed: int):
    @in_virtual_time
    async def test(broker: wherry.Broker, clock: LoopClock) -> None:
        random = Random(seed)
        await broker.create_topic("t", partitions=6, order=random.choice(["fifo", "priority"]))
        crowd = Crowd(broker, random)
        for name, config in SUBSCRIPTIONS.items():
            await broker.subscribe("t", name, retry=wherry.Retry(attempts=None), **config)
            crowd.got[name] = []
        members = [asyncio.create_task(crowd.member(name)) for name in SUBSCRIPTIONS for _ in range(8)]
        sent: list[bytes] = []
        for number in range(60):
            body = b"%d" % number + b"." * random.choice([0, 50])
            key = str(random.randrange(4))
            await broker.publish("t", [Message(payload=body, key=key, priority=random.randrange(3))])
            sent.append(body)
            await asyncio.sleep(random.choice([0, 0.001, 0.01]))
        for _ in range(100):
            if all(len(got) == len(sent) for got in crowd.got.values()):
                break
            await asyncio.sleep(0.01)
        for name, got in crowd.got.items():
            assert sorted(got) == sorted(sent), name
        crowd.running = False
        await asyncio.gather(*members)

    test()


@pytest.mark.parametrize("assignment", ["shared", "balanced", "ordered"])
def test_pulls_that_never_give_up_get_every_message_the_moment_it_is_there(assignment: str):
    """Use pulls that do not end by time, so that a wake-up that is lost would leave its message where it is."""

    @in_virtual_time
    async def test(broker: wherry.Broker, clock: LoopClock) -> None:
        random = Random(3)
        await broker.create_topic("t", partitions=5)
        await broker.subscribe("t", "readers", assignment=assignment)
        got: list[bytes] = []

        async def member() -> None:
            consumer = await broker.consumer("t", "readers")
            while True:
                pull = asyncio.create_task(consumer.pull(1, wait_ms=None))
                if random.random() < 0.5:  # often in the very step in which the pull was woken
                    await asyncio.sleep(random.choice([0, 0, 0.001]))
                    pull.cancel()
                try:
                    await asyncio.wait([pull])
                finally:
                    pull.cancel()
                if not pull.cancelled():
                    got.extend(pull.result().payloads())
                    await pull.result().ack()

        async def patient() -> None:
            consumer = await broker.consumer("t", "readers")
            while True:
                delivery = await consumer.pull(2, wait_ms=None)
                got.extend(delivery.payloads())
                await delivery.ack()

        tasks = [asyncio.create_task(work()) for work in (patient, patient, member, patient, patient, patient, patient)]
        sent = 0
        for number in range(200):
            messages = [b"%d" % number] * random.randint(1, 4)
            await broker.publish("t", messages)
            sent += len(messages)
            await asyncio.sleep(random.choice([0, 0.002]))
        for _ in range(50):
            await asyncio.sleep(0.001)
        stats = broker.stats("t").subscriptions[0]
        assert (stats.ready, stats.leased) == (0, 0)
        assert len(got) == sent
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    test()


@in_virtual_time
async def test_a_default_name_is_one_that_no_consumer_chose(broker: wherry.Broker, clock: LoopClock):
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    for name in ("consumer-2", "consumer-3"):
        await broker.consumer("t", "readers", name)
    names = [(await broker.consumer("t", "readers")).id for _ in range(3)]
    assert not {"consumer-2", "consumer-3"} & set(names)
    assert len(set(names)) == 3


@in_virtual_time
async def test_credit_ends_at_its_bound_and_is_not_forgotten(broker: wherry.Broker, clock: LoopClock):
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    for _ in range(2):
        reader.grant(1 << 40)
    reader.grant(5)
    await broker.publish("t", [b"x"] * 8)
    assert len(await reader.pull(8)) == 8


@in_virtual_time
async def test_a_lease_that_ends_in_dead_letters_gives_its_room_to_a_pull_that_waits(
    broker: wherry.Broker, clock: LoopClock
):
    await broker.create_topic("t")
    await broker.subscribe("t", "s", lease_ms=500, retry=wherry.Retry(attempts=1))
    consumer = await broker.consumer("t", "s", buffer_messages=1)
    await broker.publish("t", [b"1", b"2"])
    await consumer.pull(1)
    began = clock.steady_ms()
    assert (await consumer.pull(1, wait_ms=60_000)).payloads() == [b"2"]
    assert clock.steady_ms() - began < 2_000


@in_virtual_time
async def test_a_commit_that_only_acks_gives_its_room_to_a_pull_that_waits(broker: wherry.Broker, clock: LoopClock):
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    consumer = await broker.consumer("t", "s", buffer_messages=1)
    await broker.publish("t", [b"1", b"2"])
    first = await consumer.pull(1)
    waiting = asyncio.create_task(consumer.pull(1, wait_ms=20_000))
    await asyncio.sleep(0.1)
    await first.stage_ack("k")
    began = clock.steady_ms()
    await broker.commit("k")
    assert (await waiting).payloads() == [b"2"]
    assert clock.steady_ms() - began < 1_000


@in_virtual_time
async def test_nothing_is_kept_for_pulls_that_do_not_wait(broker: wherry.Broker, clock: LoopClock):
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    for _ in range(100):
        async with await broker.consumer("t", "s") as consumer:
            await consumer.pull(1)
    assert not broker.shard.state.subscription("t", "s").wakeups
    assert not broker.shard.state.to_wake


@in_virtual_time
async def test_an_older_call_that_is_passed_on_does_not_hide_a_newer_one(broker: wherry.Broker, clock: LoopClock):
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    subscription = broker.shard.state.subscription("t", "s")
    for events in ((5, 7), (7, 5)):
        subscription.wakeups = {}
        broker.shard.waiters._waking = True  # as in one turn of the loop
        for event in events:
            broker.shard.waiters.pass_on(subscription, WakeUp(0, event))
        assert subscription.wakeups == {0: 7}
        broker.shard.waiters._waking = False
