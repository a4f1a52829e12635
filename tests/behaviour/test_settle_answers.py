"""Each settle has one answer, whatever becomes of the others of its turn."""

import asyncio
from unittest import mock

import pytest

from tests.behaviour.world import bodies, in_loop, reader_of
from wherry.broker.calls.settle import Settler
from wherry.model.errors import DiskFull, StaleLease


@pytest.mark.parametrize("fault", [DiskFull(10, 5), OSError("a bug")])
@in_loop
async def test_a_refused_call_of_a_turn_that_fails_is_answered_once(home, fault):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    await broker.publish("t", bodies(1))
    held = await consumer.pull()
    answers: list[tuple[str, type | None]] = []

    def answered(name):
        return lambda fault: answers.append((name, None if fault is None else type(fault)))

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reported.append(report))
    with mock.patch.object(Settler, "_commit", side_effect=fault):
        broker.settler.ack_soon([(1, None)], answered("stale"))
        broker.settler.ack_soon(held.parts(), answered("good"))
        await asyncio.sleep(0.01)
    assert answers == [("stale", StaleLease), ("good", type(fault))]
    assert len(reported) == (0 if isinstance(fault, DiskFull) else 1)


@in_loop
async def test_acks_one_by_one_of_one_turn_are_answered_when_they_are_durable(home):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    await broker.publish("t", bodies(5))
    held = await consumer.pull()
    before = broker.shard.committer.submitted
    answers: list[BaseException | None] = []
    for row in (0, 1, 4, 2, 3):
        broker.settler.ack_soon(held.parts([row]), answers.append)
    await asyncio.sleep(0.05)
    assert answers == [None] * 5
    assert broker.shard.committer.durable == before + 1, "one entry for all of them"
    assert broker.stats("t").subscriptions[0].leased == 0


@in_loop
async def test_an_ack_of_an_idle_consumer_shares_the_sync_of_the_next_publish(home):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    committer = broker.shard.committer
    committer.metrics = mock.Mock()
    answers: list[BaseException | None] = []
    for _ in range(5):
        await broker.publish("t", bodies(1))
        held = await consumer.pull()
        broker.settler.ack_soon(held.parts(), answers.append)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await broker.publish("t", bodies(1))
    assert answers == [None] * 5
    assert [call.args[1] for call in committer.metrics.synced.call_args_list] == [1, 2, 2, 2, 2, 2], "entries of a sync"


@pytest.mark.parametrize("case", ["holds another", "another waits", "a nack"])
@in_loop
async def test_a_settle_of_a_consumer_that_has_more_to_do_does_not_wait_for_company(home, case):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    await broker.publish("t", bodies(2))
    held = await consumer.pull(1 if case == "another waits" else 2)
    answers: list[BaseException | None] = []
    if case == "a nack":
        broker.settler.nack_soon(held.parts(), None, "", answers.append)
    else:
        broker.settler.ack_soon(held.parts([0]), answers.append)
    for _ in range(3):  # no time passes, only turns of the loop
        await asyncio.sleep(0)
    committer = broker.shard.committer
    assert committer.is_writing or committer.durable == committer.submitted
    await committer.wait(committer.submitted)
    assert answers == [None]


@in_loop
async def test_the_ack_of_an_empty_delivery_is_answered(home):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    for before in range(2):
        nothing = await consumer.pull()
        assert len(nothing) == 0
        await nothing.ack()
        await broker.publish("t", bodies(1))
        got = await consumer.pull()
        await asyncio.gather(nothing.ack(), got.ack())
        assert broker.subscription_stats("t", "readers").counters["acked"] == before + 1
