from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from wherry.sim.world.errors import (
    Deadlock,
    NoThreads,
    Runaway,
    Unhandled,
)
from wherry.sim.world.loop import SimLoop, run


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_timers_fire_in_order_of_time_and_then_of_setting_and_take_no_real_time():
    seen: list[tuple[float, str]] = []

    def note(name: str) -> None:
        seen.append((now_s(), name))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for delay_s, name in [(3600.0, "c"), (1.0, "a1"), (86_400.0, "d"), (1.0, "a2"), (2.0, "b")]:
            loop.call_later(delay_s, note, name)
        await asyncio.sleep(90_000)

    began_s = time.monotonic()
    run(main())
    assert time.monotonic() - began_s < 5
    assert seen == [(1.0, "a1"), (1.0, "a2"), (2.0, "b"), (3600.0, "c"), (86_400.0, "d")]


def test_a_cancelled_timer_does_not_move_the_clock():
    async def main() -> Any:
        loop = asyncio.get_running_loop()
        for _ in range(500):
            loop.call_later(1000.0, lambda: None).cancel()
        await asyncio.sleep(1)
        return loop.time(), len(loop._timers)  # type: ignore[attr-defined]

    at_s, kept = run(main())
    assert at_s == 1.0
    assert kept < 200


def test_wait_for_timeout_queue_and_event_work_on_virtual_time():
    async def main() -> Any:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        event = asyncio.Event()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):
                await event.wait()
        asyncio.get_running_loop().call_later(3, event.set)
        await asyncio.wait_for(event.wait(), 10)
        producer = asyncio.create_task(queue.put(4))
        assert await queue.get() == 4
        await producer
        return now_s()

    assert run(main()) == 15.0


def test_a_task_group_fails_as_one():
    ended: list[int] = []

    async def child(number: int) -> None:
        try:
            await asyncio.sleep(1 if number == 3 else 100)
            raise ValueError(number)
        finally:
            ended.append(number)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(child(number))

    with pytest.raises(ExceptionGroup) as caught:
        run(main())
    assert [str(error) for error in caught.value.exceptions] == ["3"]
    assert ended == [3, 0, 1, 2, 4, 5]


def test_a_deadlock_is_an_error_that_names_each_task_and_where_it_waits():
    async def inner() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(inner(), name="stuck")

    with pytest.raises(Deadlock, match=r"2 tasks wait: .*stuck \(.*inner in Event.wait:\d+\)"):
        run(main())


def test_runaways_end_by_steps_and_by_virtual_time():
    async def spin(delay_s: float) -> None:
        while True:  # noqa: ASYNC110  # the point of it
            await asyncio.sleep(delay_s)

    with pytest.raises(Runaway, match="1000 steps"):
        run(spin(0), steps_max=1000)
    with pytest.raises(Runaway, match=r"bound is 60\.000 s"):
        run(spin(7), virtual_s_max=60)


def test_threads_are_refused():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(NoThreads, match="no threads"):
            await asyncio.to_thread(time.sleep, 0)
        errors: list[BaseException] = []

        def other() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except NoThreads as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(errors) == 1
        called = asyncio.Event()
        loop.call_soon_threadsafe(called.set)
        await called.wait()

    run(main())


def test_the_hook_sees_each_step_before_its_callback_and_may_end_the_run():
    seen: list[int] = []
    steps: list[int] = []

    async def main() -> None:
        for number in range(5):
            seen.append(number)
            await asyncio.sleep(0)

    run(main(), on_step=steps.append)
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 6

    class Stop(Exception):
        pass

    def stop(step: int) -> None:
        if step == 3:
            raise Stop

    seen.clear()
    with pytest.raises(Stop):
        run(main(), on_step=stop)
    assert seen == [0, 1]


def test_what_is_left_is_cancelled_also_when_it_resists_and_nothing_warns():
    ended: list[str] = []

    async def resists() -> None:
        for _ in range(3):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")

    async def generator() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)
            ended.append("generator")

    kept: list[object] = []

    async def main() -> Any:
        kept.append(asyncio.create_task(resists()))
        numbers = generator()
        kept.append(numbers)
        assert await anext(numbers) == 1
        await asyncio.sleep(1)
        return "done"

    assert run(main()) == "done"
    assert ended == ["cancelled", "cancelled", "cancelled", "generator"]


def test_a_timer_that_sets_itself_again_does_not_keep_the_run_from_ending():
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            loop.call_later(1, tick)

        tick()
        waits = asyncio.create_task(asyncio.Event().wait())
        await asyncio.wait([waits], timeout=5)

    steps: list[int] = []
    run(main(), on_step=steps.append)
    assert len(steps) < 100


def test_a_waiting_task_without_a_reference_is_not_collected():
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> Any:
        _ = asyncio.create_task(forever())
        del _
        await asyncio.sleep(1)
        gc.collect()
        return len(asyncio.all_tasks())

    assert run(main()) == 2


def test_a_failure_that_is_not_retrieved_fails_the_run():
    async def fails() -> None:
        raise ValueError("unseen")

    async def main(wait: bool) -> None:
        kept = asyncio.create_task(fails())
        del kept
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)
        if wait:
            await asyncio.Event().wait()

    with pytest.raises(Unhandled, match="unseen") as unhandled:
        run(main(False))
    assert "ZeroDivisionError" in str(unhandled.value)
    with pytest.raises(Deadlock) as deadlock:
        run(main(True))
    assert any("unseen" in note for note in deadlock.value.__notes__)


def test_real_loops_before_and_after_are_not_disturbed():
    async def real() -> Any:
        assert not isinstance(asyncio.get_running_loop(), SimLoop)
        await asyncio.sleep(0.001)
        with pytest.raises(RuntimeError, match="another loop is running in this thread"):
            run(asyncio.sleep(1))
        return await asyncio.to_thread(lambda: 5)

    assert asyncio.run(real()) == 5
    run(asyncio.sleep(1))
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
    assert gc.isenabled()
    assert asyncio.run(real()) == 5


# Sets of tasks, strings in sets, timers of one instant and racing: whatever could differ from process to process.
RACE = """
import asyncio, sys
from random import Random
from wherry.sim.world.loop import run

trace = []

async def worker(name, random):
    try:
        for number in range(20):
            await asyncio.sleep(random.choice([0, 0, 0.5, 1]))
            trace.append(f"{asyncio.get_running_loop().time()} {name} {number}")
        if name == "w7":
            raise ValueError(name)
        await asyncio.Event().wait()
    finally:
        trace.append(f"end {name} {asyncio.current_task().get_name()}")

async def main(seed):
    random = Random(seed)
    padding = [object() for _ in range(len(sys.argv[1]) * 1000)]  # moves addresses about
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(worker(f"w{number}", random))
    except* ValueError:
        pass

for seed in (1, 2):
    run(main(seed), random=Random(seed))
print("\\n".join(trace))
"""


def trace_of(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", RACE, "x" * int(hash_seed)], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_same_seed_takes_the_same_steps_in_every_process():
    first = trace_of("1")
    assert first.count("end ") == 60
    assert first == trace_of("77")


def test_racing_shuffles_what_is_ready_at_once_and_only_by_the_seed():
    def order(random: Random | None) -> list[int]:
        seen: list[int] = []

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(10):
                    group.create_task(add(number))

        async def add(number: int) -> None:
            await asyncio.sleep(1)
            seen.append(number)

        run(main(), random=random)
        return seen

    assert order(None) == list(range(10))
    assert order(Random(5)) == order(Random(5)) != list(range(10))
    assert sorted(order(Random(5))) == list(range(10))
