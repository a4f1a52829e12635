"""Odd publishes that are alone in their turn: all that can be seen of them is as if they had been gathered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.native_client import NativeError
from tests.unit.wire.native.memory_session import MemoryClient, NativeWorld, in_memory
from wherry.broker.commit.commit import Committer
from wherry.broker.commit.gathering import Gathering
from wherry.broker.metrics.metrics import Metrics
from wherry.core.inspect.audit import audit
from wherry.core.state import snapshot
from wherry.journal.memory import MemoryWriter
from wherry.model.errors import Forbidden, WriterFailed
from wherry.sim.patch import patched
from wherry.wire.native.codec.documents import encode_goodbye
from wherry.wire.native.codec.publishes import PublishTerms
from wherry.wire.native.codec.rows import RowFields

Case = Callable[[NativeWorld, MemoryClient], Awaitable[None]]

PLANNED: set[Case] = set()
"""The cases in which a publish takes the planned way."""


def planned(case: Case) -> Case:
    PLANNED.add(case)
    return case


def topic(**terms: Any) -> Case:
    """Publish to a topic with these terms until it is full, if it has bounds, one message in a turn."""

    async def case(world: NativeWorld, client: MemoryClient) -> None:
        await world.broker.create_topic("odd", **terms)
        await world.broker.subscribe("odd", "workers")
        for number in range(5):
            client.begin_publish("odd", b"%d" % number)
            await world.settle_down()

    return case


def subscription(**terms: Any) -> Case:
    """Publish beside another subscription, one message in a turn."""

    async def case(world: NativeWorld, client: MemoryClient) -> None:
        await world.broker.subscribe("jobs", "another", **terms)
        for number in range(5):
            client.begin_publish("jobs", b"%d" % number)
            await world.settle_down()

    return case


async def the_topic_is_deleted_in_the_turn(world: NativeWorld, client: MemoryClient) -> None:
    client.begin_publish("jobs", b"x")
    await world.broker.delete_topic("jobs")


@planned
async def the_topic_is_made_anew(world: NativeWorld, client: MemoryClient) -> None:
    await world.broker.delete_topic("jobs")
    client.begin_publish("jobs", b"for none")
    await world.settle_down()
    await world.broker.create_topic("jobs")
    await world.broker.subscribe("jobs", "workers")
    for _ in range(2):
        client.begin_publish("jobs", b"x")
        await world.settle_down()


async def bounds_come_in_the_turn(world: NativeWorld, client: MemoryClient) -> None:
    client.begin_publish("jobs", b"x")
    await world.broker.create_topic("jobs", messages_max=1)


async def the_disk_is_full(world: NativeWorld, client: MemoryClient) -> None:
    def full(_: Any) -> Any:
        return lambda self, new_bytes, *, essential, entries=1: None if essential else 0

    with patched(MemoryWriter, "admit", full):
        for _ in range(2):
            last = client.begin_publish("jobs", b"x")
            await client.until(lambda last=last: last in client.answers)


async def memory_is_full(world: NativeWorld, client: MemoryClient) -> None:
    world.broker.shard.store.cache_bytes_max = 0
    client.begin_publish("jobs", b"x")


@planned
async def the_broker_closes_in_the_turn(world: NativeWorld, client: MemoryClient) -> None:
    for _ in range(2):
        client.begin_publish("jobs", b"x")
        world.broker.shard.committer.closing = True
        await world.settle_down()
    world.broker.shard.committer.closing = False
    client.begin_publish("jobs", b"x")


async def the_journal_fails_before_it(world: NativeWorld, client: MemoryClient) -> None:
    world.broker.shard.committer.fail(WriterFailed("the disk is gone"))
    client.begin_publish("jobs", b"x")


@planned
async def the_client_goes_in_the_turn(world: NativeWorld, client: MemoryClient) -> None:
    client.begin_publish("jobs", b"x")
    client.abort()


@planned
async def the_client_takes_its_leave_in_the_turn(world: NativeWorld, client: MemoryClient) -> None:
    client.send(encode_goodbye("done"))
    client.begin_publish("jobs", b"x")


@planned
async def no_confirm_is_awaited(world: NativeWorld, client: MemoryClient) -> None:
    for topic in ("jobs", "none"):
        client.begin_publish(topic, b"x", quiet=True)
        await world.settle_down()


@planned
async def repeats_of_a_producer(world: NativeWorld, client: MemoryClient) -> None:
    for sequence in (1, 1, 0, 2):
        client.begin_publish("jobs", b"x", terms=PublishTerms(producer="p", sequence=sequence))
        await world.settle_down()
        client.begin_publish("jobs", b"plain")
        await world.settle_down()


@planned
async def ids_that_came_before(world: NativeWorld, client: MemoryClient) -> None:
    for _ in range(2):
        client.begin_publish("jobs", b"x", fields=[RowFields(id="one")])
        client.begin_publish("jobs", b"plain")
        await world.settle_down()
        client.begin_publish("jobs", b"plain")
        await world.settle_down()


@planned
async def times_of_their_own(world: NativeWorld, client: MemoryClient) -> None:
    now_ms = world.clock.wall_us() // 1000
    for fields in (RowFields(expires_ms=now_ms + 5), RowFields(due_ms=now_ms + 50), RowFields(priority=3)):
        client.begin_publish("jobs", b"x", fields=[fields])
        await world.settle_down()
        client.begin_publish("jobs", b"plain")
        await world.settle_down()
    world.clock.advance(10)
    client.begin_publish("jobs", b"behind what has expired")


async def a_callback_that_cannot_be_called(world: NativeWorld, client: MemoryClient) -> None:
    client.begin_publish("jobs", b"x", terms=PublishTerms(callback="nowhere"))


@planned
async def names_and_payloads_at_their_ends(world: NativeWorld, client: MemoryClient) -> None:
    await world.broker.create_topic("small", payload_bytes_max=4)
    await world.broker.subscribe("small", "workers")
    for name, payload in (("small", b"1234"), ("small", b"12345"), ("small", b""), ("", b"x"), ("é\n", b"x")):
        client.begin_publish(name, payload)
        await world.settle_down()


@planned
async def a_batch_and_a_call_behind_it(world: NativeWorld, client: MemoryClient) -> None:
    client.begin_publish("jobs", b"first")
    client.begin_arrow("jobs", pa.RecordBatch.from_pydict({"payload": [b"second", b"third"]}))
    await world.settle_down()
    client.begin_publish("jobs", b"fourth")
    calls = (world.broker.publish("jobs", [b"fifth", b"sixth"]), world.broker.publish("jobs", b"seventh"))
    await asyncio.gather(*calls)


async def a_reader_that_looks_in_the_turn(world: NativeWorld, client: MemoryClient) -> None:
    client.begin_publish("jobs", b"first")
    await world.broker.gathering.flush()
    async with await world.broker.consumer("jobs", "workers") as consumer:
        client.begin_publish("jobs", b"second")
        await world.broker.gathering.flush()
        assert len(await consumer.pull(10)) == 3


@planned
async def two_clients(world: NativeWorld, client: MemoryClient) -> None:
    other = await world.client()
    for first, second in ((client, other), (other, client)):
        first.begin_publish("jobs", b"a")
        second.begin_publish("jobs", b"b")
        await world.settle_down()
        first.begin_publish("jobs", b"c")
        await world.settle_down()
    client.answers |= {1000 + number: answer for number, answer in other.answers.items()}


@planned
async def a_key_that_is_revoked(world: NativeWorld, client: MemoryClient) -> None:
    client.begin_publish("jobs", b"x")
    refused = Forbidden("ann", "publish", "jobs")

    def revoked(_: Any) -> Any:
        def check(self: Any, topic: str) -> None:
            raise refused

        return check

    with patched(type(client.session), "_check_publish", revoked):
        client.begin_publish("jobs", b"y")
        await world.settle_down()
        client.begin_publish("jobs", b"z")
        await world.settle_down()


TOPICS: dict[str, Case] = {
    "transient": topic(persistent=False),
    "refuses": topic(messages_max=3),
    "drops the oldest": topic(messages_max=3, overflow="drop-oldest"),
    "buries": topic(bytes_max=3, overflow="dead-letter"),
    "flows": topic(mesh="flow"),
    "flows and is full": topic(mesh="flow", messages_max=3),
    "of two partitions": topic(partitions=2),
    "by priority": topic(order="priority"),
    "by time": topic(order="timeline"),
    "kept by age": topic(keep="age", keep_ms=1 << 40),
    "a buffer, until it is cut off": planned(subscription(buffer_messages=2)),
    "an ephemeral one": subscription(durable=False),
    "order by key": subscription(key_order=True),
    "no acks": planned(subscription(acks=False)),
}
OTHERS = (
    the_topic_is_deleted_in_the_turn,
    the_topic_is_made_anew,
    bounds_come_in_the_turn,
    the_disk_is_full,
    memory_is_full,
    the_broker_closes_in_the_turn,
    the_journal_fails_before_it,
    the_client_goes_in_the_turn,
    the_client_takes_its_leave_in_the_turn,
    no_confirm_is_awaited,
    repeats_of_a_producer,
    ids_that_came_before,
    times_of_their_own,
    a_callback_that_cannot_be_called,
    names_and_payloads_at_their_ends,
    a_batch_and_a_call_behind_it,
    a_reader_that_looks_in_the_turn,
    two_clients,
    a_key_that_is_revoked,
)
CASES = TOPICS | {case.__name__: case for case in OTHERS}


def lived(case: Case, *, lone: bool) -> tuple[list[Any], int]:
    """All that can be seen after a case, and how many publishes took the planned way of lone ones."""
    left: list[Any] = []
    journal: list[bytes] = []
    taken = 0

    def submitted(submit: Any) -> Any:
        def call(self: Committer, parts: list[bytes], size: int) -> int:
            position = int(submit(self, parts, size))
            journal.append(b"".join(map(bytes, parts)))
            return position

        return call

    def counted(publish: Any) -> Any:
        def call(self: Gathering, lone: Any) -> bool:
            nonlocal taken
            done = bool(publish(self, lone))
            taken += done
            return done

        return call

    @in_memory()
    async def run(world: NativeWorld) -> None:
        client = await world.client()
        await client.publish("jobs", b"before")
        metrics = Metrics(world.broker)
        await case(world, client)
        await world.settle_down()
        shard, session = world.broker.shard, client.session
        audit(shard.state)
        answers = {
            number: answer.problem if isinstance(answer, NativeError) else answer
            for number, answer in client.answers.items()
        }
        counts = (sum(metrics.publish.counts), metrics.refusals, world.sessions.intake.unstored_bytes)
        left.extend((answers, counts, session.unstored_bytes, session._publishing.under_way, session.state.name))
        left.extend((snapshot.digest(shard.state), journal, shard.committer.submitted - shard.committer.durable))

    with patched(Committer, "submit", submitted), patched(Gathering, "_publish_lone", counted):
        if lone:
            run()
        else:
            with patched(Gathering, "add_lone", lambda _: lambda self, publish: False):
                run()
    return left, taken


@pytest.mark.parametrize("name", CASES)
def test_what_can_be_seen_is_the_same_as_of_gathered_publishes(name):
    case = CASES[name]
    alone, taken = lived(case, lone=True)
    gathered, none = lived(case, lone=False)
    assert none == 0
    assert alone == gathered
    assert bool(taken) == (case in PLANNED)
