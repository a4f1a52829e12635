"""The fate of a message: a wait, a question and a callback agree, over restarts too."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import wherry
from tests.behaviour.world import bodies, drain, in_loop, in_virtual_time, reader_of
from wherry.broker.waiting import pending_outcomes, watches
from wherry.model.calls.fate import Fate, Outcome
from wherry.model.calls.publish import Published, PublishOptions

URL = "https://example.com/outcomes"
ASKED = PublishOptions(callback=URL)


def unreported(broker: wherry.Broker) -> dict[str, str]:
    """Return the outcomes that are still to be reported, by id."""
    return {each.id: each.fate for each in broker.unreported(65_536)}


async def settled(broker: wherry.Broker) -> None:
    """Wait until outcomes are durable and can be reported."""
    await asyncio.wait_for(broker.on_outcome.wait(), 5)


# Waiting.


@pytest.mark.rows("K2", "K3")
@in_virtual_time
async def test_a_producer_waits_for_the_fate_that_it_names(broker, clock):
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    published = await broker.publish("t", [b"a", b"b"])
    delivered = asyncio.create_task(broker.outcome("t", published, until="delivered"))
    over = asyncio.create_task(broker.outcome("t", published, until="settled"))
    first = await consumer.pull(1)
    await asyncio.sleep(1)
    assert not delivered.done()
    second = await consumer.pull(1)
    assert (await delivered).words() == ["delivered", "delivered"]
    await first.ack()
    await asyncio.sleep(1)
    assert not over.done()
    await second.dead_letter()
    assert (await over).counts() == {"dead": 1, "settled": 1}
    assert not broker.shard.watches


@in_virtual_time
async def test_a_wait_ends_in_time_with_what_is(broker, clock):
    await broker.create_topic("t", partitions=3)
    consumer = await reader_of(broker, "t")
    published = await broker.publish("t", [wherry.Message(payload=b"", key=str(n)) for n in range(20)])
    held = await consumer.pull(5)
    await held.ack([0, 1])
    began = clock.now_ms
    fates = await broker.outcome("t", published, timeout_ms=5_000)
    assert clock.now_ms - began == 5_000
    assert fates.counts() == {"delivered": 3, "settled": 2, "waiting": 15}
    settled = {f"{row['partition']}-{row['offset']}" for row in held.batch.to_pylist()[:2]}
    assert {each for each, fate in zip(published.ids(), fates.words(), strict=True) if fate == "settled"} == settled


@pytest.mark.parametrize("until", ["delivered", "settled"])
@in_loop
async def test_every_end_ends_the_wait(home, clock, until):
    broker = await home.open()
    await broker.create_topic("t", messages_max=4, overflow="drop-oldest")
    await broker.subscribe("t", "s")
    published = await broker.publish(
        "t", [b"drop", b"cancel", wherry.Message(payload=b"expire", expires_ms=clock.now_ms + 5), b"amend"]
    )
    waiting = asyncio.create_task(broker.outcome("t", published, until=until))
    await asyncio.sleep(0)
    await broker.cancel("t", "0-1")
    await broker.publish("t", bodies(2))
    clock.advance(5)
    await broker.amend("t", "0-3", payload=b"amended")
    await broker.cancel("t", "0-3")
    assert (await waiting).words() == ["dropped", "cancelled", "expired", "cancelled"]


@in_loop
async def test_what_was_handed_over_and_waits_again_was_delivered(home):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    published = await broker.publish("t", b"")
    waiting = asyncio.create_task(broker.outcome("t", published, until="delivered"))
    await asyncio.sleep(0)
    await (await consumer.pull()).release()
    assert (await waiting).words() == ["delivered"]
    assert (await broker.fate("t", "0-0")).fate == "waiting"


@in_loop
async def test_at_most_once_is_settled_when_it_is_handed_over(home):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t", acks=False)
    waiting = asyncio.create_task(broker.outcome("t", await broker.publish("t", b"", ASKED), until="delivered"))
    await consumer.pull()
    assert (await waiting).words() == ["settled"]
    await settled(broker)
    assert unreported(broker) == {"0-0": "settled"}
    assert broker.delivered_notices() == [], "there is nothing between"


@in_loop
async def test_a_topic_that_is_deleted_takes_its_messages_and_its_outbox_along(home, how):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    published = await broker.publish("t", bodies(2), ASKED)
    await (await consumer.pull(1)).ack()
    waiting = asyncio.create_task(broker.outcome("t", published))
    await asyncio.sleep(0)
    await broker.delete_topic("t")
    assert (await waiting).words() == ["settled", "dropped"]
    assert broker.unreported() == []
    broker = await home.again(how)
    assert broker.unreported() == []


@in_loop
async def test_a_wait_ends_with_the_broker(home):
    broker = await home.open()
    await broker.create_topic("t")
    waiting = asyncio.create_task(broker.outcome("t", await broker.publish("t", b"")))
    await asyncio.sleep(0)
    await home.close()
    with pytest.raises(wherry.Closed):
        await waiting


@in_loop
async def test_waits_are_bounded(home, monkeypatch):
    monkeypatch.setattr(watches, "WATCHES_MAX", 2)
    broker = await home.open()
    await broker.create_topic("t")
    published = await broker.publish("t", b"")
    waiting = [asyncio.create_task(broker.outcome("t", published)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(wherry.LimitReached, match="waits for a fate"):
        await broker.outcome("t", published)
    await broker.cancel("t", "0-0")
    assert [(await each).words() for each in waiting] == [["cancelled"]] * 2
    assert (await broker.outcome("t", published)).words() == ["cancelled"], "what is over needs no wait"


@in_loop
async def test_what_cannot_be_waited_for_is_refused(home):
    broker = await home.open()
    await broker.create_topic("t")
    published = await broker.publish("t", b"")
    for wrong in ({"until": "stored"}, {"timeout_ms": -1}, {"timeout_ms": 600_001}):
        with pytest.raises(wherry.InvalidInput):
            await broker.outcome("t", published, **wrong)
    for partition, offset in ((0, 1), (1, 0)):
        unknown = Published(np.array([partition]), np.array([offset]))
        with pytest.raises(wherry.NotFound):
            await broker.outcome("t", unknown)


# Reports.


@in_loop
async def test_outcomes_survive_a_restart_at_every_stage(home, how):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "s")
    await broker.publish("t", bodies(3), ASKED)
    broker = await home.again(how)
    consumer = await broker.consumer("t", "s")
    held = await consumer.pull()
    assert [each.fate for each in broker.delivered_notices()] == ["delivered"] * 3
    assert broker.delivered_notices() == []
    broker = await home.again(how)
    assert not broker.on_outcome.is_set() or broker.unreported() == []
    consumer = await broker.consumer("t", "s")
    held = await consumer.pull()
    await held.ack([0])
    await held.dead_letter([1])
    await settled(broker)
    assert unreported(broker) == {"0-0": "settled", "0-1": "dead"}
    broker = await home.again(how)
    await settled(broker)
    assert unreported(broker) == {"0-0": "settled", "0-1": "dead"}
    first = broker.unreported()[0]
    assert first == Outcome("t", 0, 0, "0-0", URL, "settled", home.clock.now_ms)
    await broker.reported([first])
    broker = await home.again(how)
    assert unreported(broker) == {"0-1": "dead"}
    await broker.redrive("t")
    broker = await home.again(how)
    assert await drain(await broker.consumer("t", "s")) == [b"m1", b"m2"]
    broker = await home.again(how)
    assert unreported(broker) == {"0-1": "settled", "0-2": "settled"}
    await broker.reported(broker.unreported())
    broker = await home.again(how)
    assert broker.unreported() == []


@in_loop
async def test_an_outcome_that_is_not_durable_is_not_reported(home, monkeypatch):
    broker = await home.open()
    monkeypatch.setattr(type(broker.shard.writer), "append_at_once", lambda *_: None)  # a slow disk
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    await broker.publish("t", bodies(2), ASKED)
    held = await consumer.pull()
    await held.ack([0])
    await settled(broker)
    broker.on_outcome.clear()
    acking = asyncio.create_task(held.ack([1]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # a settle is written at the end of its turn of the loop
    assert broker.shard.committer.submitted > broker.shard.committer.durable
    assert unreported(broker) == {"0-0": "settled"}
    assert not broker.on_outcome.is_set()
    await acking
    await settled(broker)
    assert unreported(broker) == {"0-0": "settled", "0-1": "settled"}


@in_loop
async def test_notices_of_deliveries_come_once_and_are_bounded(home, monkeypatch):
    monkeypatch.setattr(pending_outcomes, "NOTICES_MAX", 3)
    broker = await home.open()
    await broker.create_topic("t")
    consumer, other = await reader_of(broker, "t"), await reader_of(broker, "t", "others")
    await broker.publish("t", bodies(4), ASKED)
    await (await consumer.pull(2)).release()
    assert [each.id for each in broker.delivered_notices()] == ["0-0", "0-1"]
    await consumer.pull()
    await other.pull()
    assert [each.id for each in broker.delivered_notices()] == ["0-2", "0-3"]
    await broker.reported(broker.delivered_notices())


@in_loop
async def test_a_repeat_is_not_reported_twice(home):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    again = PublishOptions(callback=URL, producer="p", sequence=0)
    await broker.publish("t", b"", again)
    assert (await broker.publish("t", b"", again)).repeated
    await drain(consumer)
    await settled(broker)
    await broker.reported(broker.unreported())
    assert (await broker.publish("t", b"", again)).repeated
    assert broker.unreported() == []


@in_loop
async def test_callbacks_that_cannot_be_reached_hold_up_no_other(home):
    broker = await home.open()
    await broker.create_topic("t")
    consumer = await reader_of(broker, "t")
    for number in range(10):
        await broker.publish("t", b"", PublishOptions(callback=f"http://{number % 2}"))
    await drain(consumer)
    await settled(broker)
    assert {each.url for each in broker.unreported(5, without={"http://0"})} == {"http://1"}
    for wrong in (0, 65_537):
        with pytest.raises(wherry.InvalidInput):
            broker.unreported(wrong)


# All three.


@pytest.mark.rows("A27", "K5", "K6")
@in_loop
async def test_wait_callback_and_question_agree(home, clock, how):
    """Consume and fail one message in twenty for good; half of the producers wait, all get callbacks, all ask."""
    broker = await home.open()
    await broker.create_topic("t", partitions=4, order="priority")
    await broker.subscribe("t", "s", retry=wherry.Retry(attempts=2, first_ms=0, jitter=0.0))
    calls = [
        await broker.publish("t", [wherry.Message(payload=b"", key=str(n), priority=n) for n in range(100)], ASKED)
        for _ in range(20)
    ]
    waiting = [asyncio.create_task(broker.outcome("t", call)) for call in calls]
    consumer = await broker.consumer("t", "s")
    while len(held := await consumer.pull(130)):
        priority = held.batch.column("priority").to_numpy()
        bad = np.flatnonzero(priority % 20 == 7)
        if len(bad):
            await held.nack(bad, error="no")
        await held.ack(np.flatnonzero(priority % 20 != 7))
    expected = ["dead" if n % 20 == 7 else "settled" for n in range(100)]
    assert [(await each).words() for each in waiting] == [expected] * 20
    broker = await home.again(how)
    reports = unreported(broker)
    assert len(reports) == 2_000
    for call in calls:
        assert [reports[each] for each in call.ids()] == expected
        assert [(await broker.fate("t", each)).fate for each in call.ids()] == expected
        assert (await broker.outcome("t", call, timeout_ms=0)).words() == expected
    dead = next(each for each in calls[0].ids() if reports[each] == "dead")
    assert await broker.fate("t", dead) == Fate("dead", {"s": "dead"})


@in_loop
async def test_what_is_scheduled_is_known_though_its_bodies_are_on_disk(home, clock):
    broker = await home.open(cache_bytes=1 << 20)
    await broker.create_topic("t", order="timeline")
    await broker.subscribe("t", "s")
    later = [wherry.Message(payload=bytes(1_000), due_ms=clock.now_ms + 60_000) for _ in range(3_000)]
    published = await broker.publish("t", later)
    await broker.checkpoint()
    assert (await broker.outcome("t", published, timeout_ms=0)).counts() == {"scheduled": 3_000}
    assert (await broker.fate("t", "0-2999")).subscriptions == {"s": "scheduled"}
