"""Publishes and settles of one turn of the loop are one batch and one entry, and each caller gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import wherry
from tests.behaviour.world import Home, drain, in_loop
from wherry import Message, PublishOptions
from wherry.broker.broker import Broker
from wherry.broker.commit import gathering
from wherry.broker.commit.gathering import Gathering
from wherry.core.decide.settling import Ending
from wherry.model.errors import InvalidInput, LimitReached, StaleLease, WherryError
from wherry.model.limits import PRIORITY_DEFAULT
from wherry.sim.patch import patched


@contextmanager
def counted() -> Iterator[list[int]]:
    """Record how many messages were submitted together, each time."""
    found: list[int] = []

    def make(publishing: Any) -> Any:
        def count(broker: Broker, topic: str, messages: Any, options: PublishOptions) -> Any:
            batch, choose = publishing(broker, topic, messages, options)
            found.append(batch.num_rows)
            return batch, choose

        return count

    with patched(Broker, "_publishing", make):
        yield found


async def publish_all(broker: wherry.Broker, topic: str, messages: list[Any]) -> list[Any]:
    """Publish each message by a call of its own, all in one turn; what each call returned or raised."""
    calls = (broker.publish(topic, each) for each in messages)
    return await asyncio.gather(*calls, return_exceptions=True)


async def opened(home: Home, **topic: Any) -> wherry.Broker:
    broker = await home.open()
    await broker.create_topic("t", **topic)
    await broker.subscribe("t", "readers")
    return broker


@in_loop
async def test_calls_of_one_turn_are_one_batch_and_each_gets_its_own_place(home: Home):
    broker = await opened(home)
    entries = broker.shard.committer.submitted
    with counted() as together:
        found = await publish_all(broker, "t", [b"%d" % number for number in range(10)])
    assert together == [10]
    assert broker.shard.committer.submitted == entries + 1
    assert [each.ids() for each in found] == [[f"0-{number}"] for number in range(10)]
    reader = await broker.consumer("t", "readers")
    assert await drain(reader) == [b"%d" % number for number in range(10)]


@in_loop
async def test_every_field_of_a_row_arrives(home: Home):
    broker = await opened(home, order="priority", partitions=3)
    given = [
        Message(payload=b"a", key="k", priority=7, headers={"n": "ä"}, envelope=b"e"),
        Message(payload=b"", key="l", expires_ms=home.clock.wall_us() // 1000 + 60_000),
        Message(payload=b"c", key="m", due_ms=1),
    ]
    with counted() as together:
        await publish_all(broker, "t", given)
    assert together == [3]
    reader = await broker.consumer("t", "readers")
    rows = {row["payload"]: row for row in (await reader.pull(10)).batch.to_pylist()}
    assert rows[b"a"]["key"] == "k"
    assert rows[b"a"]["priority"] == 7
    assert rows[b"a"]["headers"] == [("n", "ä")]
    assert rows[b"a"]["envelope"] == b"e"
    assert rows[b""]["expires"] is not None
    assert rows[b"c"]["due"] is not None
    assert rows[b"c"]["priority"] == PRIORITY_DEFAULT


@pytest.mark.parametrize(
    "message",
    [
        Message(payload=b"x", key="k" * 2_000),
        Message(payload=b"x", key="\ud800"),
        Message(payload=b"x", priority=1 << 20),
        Message(payload=b"x", priority=1.5),  # type: ignore[arg-type]
        Message(payload=b"x", due_ms=-1),
        Message(payload="x", headers={"a": 1}),  # type: ignore[arg-type,dict-item]
        Message(payload=b"x", headers={"a": "b" * 100_000}),
    ],
)
@in_loop
async def test_a_message_that_is_wrong_is_refused_alone_and_named(home: Home, message: Message):
    broker = await opened(home)
    good, bad, other = await publish_all(broker, "t", [b"1", message, b"2"])
    assert isinstance(bad, InvalidInput)
    assert {*good.ids(), *other.ids()} == {"0-0", "0-1"}


def full(found: Sequence[Any]) -> list[str]:
    return [type(each).__name__ for each in found]


async def one_too_many(home: Home) -> list[str]:
    broker = await opened(home, messages_max=2, overflow="refuse")
    return full(await publish_all(broker, "t", [b"1", b"2", b"3"]))


@in_loop
async def test_what_fits_a_bounded_topic_is_taken_and_the_rest_refused(home: Home):
    assert await one_too_many(home) == ["Published", "Published", "LimitReached"]


@in_loop
async def test_a_batch_that_is_refused_is_tried_call_by_call(home: Home):
    """Exceed the broker's bound of memory for transient messages: no parting by topic helps there."""
    broker = await home.open(cache_bytes=4 << 20)
    await broker.create_topic("t", persistent=False)
    await broker.subscribe("t", "readers")
    big = bytes(60_000)
    with counted() as together:
        found = await publish_all(broker, "t", [big] * 200)
    taken = [each for each in found if not isinstance(each, WherryError)]
    assert 0 < len(taken) < 200
    assert all(isinstance(each, LimitReached) for each in found if isinstance(each, WherryError))
    assert together[0] > 1
    reader = await broker.consumer("t", "readers")
    assert len(await drain(reader)) == len(taken)


