from __future__ import annotations

import asyncio
from typing import Any

import pytest

from wherry.sim.world.errors import Killed, Unhandled
from wherry.sim.world.loop import SimLoop, run
from wherry.sim.world.process import Process


async def count(seen: list[str], name: str) -> None:
    try:
        while True:
            await asyncio.sleep(1)
            seen.append(name)
    finally:
        seen.append(f"{name} ended")


def test_a_killed_process_takes_no_further_step_while_others_continue():
    seen: list[str] = []
    at_end: list[str] = []

    async def parent(process_seen: list[str]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(count(process_seen, "grandchild"))

    async def main() -> None:
        process = Process("broker")
        _ = process.start(parent(seen))
        outside = asyncio.create_task(count(seen, "client"))
        await asyncio.sleep(2.5)
        process.kill()
        outside.get_loop().call_later(2, outside.cancel)
        await asyncio.wait([outside])
        at_end.extend(seen)

    run(main())
    assert at_end == ["client", "grandchild", "client", "grandchild", "client", "client", "client ended"]


@pytest.mark.parametrize("killed_at", range(1, 12))
def test_a_kill_from_the_hook_can_fall_before_any_callback(killed_at):
    process = Process("broker")
    seen: list[int] = []
    steps: list[int] = []

    async def work() -> None:
        for number in range(100):
            await asyncio.sleep(0)
            seen.append(number)

    def kill(step: int) -> None:
        steps.append(step)
        if step == killed_at:
            process.kill()
            seen.append(-1)

    async def main() -> Any:
        with pytest.raises(Killed):
            await process.call(work())
        return list(seen)

    at_end = run(main(), on_step=kill)
    assert at_end[-1] == -1


def test_a_caller_gets_the_answer_or_the_error_or_that_it_was_killed():
    async def answer(value: int) -> Any:
        await asyncio.sleep(1)
        return 10 // value

    async def main() -> None:
        process = Process("broker")
        assert await process.call(answer(5)) == 2
        with pytest.raises(ZeroDivisionError):
            await process.call(answer(0))
        hangs_up = asyncio.create_task(process.call(answer(0)))
        await asyncio.sleep(0.5)
        hangs_up.cancel()
        waits = asyncio.create_task(process.call(answer(1)))
        await asyncio.sleep(0.9)
        process.kill()
        with pytest.raises(Killed, match="before it answered"):
            await waits
        with pytest.raises(Killed, match="is dead"):
            _ = process.start(answer(1))

    run(main())


def test_what_a_killed_process_raises_in_the_end_is_of_no_interest_but_earlier_failures_are():
    async def fails_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("too late to matter")

    async def fails() -> None:
        raise ValueError("before the kill")

    async def main(work: list[Any]) -> None:
        process = Process("broker")
        for each in work:
            _ = process.start(each)
        await asyncio.sleep(1)
        asyncio.get_running_loop().call_later(1, print)
        process.kill()

    run(main([fails_at_its_end()]))
    with pytest.raises(Unhandled, match=r"^1 failures.*before the kill"):
        run(main([fails_at_its_end(), fails()]))


def test_a_paused_process_continues_late_with_outside_events_before_its_timers():
    seen: list[str] = []

    async def timer() -> None:
        await asyncio.sleep(1)
        seen.append("timer")

    async def call() -> None:
        seen.append("call")

    async def main() -> None:
        process = Process("p")
        waiting = process.start(timer())
        await asyncio.sleep(0.5)
        process.paused = True
        await asyncio.sleep(2)
        called = asyncio.create_task(process.call(call()))
        await asyncio.sleep(2)
        assert seen == []
        running = asyncio.get_running_loop()
        assert isinstance(running, SimLoop)
        running.go_on(process)
        await asyncio.gather(waiting, called)
        assert running.time() == 4.5

    run(main())
    assert seen == ["call", "timer"]
