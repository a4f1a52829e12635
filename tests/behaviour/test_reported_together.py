"""Outcomes that are reported in one turn, for any number of URLs, are one entry."""

import asyncio
from unittest import mock

import pytest

import wherry
from tests.behaviour.world import bodies, in_loop, reader_of
from wherry.broker.calls import outcomes as calls
from wherry.broker.commit.shard import Shard
from wherry.model.calls.fate import Outcome
from wherry.model.calls.publish import PublishOptions
from wherry.model.errors import DiskFull

URLS = [f"http://host{number}.example" for number in range(20)]


async def ended(broker: wherry.Broker) -> list[list[Outcome]]:
    """Return the outcomes of messages that were acked: those of each URL."""
    await broker.create_topic("t", partitions=3)
    consumer = await reader_of(broker, "t")
    for url in URLS:
        await broker.publish("t", bodies(3), PublishOptions(callback=url))
    await (await consumer.pull()).ack()
    by_url = [[each for each in broker.unreported() if each.url == url] for url in URLS]
    assert [len(each) for each in by_url] == [3] * len(URLS)
    return by_url


@in_loop
async def test_reports_of_one_turn_are_one_entry_and_durable(home):
    broker = await home.open()
    by_url = await ended(broker)
    before = broker.shard.committer.submitted
    await asyncio.gather(*map(broker.reported, by_url))
    assert broker.shard.committer.durable == before + 1
    assert broker.unreported() == []
    broker = await home.again("crashed")
    assert broker.unreported() == []


@in_loop
async def test_an_outcome_that_two_callers_report_in_one_turn_is_removed_once(home):
    broker = await home.open()
    first, second, *_ = await ended(broker)
    await asyncio.gather(broker.reported(first), broker.reported([*first, *second]))
    assert len(broker.unreported()) == 3 * (len(URLS) - 2)
    await broker.reported(first)
    assert len(broker.unreported()) == 3 * (len(URLS) - 2)


@in_loop
async def test_many_outcomes_of_one_turn_are_several_entries(home, monkeypatch):
    monkeypatch.setattr(calls, "ENTRY_OUTCOMES", 10)
    broker = await home.open()
    by_url = await ended(broker)
    before = broker.shard.committer.submitted
    await asyncio.gather(*map(broker.reported, by_url))
    assert broker.shard.committer.durable == before + 5
    assert broker.unreported() == []


@in_loop
async def test_a_caller_that_is_cancelled_takes_its_report_from_no_other(home):
    broker = await home.open()
    first, second, *_ = await ended(broker)
    impatient = asyncio.create_task(broker.reported(first))
    other = asyncio.create_task(broker.reported(second))
    await asyncio.sleep(0)
    impatient.cancel()
    await other
    assert len(broker.unreported()) == 3 * (len(URLS) - 2)


@pytest.mark.parametrize("fault", [DiskFull(10, 5), OSError("a bug")])
@in_loop
async def test_each_caller_of_a_turn_that_fails_gets_the_fault(home, fault):
    broker = await home.open()
    by_url = await ended(broker)
    with mock.patch.object(Shard, "commit", side_effect=fault):
        answers = await asyncio.gather(*map(broker.reported, by_url[:2]), return_exceptions=True)
    assert answers == [fault, fault]
    assert len(broker.unreported()) == 3 * len(URLS)


@in_loop
async def test_a_report_waits_for_room_on_a_disk_that_is_nearly_full(home):
    broker = await home.open()
    by_url = await ended(broker)
    with mock.patch.object(Shard, "admits_settle", return_value=False):
        await asyncio.gather(*map(broker.reported, by_url))
        assert broker.unreported() == []
