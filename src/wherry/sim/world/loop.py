"""An asyncio event loop without selector, threads or real clock.

It decides what runs next and what time it is. When nothing is ready, the clock jumps to the next timer; when there is
no timer either, the run ends with `Deadlock`. The same program with the same seed takes the same steps in every
process: timers of one instant fire in the order in which they were set; tasks hash by the order of their creation (a
TaskGroup keeps its tasks in a set and cancels them in the order of the set, which would otherwise depend on memory
addresses); and `run` lets the garbage collector work at fixed steps only (it may finalise async generators, which
schedules work).

It must never read the real clock, sleep, or start a thread.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple

from wherry.sim.world.errors import (
    Deadlock,
    NoThreads,
    Runaway,
    SimError,
    Unhandled,
)
from wherry.sim.world.process import Process, SimTask, process_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX_DEFAULT: Final = 10_000_000
VIRTUAL_S_MAX_DEFAULT: Final = 30 * 24 * 3600.0
_STEPS_PER_COLLECTION: Final = 50_000
_STEPS_TO_END: Final = 100_000
_CANCELS_MAX: Final = 20
_SHOWN_MAX: Final = 20


class SimLoop(asyncio.BaseEventLoop):
    """Virtual time, one callback after the other.

    Parameters
    ----------
    random
        When given, callbacks that are ready in the same turn run in a shuffled order. In asyncio `call_soon` is first
        in, first out; the shuffle finds code that relies on it.
    on_step
        Called with the number of the step before each callback runs, with the loop running. It may kill a
        process, cut the power of a disk or raise; what it raises ends the run.
    steps_max, virtual_s_max
        Bounds at which the run ends with `Runaway`.
    """

    # Attributes of BaseEventLoop that the type stubs do not name.
    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(
        self,
        *,
        random: Random | None = None,
        on_step: Callable[[int], None] | None = None,
        steps_max: int = STEPS_MAX_DEFAULT,
        virtual_s_max: float = VIRTUAL_S_MAX_DEFAULT,
    ) -> None:
        super().__init__()
        self.steps = 0
        self.unhandled: list[tuple[str, BaseException | None]] = []
        self._random = random
        self._on_step = on_step
        self._steps_max = steps_max
        self._virtual_s_max = virtual_s_max
        self._now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0
        self._timers_cancelled = 0
        self._tasks: list[SimTask] = []
        self._tasks_made = 0
        self._tasks_pruned_at = 1024
        self._withheld: list[asyncio.Handle] = []
        self._paused: list[asyncio.Handle] = []
        self._ending = False
        self.set_exception_handler(lambda _loop, context: self._note_unhandled(context))

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._now_s

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self.is_closed():
            raise SimError("the loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._timers_cancelled += 1
        if self._timers_cancelled > 64 and self._timers_cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def _run_once(self) -> None:
        """Run one turn: all callbacks that are ready now, but none that becomes ready meanwhile."""
        self._fire_timers()
        if self._random is not None and len(self._ready) > 1:
            callbacks = list(self._ready)
            self._random.shuffle(callbacks)
            self._ready = deque(callbacks)
        for _ in range(len(self._ready)):
            self._step()
        if self._ending and not self._waiting():
            self.stop()

    def _fire_timers(self) -> None:
        while self._timers and not self._lives(self._timers[0][2]):
            heapq.heappop(self._timers)
        if not self._ready and not self._stopping:
            if not self._timers:
                raise Deadlock(f"at {self._now_s:.6f} s nothing is ready and no timer is set; {self._who_waits()}")
            self._jump(self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now_s:
            timer = heapq.heappop(self._timers)[2]
            if self._lives(timer):
                self._ready.append(timer)

    def _jump(self, when_s: float) -> None:
        if when_s > self._virtual_s_max:
            bound = f"the bound is {self._virtual_s_max:.3f} s"
            raise Runaway(f"the next timer is due at {when_s:.3f} s of virtual time, {bound}; {self._who_waits()}")
        self._now_s = max(self._now_s, when_s)

    def _step(self) -> None:
        if not self._lives(self._ready[0]):
            self._withhold(self._ready.popleft())
            return
        if self._rests(self._ready[0]):
            self._paused.append(self._ready.popleft())
            return
        if self.steps >= self._steps_max:
            raise Runaway(f"{self.steps} steps were taken at {self._now_s:.6f} s, the bound; {self._who_waits()}")
        self.steps += 1
        if self._on_step is not None:
            self._on_step(self.steps)
        if self.steps % _STEPS_PER_COLLECTION == 0:
            gc.collect()
        handle = self._ready.popleft()  # only now: a hook that raises loses no callback
        if self._lives(handle):  # the hook may have killed its process
            handle._run()
        else:
            self._withhold(handle)

    def _lives(self, handle: asyncio.Handle) -> bool:
        if handle.cancelled():
            return False
        process = process_of(handle._context)  # type: ignore[attr-defined]  # get_context() is not in 3.11
        return process is None or process.alive or self._ending

    def _rests(self, handle: asyncio.Handle) -> bool:
        process = process_of(handle._context)  # type: ignore[attr-defined]
        return process is not None and process.paused and not self._ending

    def go_on(self, process: Process) -> None:
        """Let a paused process run again: first callbacks from outside, then its timers, in asyncio's order."""
        process.paused = False
        late, self._paused = self._paused, []
        self._ready.extend(sorted(late, key=lambda handle: isinstance(handle, asyncio.TimerHandle)))

    def _withhold(self, handle: asyncio.Handle) -> None:
        """Keep a step of a dead task: without it, the task could not be cancelled at the end."""
        if not handle.cancelled():
            self._withheld.append(handle)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None, **_eager: Any
    ) -> asyncio.Task[T]:
        """Make a task. It is never started eagerly, and is referenced while it waits, so that it is not collected."""
        if self.is_closed():
            raise SimError("the loop is closed")
        self._tasks_made += 1
        # The numbers of asyncio continue from run to run in one process, so they would differ for the same seed.
        shown = f"task-{self._tasks_made}" if name is None else str(name)
        task = SimTask(self._tasks_made, coro, self, shown, copy_context() if context is None else context)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_pruned_at:
            self._tasks = self._waiting()
            self._tasks_pruned_at = 2 * len(self._tasks) + 1024
        return task

    def _waiting(self) -> list[SimTask]:
        return [task for task in self._tasks if not task.done()]

    def _who_waits(self) -> str:
        waiting = self._waiting()
        shown = [f"{task.get_name()} {task.place()}" for task in waiting[:_SHOWN_MAX]]
        more = f" and {len(waiting) - _SHOWN_MAX} more" if len(waiting) > _SHOWN_MAX else ""
        return f"{len(waiting)} tasks wait: {', '.join(shown)}{more}" if waiting else "no task waits"

    def _note_unhandled(self, context: dict[str, Any]) -> None:
        task = context.get("future", context.get("task"))
        if self._ending and isinstance(task, SimTask) and task.is_dead:
            return
        if len(self.unhandled) < _SHOWN_MAX:
            self.unhandled.append((str(context.get("message")), context.get("exception")))

    def end_tasks(self) -> None:
        """Cancel all tasks that still wait, also those of killed processes, without hooks and bounds.

        Code of a killed process runs here, after the run: else Python would close its coroutines as garbage, with
        warnings. Its exceptions are ignored.
        """
        left = self._waiting()
        self._tasks = list(left)
        gc.collect()  # tasks whose failure was not read report it when they are collected
        self._ending, self._on_step = True, None
        self._ready.extend((*self._withheld, *self._paused))
        self._steps_max, self._virtual_s_max = self.steps + _STEPS_TO_END, float("inf")
        self._cancel_all()
        with suppress(Deadlock):
            self.run_until_complete(self.shutdown_asyncgens())
        self._cancel_all()
        for task in left:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                message = f"{task.get_name()} failed when it was cancelled"
                self._note_unhandled({"message": message, "exception": error, "task": task})
        self._tasks.clear()
        gc.collect()

    def _cancel_all(self) -> None:
        for _ in range(_CANCELS_MAX):
            waiting = self._waiting()
            if not waiting:
                return
            for task in waiting:
                task.cancel()
            with suppress(Deadlock):
                self.run_forever()  # until all are done
        raise Runaway(f"{_CANCELS_MAX} cancellations did not end what was left; {self._who_waits()}")

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != getattr(self, "_thread_id", None) and self.is_running():
            raise NoThreads("call_soon_threadsafe from another thread: the simulator has no threads")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: object, func: Callable[..., object], *args: Any) -> NoReturn:  # type: ignore[override]
        raise NoThreads(f"run_in_executor({func!r}): the simulator has no threads; do it behind a seam it can replace")


