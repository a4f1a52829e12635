"""A pull that waits, with a taker: messages are handed over within the wake-up, and the pull waits on."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

import wherry
from tests.behaviour.test_cancelled_pull import HeldEngine
from tests.behaviour.test_turns import stop
from tests.behaviour.world import START_MS, LoopClock, in_virtual_time
from wherry import PublishOptions
from wherry.broker.clock import SystemClock
from wherry.broker.opening import start
from wherry.broker.port.consume import DeliveryPort
from wherry.core.decide import leasing
from wherry.core.state.lease import Lease
from wherry.core.state.state import State, SubscriptionState


class Taken:
    """A taker that keeps what it is given, for as long as it has room."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.deliveries: list[DeliveryPort] = []
        self.most = most

    def wanted(self) -> int:
        return 1 << 30

    def room(self) -> int:
        return max(0, self.most - len(self.deliveries))

    def take(self, delivery: DeliveryPort) -> None:
        self.deliveries.append(delivery)

    @property
    def payloads(self) -> list[bytes]:
        return [payload for each in self.deliveries for payload in each.batch.column("payload").to_pylist()]


async def waiting(
    broker: wherry.Broker, taken: Taken, messages: int = 100
) -> tuple[wherry.Consumer, asyncio.Task[wherry.Delivery]]:
    """Return a consumer of `t`/`s` whose pull waits with a taker."""
    consumer = await broker.consumer("t", "s")
    pull = asyncio.create_task(consumer.pull(messages, wait_ms=None, taker=taken))
    await asyncio.sleep(0.001)
    return consumer, pull


@pytest.mark.rows("D26")
@in_virtual_time
async def test_a_taker_gets_message_after_message_while_its_pull_waits(broker: wherry.Broker, clock: LoopClock) -> None:
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    taken = Taken()
    consumer, pull = await waiting(broker, taken)
    for number in range(5):
        await broker.publish("t", [b"%d" % number])
        await asyncio.sleep(0.001)
        assert taken.payloads[-1] == b"%d" % number, "it did not wait for the pull"
        if number % 2:
            await taken.deliveries[-1].ack()
    assert not pull.done()
    assert consumer.unsettled_messages == 3, "what was taken is on lease"
    await stop([pull])
    assert consumer.unsettled_messages == 3


@in_virtual_time
async def test_a_pull_returns_what_its_taker_may_not_take(broker: wherry.Broker, clock: LoopClock) -> None:
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    taken = Taken(most=1)
    _, pull = await waiting(broker, taken)
    await broker.publish("t", [b"first"])
    await broker.publish("t", [b"second"])
    assert (await pull).payloads() == [b"second"]
    assert taken.payloads == [b"first"]


@in_virtual_time
async def test_a_pull_returns_what_is_there_before_it_waits(broker: wherry.Broker, clock: LoopClock) -> None:
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    await broker.publish("t", [b"there"])
    taken = Taken()
    _, pull = await waiting(broker, taken)
    assert (await pull).payloads() == [b"there"]
    assert not taken.deliveries


@in_virtual_time
async def test_takers_of_several_consumers_take_turns(broker: wherry.Broker, clock: LoopClock) -> None:
    await broker.create_topic("t")
    await broker.subscribe("t", "s", assignment="shared")
    takers = [Taken() for _ in range(3)]
    pulls = [(await waiting(broker, each))[1] for each in takers]
    for number in range(9):
        await broker.publish("t", [b"%d" % number])
        await asyncio.sleep(0.001)
    assert [each.payloads for each in takers] == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8"]]
    await stop(pulls)


@pytest.mark.parametrize("assignment", ["balanced", "shared", "ordered", "exclusive"])
def test_takers_that_share_a_seat_take_turns(assignment: str) -> None:
    @in_virtual_time
    async def test(broker: wherry.Broker, clock: LoopClock) -> None:
        await broker.create_topic("t")
        await broker.subscribe("t", "s", assignment=assignment)
        takers, pulls = [Taken() for _ in range(3)], []
        for each in takers:
            consumer = await broker.consumer("t", "s", seat="shared")
            pulls.append(asyncio.create_task(consumer.pull(100, wait_ms=None, taker=each)))
        await asyncio.sleep(0.001)
        for number in range(9):
            await broker.publish("t", [b"%d" % number])
            await asyncio.sleep(0.001)
        assert [each.payloads for each in takers] == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8"]]
        await stop(pulls)

    test()


@in_virtual_time
async def test_a_taker_takes_once_a_turn_however_many_partitions_have_messages(
    broker: wherry.Broker, clock: LoopClock
) -> None:
    """Send what a taker took at the end of the turn; only then is known whether its client reads."""
    await broker.create_topic("t", partitions=16)
    await broker.subscribe("t", "s")
    taken = Taken()
    _, pull = await waiting(broker, taken, messages=1)
    messages = [wherry.Message(payload=b"%d" % number, key=str(number)) for number in range(160)]
    await broker.publish("t", messages, PublishOptions(persistent=False))
    counts = []
    while len(taken.deliveries) < 160:
        before = len(taken.deliveries)
        await asyncio.sleep(0)
        counts.append(len(taken.deliveries) - before)
    assert max(counts) == 1
    await stop([pull])


