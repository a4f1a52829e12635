"""A message that one subscription holds when it expires waits for no other subscription."""

from __future__ import annotations

import pytest

from tests.behaviour.world import Home, VirtualClock, drain, in_loop, reader_of
from wherry import Broker, Consumer, Delivery, Message


async def one_holds_it(broker: Broker, clock: VirtualClock, **topic: object) -> tuple[Consumer, Consumer, Delivery]:
    """Have a message expire that the subscription `one` has on lease and that waits for `other`."""
    await broker.create_topic("t", **topic)
    one, other = await reader_of(broker, "t", "one"), await reader_of(broker, "t", "other")
    await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms + 5)])
    held = await one.pull(1)
    clock.advance(5)
    return one, other, held


def expired(broker: Broker) -> int:
    """Return how many messages expired by the topic's statistics."""
    return broker.stats("t").counters.get("expired", 0)


@pytest.mark.parametrize("order", ["fifo", "priority", "timeline"])
@in_loop
async def test_no_other_subscription_gets_an_expired_message_that_one_holds(
    home: Home, clock: VirtualClock, how: str, order: str
):
    broker = await home.open()
    _, other, held = await one_holds_it(broker, clock, order=order)
    assert await drain(other) == []
    assert (await broker.fate("t", "0-0")).fate == "delivered"
    await held.ack()
    assert (await broker.fate("t", "0-0")).fate == "expired"
    assert (broker.stats("t").messages, expired(broker)) == (0, 1)
    await home.again(how)


@in_loop
async def test_an_expired_message_is_gone_for_all_when_its_holder_releases_it(
    home: Home, clock: VirtualClock, how: str
):
    broker = await home.open()
    one, other, held = await one_holds_it(broker, clock)
    assert await drain(other) == []
    await held.release()
    assert await drain(one) == []
    assert (broker.stats("t").messages, expired(broker)) == (0, 1)
    await home.again(how)


@in_loop
async def test_an_expired_message_on_lease_becomes_a_dead_letter_of_the_others(
    home: Home, clock: VirtualClock, how: str
):
    broker = await home.open()
    _, other, held = await one_holds_it(broker, clock, expired="dead-letter")
    assert await drain(other) == []
    assert expired(broker) == 1
    await held.ack()
    assert expired(broker) == 1
    (letter,) = [row async for batch in broker.each_dead("t") for row in batch.to_pylist()]
    assert (letter["subscription"], letter["reason"]) == ("other", "expired")
    await home.again(how)


@in_loop
async def test_an_expired_message_is_counted_once_when_it_becomes_a_dead_letter_of_its_holder_too(
    home: Home, clock: VirtualClock, how: str
):
    broker = await home.open()
    one, other, held = await one_holds_it(broker, clock, expired="dead-letter")
    assert await drain(other) == []
    await held.release()
    assert await drain(one) == []
    assert (broker.stats("t").dead, expired(broker)) == (2, 1)
    broker = await home.again(how)
    assert expired(broker) == 1


@in_loop
async def test_without_room_for_a_dead_letter_an_expired_message_is_dropped(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", expired="dead-letter", dead_messages_max=2)
    names = ("one", "two", "three", "four")
    readers = [await reader_of(broker, "t", name) for name in names]
    await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms + 5)])
    held = await readers[0].pull(1)
    clock.advance(5)
    assert [await drain(reader) for reader in readers[1:]] == [[], [], []]
    assert (broker.stats("t").dead, expired(broker)) == (2, 1)
    await held.ack()
    await home.again(how)


@in_loop
async def test_an_ephemeral_subscription_does_not_get_an_expired_message_either(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    one, passing = await reader_of(broker, "t", "one"), await reader_of(broker, "t", "passing", durable=False)
    await broker.publish("t", [Message(payload=b"x", expires_ms=clock.now_ms + 5)])
    held = await one.pull(1)
    clock.advance(5)
    assert await drain(passing) == []
    await held.ack()
    assert (await broker.fate("t", "0-0")).fate == "settled", "every durable subscription has settled it"
