"""How the mover of dead letters divides its work: bounded steps, few moves at once, turns of the loop for others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import wherry
from tests.unit.queueing.envelopes import envelope
from wherry import Broker, Message
from wherry.model.calls.dead import DeadFilter, DeadRow
from wherry.queueing.flow import dead_letters
from wherry.queueing.flow.dead_letters import DeadLetterMover
from wherry.queueing.hosts.queue_terms import QueueTerms
from wherry.queueing.names import SUBSCRIPTION

TERMS = QueueTerms(durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"})
GRAVES = SimpleNamespace(
    topic="graves", name="graves", terms=TERMS, is_plain=True, max_priority=None, ttl_ms=None, has_room=lambda: True
)


async def with_dead_letters(broker: Broker, queues: int, count: int, each: Message) -> None:
    """Make queues with so many dead letters each, and the queue that they move to."""
    graves = QueueTerms(durable=True)
    await broker.create_topic(graves.topic("/", "graves"))
    await broker.subscribe(graves.subscription("/", "graves"))
    for number in range(queues):
        name = f"q{number}"
        await broker.create_topic(TERMS.topic("/", name))
        await broker.subscribe(TERMS.subscription("/", name))
        await broker.publish(name, [each] * count)
        async with await broker.consumer(name, SUBSCRIPTION) as consumer:
            await (await consumer.pull(count)).dead_letter(reason="rejected")


def mover_of(broker: Broker) -> DeadLetterMover:
    return DeadLetterMover(broker, lambda *_: (GRAVES,))  # type: ignore[arg-type]


async def moved(broker: Broker, count: int) -> None:
    """Run a mover until so many dead letters have been moved."""
    mover = asyncio.create_task(mover_of(broker).run())
    async with asyncio.timeout(30):
        while broker.stats("graves").messages < count:  # noqa: ASYNC110  what it looks at has no event
            await asyncio.sleep(0)
    mover.cancel()


def test_a_shared_step_is_bounded_by_the_envelopes_of_its_copies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dead_letters, "BLOCK_BYTES", 100_000)
    sizes = list[int]()
    forward = Broker.forward

    async def noted(self: Broker, sources: Any, to: Any, *, by: str = "") -> int:
        sizes.append(sum(batch.nbytes for _, batch, _ in to))
        return await forward(self, sources, to, by=by)

    monkeypatch.setattr(Broker, "forward", noted)

    async def main() -> None:
        async with wherry.open() as broker:
            await with_dead_letters(broker, 20, 1, Message(payload=b"x", envelope=envelope(20_000)))
            await moved(broker, 20)
            assert broker.stats("graves").messages == 20

    asyncio.run(main())
    assert len(sizes) > 1 and max(sizes) < 200_000


def test_after_a_shared_step_failed_few_topics_are_moved_at_once(monkeypatch: pytest.MonkeyPatch):
    at_once, most = 0, 0
    forward, move_alone = Broker.forward, DeadLetterMover._move_alone

    async def fails_if_shared(self: Broker, sources: Any, to: Any, *, by: str = "") -> int:
        if len(sources) > 1:
            raise wherry.WherryError("no")
        return await forward(self, sources, to, by=by)

    async def counted(self: DeadLetterMover, topic: str) -> None:
        nonlocal at_once, most
        at_once, most = at_once + 1, max(most, at_once + 1)
        await move_alone(self, topic)
        at_once -= 1

    monkeypatch.setattr(Broker, "forward", fails_if_shared)
    monkeypatch.setattr(DeadLetterMover, "_move_alone", counted)

    async def main() -> None:
        async with wherry.open() as broker:
            await with_dead_letters(broker, 50, 1, Message(payload=b"x"))
            await moved(broker, 50)
            assert (broker.stats("graves").messages, broker.stats("q7").dead) == (50, 0)

    asyncio.run(main())
    assert 1 < most <= dead_letters.SIDE_BY_SIDE


def test_the_loop_turns_while_a_round_is_prepared_and_what_is_noted_meanwhile_is_moved_once():
    async def main() -> None:
        async with wherry.open() as broker:
            await with_dead_letters(broker, 12, 60, Message(payload=b"x"))
            mover, turns, dead_rows = mover_of(broker), list[int](), broker.dead_rows
            turn = 0

            def noted(topic: str, wanted: DeadFilter, bytes_max: int) -> list[DeadRow] | None:
                turns.append(turn)
                mover.note("q0")  # as if another message of this queue had died
                return dead_rows(topic, wanted, bytes_max)

            broker.dead_rows = noted  # type: ignore[method-assign]

            async def count_turns() -> None:
                nonlocal turn
                while True:
                    turn += 1
                    await asyncio.sleep(0)

            counting, moving = asyncio.create_task(count_turns()), asyncio.create_task(mover.run())
            async with asyncio.timeout(30):
                while any(broker.stats(f"q{number}").dead for number in range(12)):  # noqa: ASYNC110  as above
                    await asyncio.sleep(0)
            counting.cancel()
            moving.cancel()
            assert broker.stats("graves").messages == 12 * 60
            assert turns[11] - turns[0] >= 5, "twelve queues with 60 dead letters each were copied in one turn"

    asyncio.run(main())
