from __future__ import annotations

import asyncio

import pytest

from tests.unit.journal.journals import append, bodies
from wherry.journal.engine import Appended, AppendFenced, EntryTooLarge
from wherry.journal.memory import MemoryEngine
from wherry.model.errors import Closed


def test_a_memory_journal_that_is_opened_again_has_what_was_appended() -> None:
    async def run() -> None:
        engine = MemoryEngine()
        writer = await engine.open()
        assert await writer.append([[b"a", memoryview(b"b")], [b""]], 0) == Appended(2)
        await writer.close()
        with pytest.raises(Closed):
            await writer.append([], 2)
        again = await engine.open()
        assert again.last == 2
        await append(again, b"c")
        assert await bodies(engine) == [(1, b"ab"), (2, b""), (3, b"c")]
        assert await bodies(engine, 3) == [(3, b"c")]

    asyncio.run(run())


def test_a_wrong_expectation_and_an_earlier_writer_are_fenced() -> None:
    async def run() -> None:
        engine = MemoryEngine()
        first = await engine.open()
        assert await first.append([[b"a"]], 4) == AppendFenced(0)
        second = await engine.open()
        assert await first.append([[b"a"]], 0) == AppendFenced(0)
        assert await second.append([[b"a"]], 0) == Appended(1)

    asyncio.run(run())


def test_bounds() -> None:
    async def run() -> None:
        engine = MemoryEngine(bytes_max=10, entry_bytes_max=8)
        writer = await engine.open()
        assert await writer.append([[b"a"], [bytes(9)]], 0) == EntryTooLarge(8)
        assert writer.last == 0
        await append(writer, bytes(6))
        await writer.make_room(100)
        assert writer.admit(4, essential=False) is None
        assert writer.admit(5, essential=False) == 4
        assert writer.admit(5, essential=True) is None
        await append(writer, bytes(8))
        assert writer.admit(1, essential=False) == 0
        assert writer.stored_bytes() == 14
        await writer.trim(2)
        assert writer.stored_bytes() == 8
        assert await writer.reconcile() == 2

    asyncio.run(run())