@in_virtual_time
async def test_a_look_that_fails_keeps_no_wake_up_from_others(broker: wherry.Broker, clock: LoopClock) -> None:
    await broker.create_topic("t")
    takers, pulls = {}, {}
    for name in ("first", "second"):
        await broker.subscribe("t", name)
        consumer, takers[name] = await broker.consumer("t", name), Taken()
        pulls[name] = asyncio.create_task(consumer.pull(wait_ms=None, taker=takers[name]))
    await asyncio.sleep(0.001)
    look = leasing.lease

    def failing(state: State, subscription: SubscriptionState, *args: Any) -> list[Lease]:
        if subscription.config.name == "first":
            raise RuntimeError("a strategy of another package failed")
        return look(state, subscription, *args)

    with mock.patch.object(leasing, "lease", failing):
        await broker.publish("t", [b"x"])
        await asyncio.sleep(0.001)
    assert takers["second"].payloads == [b"x"]
    with pytest.raises(RuntimeError):
        await pulls["first"]
    await stop([pulls["second"]])


@in_virtual_time
async def test_a_taker_that_finds_messages_due_for_others_wakes_them(broker: wherry.Broker, clock: LoopClock) -> None:
    """Let the wall clock jump: no timer is set for the message that is due."""
    await broker.create_topic("t", partitions=3)
    await broker.subscribe("t", "s", assignment="ordered")
    takers = [Taken() for _ in range(3)]
    consumers, pulls = zip(*[await waiting(broker, each) for each in takers], strict=True)
    first, late, full = consumers
    full.grant(1)
    for payload in (b"taken", b"left"):
        await broker.publish("t", [payload], PublishOptions(partition=full.partitions[0]))
    hour_ms = 3_600_000
    delayed = wherry.Message(payload=b"delayed", due_ms=clock.now_ms + hour_ms)
    await broker.publish("t", [delayed], PublishOptions(partition=late.partitions[0]))
    await asyncio.sleep(0.001)
    assert not takers[1].payloads
    wall_us, later_us = clock.wall_us, hour_ms * 1000
    with mock.patch.multiple(
        clock, wall_us=lambda: wall_us() + later_us, steady_ms=lambda: wall_us() // 1000 - START_MS
    ):
        first.grant(1)
        await asyncio.sleep(0.001)
        assert takers[1].payloads == [b"delayed"]
    await stop(list(pulls))


@in_virtual_time
async def test_messages_beyond_the_credit_of_one_taker_are_given_to_the_next(
    broker: wherry.Broker, clock: LoopClock
) -> None:
    await broker.create_topic("t")
    await broker.subscribe("t", "s", assignment="shared")
    takers = [Taken() for _ in range(2)]
    consumers, pulls = zip(*[await waiting(broker, each) for each in takers], strict=True)
    for consumer in consumers:
        consumer.grant(2)
    await broker.publish("t", [b"%d" % number for number in range(5)])
    await asyncio.sleep(0.001)
    assert [each.payloads for each in takers] == [[b"0", b"1"], [b"2", b"3"]]
    consumers[0].grant(3)
    await asyncio.sleep(0.001)
    assert takers[0].payloads == [b"0", b"1", b"4"], "room wakes it as well"
    await broker.publish("t", [b"5", b"6", b"7"])
    await asyncio.sleep(0.001)
    assert takers[0].payloads == [b"0", b"1", b"4", b"5", b"6"]
    await stop(list(pulls))


@in_virtual_time
async def test_a_taker_takes_as_many_as_its_pull_asks_for_at_a_time(broker: wherry.Broker, clock: LoopClock) -> None:
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    taken = Taken()
    _, pull = await waiting(broker, taken, messages=2)
    await broker.publish("t", [b"%d" % number for number in range(5)])
    await asyncio.sleep(0.001)
    assert [len(each) for each in taken.deliveries] == [2, 2, 1]
    await stop([pull])


@in_virtual_time
async def test_a_taker_whose_subscription_is_deleted_gets_no_more(broker: wherry.Broker, clock: LoopClock) -> None:
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    taken = Taken()
    _, pull = await waiting(broker, taken)
    await broker.unsubscribe("t", "s")
    with pytest.raises(wherry.WherryError):
        await pull
    assert not taken.deliveries


@in_virtual_time
async def test_no_taker_of_a_subscription_without_acks(broker: wherry.Broker, clock: LoopClock) -> None:
    """Wait for the settle: such messages are settled before they are handed over, and that must become durable."""
    await broker.create_topic("t")
    await broker.subscribe("t", "s", acks=False)
    taken = Taken()
    _, pull = await waiting(broker, taken)
    await broker.publish("t", [b"x"])
    assert (await pull).payloads() == [b"x"]
    assert not taken.deliveries


def test_nothing_is_taken_before_it_is_durable() -> None:
    async def main() -> None:
        engine = HeldEngine()
        async with await start(engine, None, SystemClock()) as broker:
            await broker.create_topic("t")
            await broker.subscribe("t", "s")
            taken = Taken()
            _, pull = await waiting(broker, taken)
            engine.free.clear()
            publishing = asyncio.create_task(broker.publish("t", [b"x"]))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not taken.deliveries
            assert not pull.done()
            engine.free.set()
            await publishing
            assert (await pull).payloads() == [b"x"], "the task waited for the disk"

    asyncio.run(main())
