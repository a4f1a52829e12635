"""Messages that are forwarded in the entry in which they expire, and those that have to be dead letters first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import astuple

import pytest

from tests.behaviour.world import Home, VirtualClock, bodies, drain, in_loop, reader_of
from wherry import Broker, DeadFilter, Message, PublishOptions
from wherry.broker.metrics.tracing import Tracing
from wherry.core.decide import forwarding
from wherry.model import ops
from wherry.model.calls.dead import CopyCall, DeadCopy, DeadRow
from wherry.model.row_batch import ROWS_MAX

BY = "exchange"
TTL_MS = 50


def copies_to(*topics: str, **columns: object) -> CopyCall:
    """Return a call that copies each message to some topics."""

    def call(_: str, rows: list[DeadRow]) -> list[DeadCopy]:
        each = [{"envelope": b"e", **columns, "payload": row.payload} for row in rows]
        return [DeadCopy(topic, copy) for copy in each for topic in topics]

    return call


async def prepared(home: Home) -> Broker:
    """Open a broker with a topic whose messages become dead letters as they expire, and one for their copies."""
    broker = await home.open()
    await broker.create_topic("t", expired="dead-letter")
    await reader_of(broker, "t")
    await broker.create_topic("graves")
    await reader_of(broker, "graves")
    return broker


async def publish(broker: Broker, clock: VirtualClock, *payloads: bytes, topic: str = "t", persistent: bool = True):
    options = PublishOptions(persistent=persistent)
    for payload in payloads:
        await broker.publish(topic, [Message(payload=payload, expires_ms=clock.now_ms + TTL_MS)], options)


async def expire(broker: Broker, clock: VirtualClock) -> None:
    clock.advance(TTL_MS)
    broker.stats("t")  # it depends on what is in the topic, so that the messages expire
    await broker.stored_so_far()


async def graves(broker: Broker) -> list[bytes]:
    return (await broker.browse("graves")).column("payload").to_pylist()


@in_loop
async def test_the_copy_is_there_by_the_entry_that_removes_the_message(home: Home, clock: VirtualClock, how: str):
    broker = await prepared(home)
    broker.forward_expired(copies_to("graves"), by=BY)
    await publish(broker, clock, b"0", b"1", b"2")
    before = broker.shard.committer.submitted
    await expire(broker, clock)
    assert broker.shard.committer.submitted == before + 1
    assert await graves(broker) == [b"0", b"1", b"2"]
    broker = await home.again(how)
    assert await graves(broker) == [b"0", b"1", b"2"]
    assert (broker.stats("t").messages, broker.stats("t").dead) == (0, 0)


async def life(home: Home, clock: VirtualClock, forward: Callable[[Broker], Awaitable[None]]) -> dict[str, object]:
    """Let messages expire and be forwarded in some way; return what can be seen of them."""
    broker = await prepared(home)
    await broker.publish("t", [b"before"])
    await drain(await broker.consumer("t", "readers"))
    sent = await broker.publish("t", [Message(payload=b"watched", expires_ms=clock.now_ms + TTL_MS)])
    await publish(broker, clock, b"0", b"1")
    await forward(broker)
    await broker.stored_so_far()
    stats = broker.stats("t")
    return {
        "counters": stats.counters,
        "of the subscription": astuple(stats.subscriptions[0]),
        "fates": [str((await broker.fate("t", f"0-{offset}")).fate) for offset in range(4)],
        "outcome": (await broker.outcome("t", sent, timeout_ms=0)).words(),
        "audit": [each._replace(at_ms=0, messages=0) for each in broker.audit("t")][:1],
        "graves": await graves(broker),
    }


@in_loop
async def test_it_looks_as_if_it_had_been_a_dead_letter_in_between(home: Home, clock: VirtualClock, tmp_path):
    async def in_one_step(broker: Broker) -> None:
        broker.forward_expired(copies_to("graves"), by=BY)
        await expire(broker, clock)

    async def in_two(broker: Broker) -> None:
        await expire(broker, clock)
        assert await broker.forward([("t", DeadFilter())], [("graves", [b"watched", b"0", b"1"], True)], by=BY) == 3

    one = await life(home, clock, in_one_step)
    await home.close()
    home.path = tmp_path / "another"
    assert await life(home, clock, in_two) == one
    assert one["fates"] == ["settled", "dead", "dead", "dead"]


@in_loop
async def test_messages_between_those_that_a_consumer_holds_are_forwarded(home: Home, clock: VirtualClock, how: str):
    """They are no run of offsets, and what is held is forwarded when it comes back."""
    broker = await prepared(home)
    broker.forward_expired(copies_to("graves"), by=BY)
    await publish(broker, clock, *(b"%d" % number for number in range(5)))
    reader = await broker.consumer("t", "readers")
    held = [await reader.pull(1) for _ in range(4)]
    await held[0].release()
    await held[2].release()
    await expire(broker, clock)
    assert await graves(broker) == [b"0", b"2", b"4"]
    await held[1].release()
    await held[3].ack()
    await expire(broker, clock)
    assert await graves(broker) == [b"0", b"2", b"4", b"1"]
    broker = await home.again(how)
    assert (await graves(broker), broker.stats("t").messages) == ([b"0", b"2", b"4", b"1"], 0)


@in_loop
async def test_a_copy_may_expire_in_a_topic_of_the_same_round(home: Home, clock: VirtualClock):
    broker = await prepared(home)
    broker.forward_expired(copies_to("graves", expires=clock.now_ms + TTL_MS + 20), by=BY)
    await publish(broker, clock, b"old", topic="graves")
    await publish(broker, clock, b"new")
    await expire(broker, clock)
    assert await graves(broker) == [b"new"]
    clock.advance(20)
    assert await graves(broker) == []


@in_loop
async def test_many_copies_are_several_row_batches(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("graves")
    await reader_of(broker, "graves")
    names = [f"t{number}" for number in range(3)]
    for name in names:
        await broker.create_topic(name, expired="dead-letter")
        await reader_of(broker, name)
        await publish(broker, clock, *[name.encode()] * (ROWS_MAX - 1), topic=name)
    broker.forward_expired(copies_to("graves"), by=BY)
    clock.advance(TTL_MS)
    broker.stats("t0")
    broker = await home.again(how)
    assert sorted(set(await graves(broker))) == [b"t0", b"t1", b"t2"]
    assert broker.stats("graves").messages == 3 * (ROWS_MAX - 1)


@in_loop
async def test_a_message_without_a_copy_is_removed(home: Home, clock: VirtualClock, how: str):
    broker = await prepared(home)
    broker.forward_expired(copies_to(), by=BY)
    await publish(broker, clock, b"x")
    await expire(broker, clock)
    broker = await home.again(how)
    assert (await graves(broker), broker.stats("t").messages, broker.stats("t").dead) == ([], 0, 0)


Change = Callable[[Broker, pytest.MonkeyPatch], Awaitable[None]]


async def no_copies(broker: Broker, _: pytest.MonkeyPatch) -> None:
    broker.forward_expired(lambda *_: None, by=BY)


async def no_such_topic(broker: Broker, _: pytest.MonkeyPatch) -> None:
    broker.forward_expired(copies_to("graves", "nowhere"), by=BY)


async def bounded(broker: Broker, _: pytest.MonkeyPatch) -> None:
    await broker.create_topic("graves", messages_max=100)


async def buffered(broker: Broker, _: pytest.MonkeyPatch) -> None:
    await broker.subscribe("graves", "slow", buffer_messages=1)


async def too_long(broker: Broker, _: pytest.MonkeyPatch) -> None:
    await broker.create_topic("graves", payload_bytes_max=3)


async def another_reader(broker: Broker, _: pytest.MonkeyPatch) -> None:
    await broker.subscribe("t", "others")


async def a_watcher(broker: Broker, _: pytest.MonkeyPatch) -> None:
    await broker.subscribe("t", "watchers", durable=False)


async def an_earlier_dead_letter(broker: Broker, _: pytest.MonkeyPatch) -> None:
    await (await (await broker.consumer("t", "readers")).pull(1)).dead_letter()


async def a_trace(broker: Broker, _: pytest.MonkeyPatch) -> None:
    broker.shard.tracing = Tracing(broker.shard, object())  # type: ignore[arg-type]


async def no_room(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(broker.shard), "takes_messages", lambda _: False)


async def too_large_an_entry(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.shard.writer, "entry_bytes_max", 1_200)


async def too_many(_: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "FEW", 1)


async def too_many_copies(_: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "COPIES_MAX", 1)


async def too_many_messages(_: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "MESSAGES_MAX", 1)


async def too_many_bytes(_: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "BYTES_MAX", 600)


@pytest.mark.parametrize(
    "change",
    [
        no_copies,
        no_such_topic,
        bounded,
        buffered,
        too_long,
        another_reader,
        a_watcher,
        an_earlier_dead_letter,
        a_trace,
        no_room,
        too_large_an_entry,
        too_many,
        too_many_messages,
        too_many_copies,
        too_many_bytes,
    ],
    ids=lambda change: change.__name__,
)
@in_loop
async def test_what_is_not_certain_makes_dead_letters_first(
    home: Home, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, change: Change
):
    broker = await prepared(home)
    broker.forward_expired(copies_to("graves"), by=BY)
    await publish(broker, clock, b"long", b"also")
    await change(broker, monkeypatch)
    await expire(broker, clock)
    dead = (await broker.dead_letters("t")).column("payload").to_pylist()
    assert set(dead) == {b"long", b"also"}
    assert await graves(broker) == []


@in_loop
async def test_transient_messages_make_dead_letters_first(home: Home, clock: VirtualClock):
    broker = await prepared(home)
    broker.forward_expired(copies_to("graves"), by=BY)
    await publish(broker, clock, b"x", persistent=False)
    await expire(broker, clock)
    assert (broker.stats("t").dead, await graves(broker)) == (1, [])


@in_loop
async def test_a_topic_without_room_for_dead_letters_drops_what_expires(home: Home, clock: VirtualClock):
    broker = await prepared(home)
    await broker.create_topic("t", expired="dead-letter", dead_messages_max=0)
    broker.forward_expired(copies_to("graves"), by=BY)
    await publish(broker, clock, b"x")
    await expire(broker, clock)
    assert (broker.stats("t").dead, broker.stats("t").messages, await graves(broker)) == (0, 0, [])


@in_loop
async def test_a_discard_with_a_reason_is_journaled(home: Home, clock: VirtualClock):
    broker = await prepared(home)
    broker.forward_expired(copies_to("graves"), by=BY)
    await broker.publish("t", bodies(1))
    await publish(broker, clock, b"x")
    await expire(broker, clock)
    found = [op for op in await home.journal() if isinstance(op, ops.Discard)]
    assert [(op.reason, op.redriven, op.by, op.offsets.tolist()) for op in found] == [("expired", True, BY, [1])]