def test_without_the_second_try_one_refusal_is_that_of_all(tmp_path, clock):
    """Plant that a refusal of a batch is the answer to all of its calls."""

    def make(_: Any) -> Any:
        return lambda config, group: [group.runs]

    with (
        patched(gathering, "fitting", make),
        patched(gathering, "MAY_BE_OF_ONE_CALL", lambda _: ()),
        pytest.raises(AssertionError),
    ):
        test_what_fits_a_bounded_topic_is_taken_and_the_rest_refused(home=Home(tmp_path, clock))


def test_an_answer_of_another_call_is_noticed(tmp_path, clock):
    """Plant that each call gets the answer of the first of its batch."""

    def make(own: Any) -> Any:
        return lambda answer, start, count: own(answer, 0, count)

    with patched(gathering, "_answer_of_call", make), pytest.raises(AssertionError):
        test_calls_of_one_turn_are_one_batch_and_each_gets_its_own_place(home=Home(tmp_path, clock))


async def mixed(home: Home) -> list[bytes]:
    broker = await opened(home)
    await asyncio.gather(
        broker.publish("t", b"1"),
        broker.publish("t", [b"2", b"3"]),
        broker.publish("t", [b"4", b"5"]),
        broker.publish("t", b"6"),
        broker.publish("t", Message(payload=b"7", id="seven")),
        broker.publish("t", Message(payload=b"8", id="eight")),
    )
    return await drain(await broker.consumer("t", "readers"))


@in_loop
async def test_a_single_message_and_a_batch_keep_the_order_of_their_calls(home: Home):
    assert await mixed(home) == [b"%d" % number for number in range(1, 9)]


def test_a_batch_that_overtakes_is_noticed(tmp_path, clock):
    """Plant that a batch does not wait for what was gathered before."""
    with patched(Gathering, "is_open", lambda _: lambda self, topic: False), pytest.raises(AssertionError):
        test_a_single_message_and_a_batch_keep_the_order_of_their_calls(home=Home(tmp_path, clock))


@in_loop
async def test_messages_without_a_key_still_take_the_partitions_in_turn_call_by_call(home: Home):
    broker = await opened(home, partitions=4)
    found = await publish_all(broker, "t", [b"x"] * 8)
    assert sorted(int(each.partition[0]) for each in found) == [0, 0, 1, 1, 2, 2, 3, 3]


@in_loop
async def test_a_topic_that_is_deleted_meanwhile_fails_its_callers_only(home: Home):
    broker = await opened(home)
    await broker.create_topic("other")
    gone = asyncio.create_task(broker.publish("t", b"x"))
    stays = asyncio.create_task(broker.publish("other", b"x"))
    await asyncio.sleep(0)
    await broker.delete_topic("t")
    found = await asyncio.gather(gone, stays, return_exceptions=True)
    assert not isinstance(found[1], BaseException)


# ------------------------------------------------------------------------------------------------------------- settles


async def ten_out(home: Home) -> tuple[wherry.Broker, Any]:
    broker = await opened(home)
    await broker.publish("t", [b"%d" % number for number in range(10)])
    reader = await broker.consumer("t", "readers")
    return broker, await reader.pull(10)


async def left(broker: wherry.Broker) -> int:
    return int(broker.stats("t").subscriptions[0].lag)


async def ack_one_by_one(home: Home) -> tuple[int, int]:
    broker, delivery = await ten_out(home)
    (token,) = delivery.tokens
    entries = broker.shard.committer.submitted
    await asyncio.gather(*(broker.ack(token, [number]) for number in range(9)))
    return broker.shard.committer.submitted - entries, await left(broker)


@in_loop
async def test_acks_of_one_turn_are_one_entry_also_of_one_lease(home: Home):
    assert await ack_one_by_one(home) == (1, 1)


@in_loop
async def test_acks_of_the_last_rows_end_the_lease(home: Home):
    broker, delivery = await ten_out(home)
    (token,) = delivery.tokens
    await asyncio.gather(broker.ack(token, [0, 1]), broker.nack(token, [2]), broker.ack(token, list(range(3, 10))))
    assert await left(broker) == 1
    with pytest.raises(StaleLease):
        await broker.ack(token)


@in_loop
async def test_of_two_that_settle_the_same_message_the_second_is_refused_and_the_others_are_not(home: Home):
    broker, delivery = await ten_out(home)
    (token,) = delivery.tokens
    calls = (
        broker.ack(token, [0, 1]),
        broker.ack(token, [1, 2]),
        broker.ack(token, [3]),
        broker.ack(12_345),
        broker.dead_letter(token, [2]),
    )
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert full(found) == ["NoneType", "StaleLease", "NoneType", "StaleLease", "NoneType"]
    assert await left(broker) == 6
    assert broker.stats("t").dead == 1


def test_rows_of_a_refused_settle_that_stay_taken_are_noticed(tmp_path, clock):
    """Plant that rows which a refused call had named stay taken."""

    def make(_: Any) -> Any:
        return lambda self, mark: None

    with patched(Ending, "undo", make), pytest.raises(AssertionError):
        test_a_settle_that_is_refused_leaves_nothing_in_the_entry(home=Home(tmp_path, clock))


@in_loop
async def test_a_settle_that_is_refused_leaves_nothing_in_the_entry(home: Home):
    broker, delivery = await ten_out(home)
    (token,) = delivery.tokens
    refused = broker.settler.ack([(token, np.array([0])), (token, np.array([5]))])
    found = await asyncio.gather(broker.ack(token, [5]), refused, broker.ack(token, [0]), return_exceptions=True)
    assert full(found) == ["NoneType", "StaleLease", "NoneType"]
    assert await left(broker) == 8
