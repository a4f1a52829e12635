"""A simulated process: all tasks and timers that began in it die together.

A power cut must stop the broker between two callbacks while its clients live on, in the same event loop. So each
callback belongs to the process in whose context it was scheduled, and the loop skips the callbacks of a dead process.
A kill raises nothing in the dead code: no `finally` and no `except` runs, as with kill -9.
Nothing here decides when a process dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from wherry.sim.world.errors import Killed

T = TypeVar("T")

_CURRENT: ContextVar[Process | None] = ContextVar("wherry_sim_process", default=None)


class Process:
    """One process of the simulated machine; tasks and timers that it starts belong to it as well."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        """Stopped, as by SIGSTOP: none of its callbacks runs until it continues."""
        self._callers: dict[asyncio.Future[None], None] = {}

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a task of this process."""
        if not self.alive:
            work.close()
            raise Killed(f"process {self.name!r} is dead")
        context = copy_context()
        context.run(_CURRENT.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` inside the process for a caller outside of it; return its result or raise `Killed`.

        If the caller is cancelled, the work continues.
        """
        task = self.start(work)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._callers[answered] = None
        task.add_done_callback(lambda done: _answer(done, answered), context=Context())
        try:
            await answered
        finally:
            self._callers.pop(answered, None)
        return task.result()

    def kill(self) -> None:
        """End the process before its next callback; callers that wait for an answer get `Killed`."""
        self.alive = False
        callers, self._callers = self._callers, {}
        for answered in callers:
            if not answered.done():
                answered.set_exception(Killed(f"process {self.name!r} was killed before it answered"))


class SimTask(asyncio.Task[Any]):
    """A task with its process, which hashes by its number: sets of tasks have the same order in every run."""

    def __init__(
        self, number: int, work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop, name: str, context: Context
    ) -> None:
        self.number = number  # before the parent's `__init__`: asyncio puts the new task into a set at once
        self.process = process_of(context)
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number

    @property
    def is_dead(self) -> bool:
        return self.process is not None and not self.process.alive

    def place(self) -> str:
        """Return where the task waits: its outermost function, and the innermost one with its line."""
        outer = inner = self.get_coro()
        while (awaited := getattr(inner, "cr_await", None)) is not None and hasattr(awaited, "cr_frame"):
            inner = awaited
        frame = getattr(inner, "cr_frame", None)
        line = f":{frame.f_lineno}" if frame is not None else ""
        return f"({getattr(outer, '__qualname__', outer)} in {getattr(inner, '__qualname__', inner)}{line})"


def process_of(context: Context) -> Process | None:
    """Return the process of a callback with this context; None for the world outside, which never dies."""
    return context.get(_CURRENT)


def _answer(done: asyncio.Task[Any], answered: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()  # marks it as seen: a cancelled caller does not read the answer
    if not answered.done():
        answered.set_result(None)
