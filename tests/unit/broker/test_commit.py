"""The committer: which callbacks it calls when a position is durable, and when the journal fails."""

from __future__ import annotations

import asyncio

import pytest

from wherry.broker.commit.commit import Committer
from wherry.broker.commit.turn import Turn
from wherry.journal.memory import MemoryEngine
from wherry.model.errors import WherryError, WriterFailed


async def committer() -> Committer:
    return Committer(await MemoryEngine().open(), lambda fault: None, Turn())


def test_a_call_for_a_position_that_is_durable_is_made_at_once():
    async def main() -> list[WherryError | None]:
        made = await committer()
        found: list[WherryError | None] = []
        made.when_durable(made.durable, found.append)
        return found

    assert asyncio.run(main()) == [None]


def test_calls_are_made_in_the_order_in_which_they_were_asked_for_each_once():
    async def main() -> list[str]:
        made = await committer()
        found: list[str] = []
        position = made.submit([b"one"], 3)
        made.when_durable(position, lambda _: found.append("first"))
        waits = asyncio.create_task(made.wait(position))
        made.when_durable(position, lambda _: found.append("second"))
        await waits
        await made.wait(made.submit([b"two"], 3))
        return found

    assert asyncio.run(main()) == ["first", "second"]


def test_after_a_failure_each_call_gets_the_reason_also_one_that_comes_later():
    fault = WriterFailed("planted")

    async def main() -> list[WherryError | None]:
        made = await committer()
        found: list[WherryError | None] = []
        position = made.submit([b"one"], 3)
        made.when_durable(position, found.append)
        made.fail(fault)
        made.when_durable(position, found.append)
        with pytest.raises(WriterFailed):
            await made.wait(position)
        return found

    assert asyncio.run(main()) == [fault, fault]


def test_a_failure_within_a_call_reaches_callers_that_wait_for_later_positions():
    fault = WriterFailed("planted")

    async def main() -> list[WherryError | None]:
        made = await committer()
        found: list[WherryError | None] = []
        first = made.submit([b"one"], 3)
        made.when_durable(first, lambda _: made.fail(fault))
        made.when_durable(first + 1, found.append)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return found

    assert asyncio.run(main()) == [fault]


def test_the_loop_writes_lone_entries_itself_and_leaves_a_flow_to_the_writer_thread():
    async def main() -> list[bool]:
        made = await committer()
        found: list[bool] = []

        async def write(size: int) -> None:
            position = made.submit([bytes(size)], size)
            await asyncio.sleep(0)
            found.append(made.durable >= position)  # the loop wrote the position at the end of this turn
            await made.wait(position)

        await write(300)
        for _ in range(32):
            await write(3_000)  # small groups, of clients that send without waiting
        await write(300)
        for _ in range(64):
            await write(300)
        return [found[0], found[32], found[33], found[-1]]

    assert asyncio.run(main()) == [True, False, False, True]
