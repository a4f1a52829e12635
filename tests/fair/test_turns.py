"""Who gets how much of the event loop: in the order of asking, and less beside others."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter, thread_time

from wherry.wire import turns as module
from wherry.wire.turns import ALONE_S, CHUNK_ALONE_BYTES, CHUNK_BYTES, CHUNK_BYTES_MIN, COMPANY_S, Turn, Turns, turns


def worked(seconds: float) -> None:
    """Use so much processor time."""
    end = thread_time() + seconds
    while thread_time() < end:
        pass


def test_those_who_wait_have_a_turn_each_one_in_a_turn_of_the_loop_in_order():
    async def main() -> list[tuple[str, int]]:
        shared, laps, seen = turns(), 0, []

        def count() -> None:
            nonlocal laps
            laps += 1
            loop.call_soon(count)

        def take(name: str) -> None:
            seen.append((name, laps))
            if len(seen) < 9:
                shared.wait(lambda: take(name))
            else:
                enough.set()

        loop, enough = asyncio.get_running_loop(), asyncio.Event()
        loop.call_soon(count)
        for name in "abc":
            shared.wait(partial(take, name))
        await enough.wait()
        return seen

    seen = asyncio.run(main())
    assert "".join(name for name, _ in seen[:9]) == "abcabcabc"
    assert len({lap for _, lap in seen}) == len(seen)


def test_who_waits_stands_back_while_others_are_busy_and_is_not_forgotten(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 3600.0)
    told = []

    async def main() -> None:
        shared = turns()
        for who in ("one", "other"):
            shared.seen(who, perf_counter())
        shared.wait(lambda: told.append("turn"))
        for _ in range(20):
            worked(0.001)
            await asyncio.sleep(0)
        assert not told
        monkeypatch.setattr(module, "PATIENCE_S", 0.0)
        while not told:
            worked(0.001)
            await asyncio.sleep(0)

    asyncio.run(main())


def test_a_connection_is_alone_until_another_one_is_read_from():
    shared = Turns()
    shared.seen("a", 1.0)
    assert shared.is_alone("a", 1.0)
    assert not shared.is_alone("b", 1.0)
    shared.seen("b", 1.1)
    shared.seen("a", 1.2)
    assert not shared.is_alone("a", 1.3)
    assert shared.is_alone("a", 1.2 + COMPANY_S)


def test_a_chunk_is_as_large_as_its_bytes_are_cheap():
    shared = Turns()
    turn = Turn(shared, "a")
    turn.begin()
    turn.end(CHUNK_ALONE_BYTES)  # which cost nothing
    for _ in range(8):
        turn.begin()
        turn.end(CHUNK_ALONE_BYTES)
    turn.begin()
    assert turn.chunk_bytes() == CHUNK_ALONE_BYTES
    shared.seen("b", perf_counter())
    turn.begin()
    assert turn.chunk_bytes() == CHUNK_BYTES
    worked(0.005)
    assert turn.end(1_000)
    assert turn.chunk_bytes() == CHUNK_BYTES_MIN


def test_who_took_too_much_pays_with_the_turns_that_follow():
    turn = Turn(Turns(), "a")
    turn.begin()
    worked(2.5 * ALONE_S)
    assert turn.end(1_000)
    assert [turn.again() for _ in range(3)] == [False, True, True]