def run(
    main: Coroutine[Any, Any, T],
    *,
    random: Random | None = None,
    on_step: Callable[[int], None] | None = None,
    steps_max: int = STEPS_MAX_DEFAULT,
    virtual_s_max: float = VIRTUAL_S_MAX_DEFAULT,
) -> T:
    """Run `main` to its end on a loop of its own, in virtual time, and leave no task behind.

    The loop is never installed as the thread's event loop, so real loops before and after do not notice.

    Raises
    ------
    Deadlock, Runaway
        The run cannot or does not end.
    Unhandled
        `main` returned, but a task or callback had failed without its exception being read.
    """
    if asyncio._get_running_loop() is not None:
        main.close()
        raise SimError("another loop is running in this thread: a simulation needs a thread of its own")
    loop = SimLoop(random=random, on_step=on_step, steps_max=steps_max, virtual_s_max=virtual_s_max)
    try:
        with _collecting_by_hand():
            try:
                result = loop.run_until_complete(main)
            except BaseException as error:
                with suppress(SimError):
                    loop.end_tasks()
                for message, cause in loop.unhandled:
                    error.add_note(f"unseen before: {message}: {cause!r}")
                raise
            loop.end_tasks()
    finally:
        loop.close()
    if loop.unhandled:
        shown = "; ".join(f"{message}: {cause!r}" for message, cause in loop.unhandled)
        raise Unhandled(f"{len(loop.unhandled)} failures nobody looked at: {shown}") from loop.unhandled[0][1]
    return result


@contextmanager
def _collecting_by_hand() -> Iterator[None]:
    """Run the garbage collector at fixed steps only; freeze older objects, which take long to scan."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # also if the caller had frozen objects: to find that out would scan all of them
        if was_enabled:
            gc.enable()
