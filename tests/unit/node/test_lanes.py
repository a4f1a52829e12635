"""Places for calls: which caller gets one, in which order, and which loses its place."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps

import pytest

from wherry.node.webhooks.lanes import BrokenOff, Lane


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 10))

    return run


class Callers:
    """Callers that want a place, each until the test ends its call."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._go: dict[str, asyncio.Event] = {}

    async def come(self, *names: str) -> None:
        """Start callers; `a1` is the first of the host `a`."""
        for name in names:
            self._go[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._stay(name))
        await asyncio.sleep(0.001)

    async def _stay(self, name: str) -> None:
        async with self.lane.place(name[0]):
            self.begun.append(name)
            await self._go[name].wait()

    async def go(self, *names: str) -> None:
        for name in names:
            self._go[name].set()
            await self.tasks[name]
        await asyncio.sleep(0.001)


@in_loop
async def test_places_are_bounded_and_hosts_take_turns():
    callers = Callers(Lane(2, 2))
    await callers.come("a1", "a2", "a3", "a4", "b1", "c1")
    assert callers.begun == ["a1", "a2"]
    await callers.go("a1", "a2", "b1", "a3", "c1", "a4")
    assert callers.begun == ["a1", "a2", "b1", "c1", "a3", "a4"]


@in_loop
async def test_one_host_has_its_share_only():
    callers = Callers(Lane(3, 1))
    await callers.come("a1", "a2", "b1")
    assert callers.begun == ["a1", "b1"]
    await callers.go("a1")
    assert callers.begun == ["a1", "b1", "a2"]
    await callers.go("b1", "a2")
    lane = callers.lane
    assert (lane._free, lane._busy, lane._waiting, lane._ready) == (3, {}, {}, {})


@in_loop
async def test_a_caller_that_gives_up_leaves_nothing_behind():
    lane = Lane(1, 1)
    callers = Callers(lane)
    await callers.come("a1", "b1", "c1")
    callers.tasks["b1"].cancel()
    await callers.go("a1")
    assert callers.begun == ["a1", "c1"]
    callers.tasks["c1"].cancel()
    await asyncio.gather(*callers.tasks.values(), return_exceptions=True)
    assert (lane._free, lane._busy, lane._waiting, lane._ready) == (1, {}, {}, {})


@in_loop
async def test_a_place_that_was_given_to_a_caller_that_just_left_is_free_again():
    callers = Callers(Lane(1, 1))
    await callers.come("a1", "b1", "c1")
    callers._go["a1"].set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    callers.tasks["b1"].cancel()
    await asyncio.sleep(0.01)
    assert callers.begun[-1] == "c1"
    await callers.go("c1")


@in_loop
async def test_after_its_trial_a_place_is_given_to_another_host_that_waits_and_no_more_than_are_wanted():
    callers = Callers(Lane(3, 2, trial_s=0.02))
    await callers.come("a1", "b1", "c1")
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in callers.tasks.values())  # no caller waits
    await callers.come("d1")
    assert callers.begun == ["a1", "b1", "c1", "d1"]
    with pytest.raises(BrokenOff):
        await callers.tasks["a1"]
    assert not callers.tasks["b1"].done()
    await callers.go("b1", "c1", "d1")
    assert callers.lane._breaking == 0
    assert not callers.lane._late


@in_loop
async def test_a_host_takes_no_place_from_others_beyond_its_share():
    callers = Callers(Lane(2, 1, trial_s=0.01))
    await callers.come("a1", "b1", "a2", "b2")
    await asyncio.sleep(0.05)
    assert callers.begun == ["a1", "b1"]
    await callers.go("a1", "b1", "a2", "b2")


@in_loop
async def test_its_own_timeout_is_not_taken_for_a_trial():
    lane = Lane(1, 1, trial_s=0.01)
    with pytest.raises(TimeoutError):
        async with lane.place("a"):
            raise TimeoutError


@in_loop
async def test_a_caller_that_waits_gets_beats_meanwhile():
    callers, beats = Callers(Lane(1, 1)), 0

    async def beat() -> None:
        nonlocal beats
        beats += 1

    await callers.come("a1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), callers.lane.place("b", beat_s=0.01, beat=beat):
            pass
    assert beats >= 3
    await callers.go("a1")
