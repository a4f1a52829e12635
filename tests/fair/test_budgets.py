"""How much of the event loop each connection gets: in the order of asking, and less beside others."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter, thread_time

import pytest

from tests.unit.wire.memory_transport import MemoryTransport
from wherry.wire import fairness as module
from wherry.wire.fair_protocol import SPACE_BYTES, FairProtocol
from wherry.wire.fairness import (
    ALONE_S,
    BRIEF_S,
    BUDGET_S,
    CHUNK_ALONE_BYTES,
    CHUNK_BYTES,
    CHUNK_BYTES_MIN,
    COMPANY_S,
    LIGHT_WINDOW_S,
    SERVED_S,
    STRANGER_S,
    STRANGERS_S,
    STRANGERS_SHARE,
    UNSTORED_BRIEF_BYTES,
    UNSTORED_BYTES,
    Budget,
    FairLoop,
    fair_loop,
    set_fair_loop,
)


def worked(seconds: float) -> None:
    """Use so much processor time."""
    end = thread_time() + seconds
    while thread_time() < end:
        pass


def test_waiting_callbacks_are_called_one_in_a_turn_of_the_loop_in_order():
    async def main() -> list[tuple[str, int]]:
        shared, laps, seen = fair_loop(), 0, []

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


def test_a_call_that_waits_stands_back_while_others_are_busy_and_is_not_forgotten(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 3600.0)
    calls = []

    async def main() -> None:
        shared = fair_loop()
        for client in ("one", "other"):
            shared.note_read(client, perf_counter())
        shared.wait(lambda: calls.append("called"))
        for _ in range(20):
            worked(0.001)
            await asyncio.sleep(0)
        assert not calls
        monkeypatch.setattr(module, "PATIENCE_S", 0.0)
        while not calls:
            worked(0.001)
            await asyncio.sleep(0)

    asyncio.run(main())


def test_a_connection_is_alone_until_another_one_is_read_from():
    shared = FairLoop()
    shared.note_read("a", 1.0)
    assert shared.is_alone("a", 1.0)
    assert not shared.is_alone("b", 1.0)
    shared.note_read("b", 1.1)
    shared.note_read("a", 1.2)
    assert not shared.is_alone("a", 1.3)
    assert shared.is_alone("a", 1.2 + COMPANY_S)


def test_a_chunk_is_as_large_as_its_bytes_are_cheap():
    shared = FairLoop()
    budget = Budget(shared, "a")
    budget.begin()
    budget.end(CHUNK_ALONE_BYTES)  # which cost nothing
    for _ in range(8):
        budget.begin()
        budget.end(CHUNK_ALONE_BYTES)
    budget.begin()
    assert budget.chunk_bytes() == CHUNK_ALONE_BYTES
    shared.note_read("b", perf_counter())
    budget.begin()
    assert budget.chunk_bytes() == CHUNK_BYTES
    worked(0.005)
    assert budget.end(1_000)
    assert budget.chunk_bytes() == CHUNK_BYTES_MIN


def test_a_client_of_large_batches_is_not_light_and_may_have_more_on_its_way_to_the_disk():
    """A light client is served before others: neither side of a flow of batches may count as one."""
    shared = FairLoop()
    producer, consumer = Budget(shared, "producer"), Budget(shared, "consumer")
    for budget, name in ((producer, "producer"), (consumer, "consumer")):
        budget.begin()
        assert budget.is_light
        for _ in range(20):
            budget.note_bulk(256 << 10)
        budget.end()
        assert not budget.is_light
        shared.note_read(name, budget.ended_at, is_light=budget.is_light)
    assert shared.unstored_max("producer") == UNSTORED_BYTES


PIECES = 20


class LargeBody(FairProtocol):
    """A connection that expects one large body."""

    is_stranger = False

    def __init__(self) -> None:
        self.body = bytearray(PIECES * SPACE_BYTES)
        self.got = 0

    def data_received(self, data: bytes) -> None:
        raise AssertionError("the body has memory of its own")

    def refuse_stranger(self, why: str) -> None: ...

    def space(self) -> memoryview:
        return memoryview(self.body)[self.got :]

    def arrived(self, count: int) -> None:
        self.got += count


def test_a_large_body_is_read_to_its_own_memory_in_bounded_steps():
    async def main() -> None:
        set_fair_loop(FairLoop(clock=lambda: 0.0, used=lambda: 0.0))
        connection = LargeBody()
        connection.join_loop(MemoryTransport(asyncio.Protocol()))
        for step in range(PIECES):
            room = connection.get_buffer(-1)
            assert len(room) == SPACE_BYTES
            room[:] = bytes([step + 1]) * len(room)
            connection.buffer_updated(len(room))
        assert connection.got == len(connection.body)
        assert connection.body == b"".join(bytes([step + 1]) * SPACE_BYTES for step in range(PIECES))
        assert not connection._budget.is_light

    asyncio.run(main())


def test_a_connection_that_used_too_much_pays_with_the_budgets_that_follow():
    budget = Budget(FairLoop(), "a")
    budget.begin()
    worked(2.5 * ALONE_S)
    assert budget.end(1_000)
    assert [budget.refill() for _ in range(3)] == [False, True, True]


# ---------------------------------------------------------------------------------------------------- many together


class Clock:
    """A clock that the tests move: what is used of the processor, and what is not."""

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


def together(clock: Clock, budgets: list[Budget], each_s: float, rounds: int, *, is_stranger: bool = False) -> int:
    """Return how often a budget was used up, where connections work in turns, and the loop does nothing else."""
    over = 0
    for _ in range(rounds):
        for budget in budgets:
            budget.begin(is_stranger=is_stranger)
            clock.work(each_s)
            over += budget.end()
    return over


def test_many_that_each_use_a_small_part_use_up_what_they_have_together(clock):
    """Let each be silent while the others work; that must not give each its budget back."""
    shared = FairLoop()
    shared.note_read("others", clock.now)
    budgets = [Budget(shared, number) for number in range(20)]
    assert together(clock, budgets, BUDGET_S / 4, rounds=10)


def test_a_connection_that_uses_little_beside_waiting_ones_does_not_wait(clock):
    shared = FairLoop()
    flooders, good = [Budget(shared, number) for number in range(20)], Budget(shared, "good")
    over = 0
    for lap in range(1_000):
        shared.note_read("others", clock.now)
        flooder = flooders[lap % 20]  # one of the flooders that wait, each turn of the loop
        while not flooder.refill():
            pass
        flooder.begin()
        clock.work(1.01 * BUDGET_S)
        assert flooder.end()
        good.begin()
        clock.work(BUDGET_S / 4)
        over += good.end()
    assert over == 0


def test_strangers_have_one_part_of_the_loop_however_many_they_are(clock):
    shared = FairLoop()
    strangers = [Budget(shared, number) for number in range(1_000)]
    spent, began = 0.0, clock.now
    for budget in strangers:  # each stranger is new, and has all of its own budget
        if not shared.strangers.is_empty(clock.now):
            budget.begin(is_stranger=True)
            clock.work(STRANGER_S / 2)
            spent += STRANGER_S / 2
            budget.end()
        clock.work(STRANGER_S)
    assert spent <= STRANGERS_S + STRANGERS_SHARE * (clock.now - began) + STRANGER_S


def test_what_strangers_used_of_an_idle_loop_is_not_held_against_them_for_long(clock):
    shared = FairLoop()
    together(clock, [Budget(shared, "stranger")], 0.01, rounds=1_000, is_stranger=True)
    assert shared.strangers.is_empty(clock.now)
    clock.wait(2 * STRANGERS_S / STRANGERS_SHARE)
    assert not shared.strangers.is_empty(clock.now)


def test_silence_refills_a_budget_once(clock):
    """Check a read that finds nothing: it begins a step and does not end it."""
    budget = Budget(FairLoop(), "a")
    budget.shared.note_read("others", clock.now)
    budget.begin()
    clock.work(2 * BUDGET_S)
    assert budget.end()
    clock.wait(BUDGET_S)
    for _ in range(10):
        budget.begin()
    assert budget.end()


def test_what_others_do_while_a_call_waits_is_not_counted(clock):
    async def call() -> str:
        for _ in range(10):
            clock.work(BUDGET_S / 40)
            await asyncio.sleep(0)
        return "done"

    async def main() -> None:
        budget = Budget(fair_loop(), "a")
        budget.shared.note_read("others", clock.now)
        loop, is_over = asyncio.get_running_loop(), False

        def others() -> None:
            clock.work(BUDGET_S)
            if not is_over:
                loop.call_soon(others)

        others()
        assert await budget.timed(call()) == "done"
        assert not budget.is_used_up()
        budget.begin()
        clock.work(2 * BUDGET_S)
        is_over = True
        assert budget.end()

    asyncio.run(main())


def test_a_call_that_is_cancelled_or_fails_does_so_through_its_timing():
    calls = []

    async def call() -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            calls.append("cancelled")
            raise KeyError("x") from None

    async def main() -> None:
        async def timed() -> None:
            await Budget(fair_loop(), "a").timed(call())

        task = asyncio.create_task(timed())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(KeyError):
            await task

    asyncio.run(main())
    assert calls == ["cancelled"]


def test_budgets_are_brief_while_a_light_client_is_served(clock):
    shared = FairLoop()
    light, heavy = Budget(shared, "light"), Budget(shared, "heavy")

    def lasts(budget: Budget) -> float:
        budget.begin()
        budget.end()
        return budget._whole_s

    shared.note_read("light", clock.now, is_light=light.is_light)
    shared.note_read("heavy", clock.now)
    for _ in range(100):
        heavy.begin()
        clock.work(BUDGET_S)
        heavy.end()
    assert light.is_light
    assert not heavy.is_light
    assert lasts(heavy) == BUDGET_S, "no other is served any more"
    shared.note_read("light", clock.now, is_light=light.is_light)
    shared.note_read("heavy", clock.now, is_light=heavy.is_light)
    assert (lasts(heavy), lasts(light)) == (BRIEF_S, BUDGET_S)
    assert shared.unstored_max("heavy") == UNSTORED_BRIEF_BYTES
    clock.wait(SERVED_S)
    assert lasts(heavy) == BUDGET_S
    assert shared.unstored_max("heavy") == UNSTORED_BYTES


def test_a_connection_that_used_much_is_light_again_after_a_while(clock):
    budget = Budget(FairLoop(), "a")
    budget.begin()
    clock.work(LIGHT_WINDOW_S)
    budget.end()
    assert not budget.is_light
    clock.wait(LIGHT_WINDOW_S)
    budget.begin()
    budget.end()
    assert budget.is_light
