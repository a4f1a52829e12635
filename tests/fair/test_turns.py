"""Who gets how much of the event loop: in the order of asking, and less beside others."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter, thread_time

import pytest

from wherry.wire import turns as module
from wherry.wire.turns import (
    ALONE_S,
    BRIEF_S,
    CHUNK_ALONE_BYTES,
    CHUNK_BYTES,
    CHUNK_BYTES_MIN,
    COMPANY_S,
    LIGHT_WINDOW_S,
    SERVED_S,
    STRANGER_S,
    STRANGERS_S,
    STRANGERS_SHARE,
    TURN_S,
    UNSTORED_BRIEF_BYTES,
    UNSTORED_BYTES,
    Turn,
    Turns,
    turns,
)


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


# ---------------------------------------------------------------------------------------------------- many together


class Clock:
    """Time that goes by only when a test says so: what is used of the processor, and what is not."""

    def __init__(self, monkeypatch) -> None:
        self.now = self.used = 1_000.0
        monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        monkeypatch.setattr(module, "thread_time", lambda: self.used)

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.used += seconds

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def together(clock: Clock, turns: list[Turn], each_s: float, rounds: int, *, is_stranger: bool = False) -> int:
    """How often a turn was over, where connections work one after the other, and the loop does nothing else."""
    over = 0
    for _ in range(rounds):
        for turn in turns:
            turn.begin(is_stranger=is_stranger)
            clock.work(each_s)
            over += turn.end()
    return over


def test_many_who_each_use_a_small_part_use_up_what_they_have_together(clock):
    """Each of them is silent while the others work; that must not give each its turn back."""
    shared = Turns()
    shared.seen("others", clock.now)
    turns = [Turn(shared, number) for number in range(20)]
    assert together(clock, turns, TURN_S / 4, rounds=10)


def test_who_uses_little_beside_those_who_wait_does_not_wait(clock):
    shared = Turns()
    flooders, good = [Turn(shared, number) for number in range(20)], Turn(shared, "good")
    over = 0
    for lap in range(1_000):
        shared.seen("others", clock.now)
        flooder = flooders[lap % 20]  # one of those who wait, each turn of the loop
        while not flooder.again():
            pass
        flooder.begin()
        clock.work(1.01 * TURN_S)
        assert flooder.end()
        good.begin()
        clock.work(TURN_S / 4)
        over += good.end()
    assert over == 0


def test_strangers_have_one_part_of_the_loop_however_many_they_are(clock):
    shared = Turns()
    strangers = [Turn(shared, number) for number in range(1_000)]
    spent, began = 0.0, clock.now
    for turn in strangers:  # each of them is new, and has all of its own turn
        if not shared.strangers.is_empty(clock.now):
            turn.begin(is_stranger=True)
            clock.work(STRANGER_S / 2)
            spent += STRANGER_S / 2
            turn.end()
        clock.work(STRANGER_S)
    assert spent <= STRANGERS_S + STRANGERS_SHARE * (clock.now - began) + STRANGER_S


def test_what_strangers_used_of_an_idle_loop_is_not_held_against_them_for_long(clock):
    shared = Turns()
    together(clock, [Turn(shared, "stranger")], 0.01, rounds=1_000, is_stranger=True)
    assert shared.strangers.is_empty(clock.now)
    clock.wait(2 * STRANGERS_S / STRANGERS_SHARE)
    assert not shared.strangers.is_empty(clock.now)


def test_silence_gives_a_turn_back_once(clock):
    """A read that finds nothing begins a turn and does not end it."""
    turn = Turn(Turns(), "a")
    turn.shared.seen("others", clock.now)
    turn.begin()
    clock.work(2 * TURN_S)
    assert turn.end()
    clock.wait(TURN_S)
    for _ in range(10):
        turn.begin()
    assert turn.end()


def test_what_others_do_while_a_call_waits_is_not_counted(clock):
    async def call() -> str:
        for _ in range(10):
            clock.work(TURN_S / 40)
            await asyncio.sleep(0)
        return "done"

    async def main() -> None:
        turn = Turn(turns(), "a")
        turn.shared.seen("others", clock.now)
        loop, is_over = asyncio.get_running_loop(), False

        def others() -> None:
            clock.work(TURN_S)
            if not is_over:
                loop.call_soon(others)

        others()
        assert await turn.timed(call()) == "done"
        assert not turn._is_over()
        turn.begin()
        clock.work(2 * TURN_S)
        is_over = True
        assert turn.end()

    asyncio.run(main())


def test_a_call_that_is_cancelled_or_fails_does_so_through_its_timing():
    told = []

    async def call() -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise KeyError("x") from None

    async def main() -> None:
        async def timed() -> None:
            await Turn(turns(), "a").timed(call())

        task = asyncio.create_task(timed())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(KeyError):
            await task

    asyncio.run(main())
    assert told == ["cancelled"]


def test_turns_are_brief_while_a_light_client_is_served(clock):
    shared = Turns()
    light, heavy = Turn(shared, "light"), Turn(shared, "heavy")

    def lasts(turn: Turn) -> float:
        turn.begin()
        turn.end()
        return turn._whole_s

    shared.seen("light", clock.now, is_light=light.is_light)
    shared.seen("heavy", clock.now)
    for _ in range(100):
        heavy.begin()
        clock.work(TURN_S)
        heavy.end()
    assert light.is_light
    assert not heavy.is_light
    assert lasts(heavy) == TURN_S, "nobody is served any more"
    shared.seen("light", clock.now, is_light=light.is_light)
    shared.seen("heavy", clock.now, is_light=heavy.is_light)
    assert (lasts(heavy), lasts(light)) == (BRIEF_S, TURN_S)
    assert shared.unstored_max("heavy") == UNSTORED_BRIEF_BYTES
    clock.wait(SERVED_S)
    assert lasts(heavy) == TURN_S
    assert shared.unstored_max("heavy") == UNSTORED_BYTES


def test_who_used_much_is_light_again_after_a_while(clock):
    turn = Turn(Turns(), "a")
    turn.begin()
    clock.work(LIGHT_WINDOW_S)
    turn.end()
    assert not turn.is_light
    clock.wait(LIGHT_WINDOW_S)
    turn.begin()
    turn.end()
    assert turn.is_light
