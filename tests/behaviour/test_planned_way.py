"""The planned way of a lone message writes, changes and answers what the general way does; and gives way to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

import wherry
from tests.behaviour.world import VirtualClock
from wherry import Message, PublishOptions
from wherry.broker.calls.settle import Settler
from wherry.broker.commit.commit import Committer
from wherry.broker.commit.planned import PlannedWay
from wherry.broker.opening import start
from wherry.core.decide import leasing
from wherry.core.inspect.audit import audit
from wherry.core.state import snapshot
from wherry.journal.memory import MemoryEngine
from wherry.sim.patch import patched


@contextmanager
def ways(make: Callable[[str], Callable[[Any], Any]]) -> Iterator[None]:
    """Replace each planned way, by its name."""
    with (
        patched(PlannedWay, "publish", make("publish")),
        patched(PlannedWay, "ack", make("ack")),
        patched(leasing, "_planned", make("lease")),
    ):
        yield


@contextmanager
def general() -> Iterator[None]:
    """Nothing takes the planned way."""
    with ways(lambda name: lambda way: lambda *given: None):
        yield


@contextmanager
def counted() -> Iterator[list[str]]:
    """What took the planned way."""
    taken: list[str] = []

    def noted(name: str) -> Callable[[Any], Any]:
        def make(way: Any) -> Any:
            def call(*given: Any) -> Any:
                found = way(*given)
                if found is not None:
                    taken.append(name)
                return found

            return call

        return make

    with ways(noted):
        yield taken


class Life:
    """A broker in memory, with one queue that has had a message."""

    def __init__(self, broker: wherry.Broker, journal: list[bytes]) -> None:
        self.broker, self._journal = broker, journal
        self.seen: list[Any] = []
        """What consumers got."""

    async def publish(self, *payloads: bytes) -> None:
        """Publish messages by calls of one turn."""
        for answer in await asyncio.gather(*(self.broker.publish("t", each) for each in payloads)):
            self.seen.append((answer.partition.tolist(), answer.offset.tolist(), answer.durable))

    async def pull(self, consumer: wherry.Consumer, messages: int = 10) -> wherry.Delivery:
        """Pull messages."""
        delivery = await consumer.pull(messages)
        tokens = [delivery.token_of(row) for row in range(len(delivery))]
        self.seen.append(([(each.offset, each.payload, each.attempt) for each in delivery], tokens))
        return delivery

    def end(self) -> tuple[list[bytes], str, list[Any], str]:
        """The journal, the state, what consumers saw, and the statistics."""
        audit(self.broker.shard.state)
        return self._journal, snapshot.digest(self.broker.shard.state), self.seen, repr(self.broker.stats("t"))


def lived(steps: Callable[[Life], Awaitable[None]]) -> tuple[list[bytes], str, list[Any], str]:
    """What is left of a life with these steps."""

    journal: list[bytes] = []

    def noted(submit: Any) -> Any:
        def call(self: Committer, parts: list[bytes], size: int) -> int:
            journal.append(b"".join(parts))
            assert size == len(journal[-1])
            return int(submit(self, parts, size))

        return call

    async def main() -> tuple[list[bytes], str, list[Any], str]:
        async with await start(MemoryEngine(), None, VirtualClock()) as broker:
            await broker.create_topic("t")
            await broker.subscribe("t", "s", lease_ms=60_000)
            await broker.publish("t", b"first")
            life = Life(broker, journal)
            await steps(life)
            return life.end()

    with patched(Committer, "submit", noted):
        return asyncio.run(main())


async def one_by_one(life: Life) -> None:
    consumer = await life.broker.consumer("t", "s")
    for number in range(5):
        await life.publish(b"%d" % number)
        delivery = await life.pull(consumer)
        await delivery.ack()


async def some_together(life: Life) -> None:
    consumer = await life.broker.consumer("t", "s", buffer_messages=3)
    await life.publish(b"a", b"b", b"c", b"d")
    first, second = await life.pull(consumer, 2), await life.pull(consumer)
    await asyncio.gather(second.ack(), first.ack())
    last = await life.pull(consumer)
    await last.ack([1])
    await last.ack([0])


async def two_subscriptions(life: Life) -> None:
    await life.broker.subscribe("t", "late")
    for name in ("s", "late"):
        consumer = await life.broker.consumer("t", name)
        await life.publish(b"for both")
        await (await life.pull(consumer)).ack()


async def failures(life: Life) -> None:
    consumer = await life.broker.consumer("t", "s")
    await life.publish(b"x", b"y")
    delivery = await life.pull(consumer)
    await delivery.nack([0], delay_ms=0)
    await delivery.ack([1, 2])
    await (await life.pull(consumer)).ack()
    await life.publish(b"z")
    await (await life.pull(consumer)).release()
    await (await life.pull(consumer)).ack()


async def transient_between(life: Life) -> None:
    consumer = await life.broker.consumer("t", "s")
    await life.broker.publish("t", b"passing", PublishOptions(persistent=False))
    await life.publish(b"kept")
    await (await life.pull(consumer)).ack()


async def watched(life: Life) -> None:
    consumer = await life.broker.consumer("t", "s")
    await life.publish(b"plain")
    await life.broker.publish("t", b"told", PublishOptions(callback="http://example.org/"))
    await (await life.pull(consumer)).ack()
    life.seen.append([(each.offset, each.fate) for each in life.broker.unreported()])


async def with_more_than_payloads(life: Life) -> None:
    consumer = await life.broker.consumer("t", "s")
    for given in ({"headers": {"a": "b"}}, {"key": "k"}, {"priority": 7}, {"envelope": b"e"}, {"expires_ms": 1 << 42}):
        answer = await life.broker.publish("t", Message(payload=b"x", **given))
        life.seen.append(answer.offset.tolist())
        delivery = await life.pull(consumer)
        life.seen.append(delivery.batch.to_pylist())
        await delivery.ack()


LIVES = (with_more_than_payloads, one_by_one, some_together, two_subscriptions, failures, transient_between, watched)


@pytest.mark.parametrize("steps", LIVES, ids=lambda steps: steps.__name__)
def test_the_journal_the_state_and_what_consumers_see_are_the_same(steps):
    with counted() as taken:
        planned = lived(steps)
    assert taken, "something took the planned way"
    with general():
        assert lived(steps) == planned


def test_a_lone_message_takes_it_all_the_way():
    with counted() as taken:
        lived(one_by_one)
    assert taken == ["publish", "lease", "ack"] * 5


def _changed(broker: wherry.Broker, **terms: Any) -> wherry.Subscription:
    return msgspec.structs.replace(broker.subscription("t", "s"), **terms)


CHANGES: dict[str, tuple[Callable[[wherry.Broker], Awaitable[object]], bool]] = {
    "a bound": (lambda broker: broker.create_topic("t", messages_max=10), False),
    "a label": (lambda broker: broker.create_topic("t", labels={"a": "b"}), True),
    "more partitions": (lambda broker: broker.create_topic("t", partitions=2), False),
    "a buffer": (lambda broker: broker.change_subscription(_changed(broker, buffer_messages=10)), False),
    "a lease time": (lambda broker: broker.change_subscription(_changed(broker, lease_ms=1_000)), True),
    "a subscription": (lambda broker: broker.subscribe("t", "another"), True),
    "one with order by key": (lambda broker: broker.subscribe("t", "another", key_order=True), False),
    "an ephemeral one": (lambda broker: broker.subscribe("t", "another", durable=False), False),
    "none any more": (lambda broker: broker.unsubscribe("t", "s"), True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_catalog_makes_the_plan_anew(change):
    make, stays_plain = CHANGES[change]

    async def steps(life: Life) -> None:
        topic = life.broker.shard.state.topic("t")
        before = topic.plan
        await make(life.broker)
        assert (topic.plan is not None) == stays_plain
        assert topic.plan is not before
        await life.publish(b"behind it")

    with counted() as taken:
        planned = lived(steps)
    assert taken == (["publish"] if stays_plain else [])
    with general():
        assert lived(steps) == planned


@pytest.mark.parametrize("parted", [False, True])
def test_only_an_ack_of_a_whole_lease_that_is_alone_in_its_turn_is_decided_by_itself(parted):
    decided: list[int] = []

    def noted(settle: Any) -> Any:
        def call(self: Settler, calls: list[Any]) -> Any:
            decided.append(len(calls))
            return settle(self, calls)

        return call

    async def steps(life: Life) -> None:
        consumer = await life.broker.consumer("t", "s")
        await life.publish(b"a", b"b")
        delivery = await life.pull(consumer)
        if parted:
            await delivery.ack([0])
            await asyncio.gather(delivery.ack([1]), delivery.ack([2]))
        else:
            await delivery.ack()

    with patched(Settler, "_settle_now", noted):
        lived(steps)
    assert decided == ([1, 2] if parted else [])
