"""The delay of a group that can wait: what ends it, and how seldom it is in vain."""

from __future__ import annotations

import asyncio

import pytest

from wherry.broker.commit.commit import Committer
from wherry.broker.commit.delay import CommitDelay
from wherry.broker.commit.turn import Turn
from wherry.journal.memory import MemoryEngine, MemoryWriter
from wherry.model.errors import WherryError, WriterFailed


class CountingWriter(MemoryWriter):
    """A journal that counts the entries of each write, and claims to wait for a medium."""

    def __init__(self, engine: MemoryEngine) -> None:
        super().__init__(engine)
        self.syncs = True
        self.counted: list[int] = []

    def append_at_once(self, entries, expected):
        self.counted.append(len(entries))
        return super().append_at_once(entries, expected)


class Writes:
    """A committer, and the answers of what was submitted."""

    def __init__(self, *, syncs: bool = True) -> None:
        engine = MemoryEngine()
        writer = engine.owner = CountingWriter(engine)
        writer.syncs = syncs
        self.counted = writer.counted
        self.made = Committer(writer, lambda fault: None, Turn())
        self.answers: list[WherryError | None] = []
        self.has_work = True

    def submit(self, *, can_wait: bool) -> int:
        position = self.made.submit([b"entry"], 5)
        if can_wait:
            self.made.may_wait(position, lambda: self.has_work)
        self.made.when_durable(position, self.answers.append, can_wait=can_wait)
        return position

    async def answered(self) -> None:
        """Wait for the answer of the first entry."""
        first = asyncio.get_running_loop().create_future()
        self.made.when_durable(1, lambda _: first.set_result(None), can_wait=True)
        await first


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_an_entry_that_can_wait_is_written_with_the_next_one_that_cannot():
    async def main() -> None:
        writes = Writes()
        writes.submit(can_wait=True)
        await turns()
        assert (writes.counted, writes.answers) == ([], [])
        assert not writes.made.is_writing
        writes.submit(can_wait=False)
        assert writes.made.is_writing
        await turns()
        assert (writes.counted, writes.answers) == ([2], [None, None])

    asyncio.run(main())


@pytest.mark.parametrize("has_work", [True, False])
def test_a_delay_is_in_vain_unless_what_ended_it_gave_the_client_work(has_work):
    async def main() -> None:
        writes = Writes()
        writes.has_work = has_work
        for _ in range(2):
            writes.submit(can_wait=True)
            await turns()
            writes.submit(can_wait=False)
            await turns()
        assert writes.counted == ([2, 2] if has_work else [2, 1, 1])

    asyncio.run(main())


def test_an_entry_that_can_wait_behind_one_that_cannot_is_not_delayed():
    async def main() -> None:
        writes = Writes()
        writes.submit(can_wait=False)
        writes.submit(can_wait=True)
        await turns()
        assert (writes.counted, writes.answers) == ([2], [None, None])

    asyncio.run(main())


def test_without_company_it_is_written_when_the_delay_is_over():
    async def main() -> None:
        writes = Writes()
        position = writes.submit(can_wait=True)
        await asyncio.wait_for(writes.answered(), 60)
        assert (writes.counted, writes.made.durable) == ([1], position)
        writes.submit(can_wait=True)  # after a delay in vain the next ones are not delayed
        await turns()
        assert (writes.counted, writes.answers) == ([1, 1], [None, None])

    asyncio.run(main())


@pytest.mark.parametrize("way", ["wait", "when_durable"])
def test_a_caller_that_needs_it_sooner_ends_the_delay(way):
    async def main() -> None:
        writes = Writes()
        position = writes.submit(can_wait=True)
        await turns()
        if way == "wait":
            await asyncio.wait_for(writes.made.wait(position), 10)
        else:
            writes.made.when_durable(position, writes.answers.append)
            await turns()
        assert writes.counted == [1]

    asyncio.run(main())


def test_a_close_writes_what_is_delayed_and_a_failure_answers_it():
    async def main() -> None:
        closed = Writes()
        closed.submit(can_wait=True)
        await turns()
        await closed.made.close()
        assert (closed.counted, closed.answers) == ([1], [None])

        failed, fault = Writes(), WriterFailed("planted")
        failed.submit(can_wait=True)
        await turns()
        failed.made.fail(fault)
        await asyncio.sleep(0.01)
        assert (failed.counted, failed.answers) == ([], [fault])

    asyncio.run(main())


def test_a_journal_without_a_medium_delays_nothing():
    async def main() -> None:
        writes = Writes(syncs=False)
        writes.submit(can_wait=True)
        await turns()
        assert writes.answers == [None]

    asyncio.run(main())


def test_delays_in_vain_become_rare_and_company_makes_them_frequent_again():
    delay, begun = CommitDelay(), []
    for group in range(3_000):
        if delay.may_begin():
            begun.append(group)
            delay.ended(in_vain=True)
    assert len(begun) < 20
    assert begun[-1] - begun[-2] == 257, "at most so many groups are skipped"
    while not delay.may_begin():
        pass
    delay.ended(in_vain=False)
    for _ in range(20):  # each delay finds company
        assert delay.may_begin()
        delay.ended(in_vain=False)
