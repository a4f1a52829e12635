"""An ack of a whole lease that is alone in its turn: in odd cases, it does and answers what the general way does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from tests.behaviour.test_planned_way import Life, lived
from wherry import PublishOptions
from wherry.broker.calls.settle import Settler
from wherry.broker.metrics.metrics import Metrics
from wherry.journal.memory import MemoryWriter
from wherry.model.calls.lease import OffsetRanges
from wherry.model.errors import WriterFailed
from wherry.sim.patch import patched

Case = Callable[[Life], Awaitable[None]]


async def ack(life: Life, *parts: Any, within: tuple[str, str] | None = None) -> None:
    """Ack, and note the answer."""
    answered: list[str] = []
    life.broker.settler.ack_soon(parts, lambda fault: answered.append(repr(fault)), within)
    for _ in range(20):
        await asyncio.sleep(0)
    life.seen.append(answered)


async def tokens(life: Life, *payloads: bytes) -> list[int]:
    """Publish messages in turns of their own, and pull all of them, one at a time; return the tokens."""
    consumer = await life.broker.consumer("t", "s")
    await (await consumer.pull()).ack()
    found = []
    for payload in payloads:
        await life.publish(payload)
        found.append((await life.pull(consumer, 1)).token_of(0))
    return found


async def twice(life: Life) -> None:
    (token,) = await tokens(life, b"x")
    for _ in range(2):
        await ack(life, (token, None))


async def the_same_twice_in_a_call(life: Life) -> None:
    (token,) = await tokens(life, b"x")
    await ack(life, (token, None), (token, None))
    await ack(life, (token, None))


async def of_another_subscription(life: Life) -> None:
    await life.broker.subscribe("t", "another")
    first, second = await tokens(life, b"x", b"y")
    for within in (("t", "another"), ("t", "none"), ("none", "s"), ("t", "s")):
        await ack(life, (first, None), within=within)
    await ack(life, (second, None))


async def by_offsets(life: Life) -> None:
    tokens_ = await tokens(life, b"x", b"y", b"z", b"w")
    await ack(life, (tokens_[0], np.array([1])))
    await ack(life, (tokens_[1], np.array([7])))
    await ack(life, (tokens_[1], OffsetRanges([(2, 3)])))
    await ack(life, (tokens_[2], OffsetRanges([(2, 4)])))
    await ack(life, (tokens_[3], OffsetRanges([(3, 5)])))
    await ack(life, (tokens_[2], np.array([3, 3])))


async def what_is_left_of_a_lease(life: Life) -> None:
    consumer = await life.broker.consumer("t", "s")
    await life.publish(b"a", b"b", b"c")
    token = (await life.pull(consumer)).token_of(0)
    await ack(life, (token, np.array([0])))
    await ack(life, (token, OffsetRanges([(0, 4)])))
    await ack(life, (token, OffsetRanges([(1, 4)])))
    await ack(life, (token, None))


async def a_lease_that_has_just_ended(life: Life) -> None:
    (token,) = await tokens(life, b"x")
    life.broker.shard.clock.advance(60_001)  # type: ignore[attr-defined]  # of a virtual clock
    await ack(life, (token, None))


async def a_subscription_that_was_deleted(life: Life) -> None:
    first, second = await tokens(life, b"x", b"y")
    await life.broker.unsubscribe("t", "s")
    await ack(life, (first, None), within=("t", "s"))
    await ack(life, (second, None))


async def a_message_that_a_caller_waits_for(life: Life) -> None:
    consumer = await life.broker.consumer("t", "s")
    await (await consumer.pull()).ack()
    answer = await life.broker.publish("t", b"x", PublishOptions(callback="http://example.org/"))
    life.seen.append(answer.offset.tolist())
    await ack(life, ((await life.pull(consumer)).token_of(0), None))
    life.seen.append([(each.offset, each.fate) for each in life.broker.unreported()])


async def on_a_full_disk(life: Life) -> None:
    (token,) = await tokens(life, b"x")

    def full(_: Any) -> Any:
        return lambda self, new_bytes, *, essential, entries=1: 0

    with patched(MemoryWriter, "admit", full):
        await ack(life, (token, None))
    await ack(life, (token, None))


async def while_the_broker_closes(life: Life) -> None:
    (token,) = await tokens(life, b"x")
    life.broker.shard.committer.closing = True
    await ack(life, (token, None))
    life.broker.shard.committer.closing = False
    await ack(life, (token, None))


async def behind_a_journal_that_failed(life: Life) -> None:
    (token,) = await tokens(life, b"x")
    life.broker.shard.committer.fail(WriterFailed("the disk is gone"))
    await ack(life, (token, None))


async def beside_a_nack_of_the_turn(life: Life) -> None:
    first, second = await tokens(life, b"x", b"y")
    life.broker.settler.nack_soon([(first, None)], 0, "no", lambda fault: life.seen.append(repr(fault)))
    await ack(life, (second, None))
    await ack(life, (first, None))


async def transient_ones(life: Life) -> None:
    consumer = await life.broker.consumer("t", "s")
    await (await consumer.pull()).ack()
    await life.broker.publish("t", b"passing", PublishOptions(persistent=False))
    await ack(life, ((await life.pull(consumer)).token_of(0), None))


async def measured(life: Life) -> None:
    metrics = Metrics(life.broker)
    first, second = await tokens(life, b"x", b"y")
    for token in (first, second, first):
        await ack(life, (token, None))
    life.seen.append(sum(metrics.settle.counts))


CASES: dict[Case, bool] = {
    twice: True,
    the_same_twice_in_a_call: True,
    of_another_subscription: True,
    by_offsets: True,
    what_is_left_of_a_lease: True,
    a_lease_that_has_just_ended: False,
    a_subscription_that_was_deleted: False,
    a_message_that_a_caller_waits_for: False,
    on_a_full_disk: True,
    while_the_broker_closes: True,
    behind_a_journal_that_failed: False,
    beside_a_nack_of_the_turn: False,
    transient_ones: False,
    measured: True,
}
"""Each with whether an ack of it is decided by itself."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_it_does_and_answers_is_the_same(case):
    taken = 0

    def counted(ack_lone: Any) -> Any:
        def call(self: Settler, settle: Any) -> bool:
            nonlocal taken
            watched = settle.answered.__qualname__.startswith("ack.")
            done = bool(ack_lone(self, settle))
            taken += done and watched
            return done

        return call

    with patched(Settler, "_ack_lone", counted):
        alone = lived(case)
    with patched(Settler, "_ack_lone", lambda _: lambda self, settle: False):
        assert lived(case) == alone
    assert bool(taken) == CASES[case]
