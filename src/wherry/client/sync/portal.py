"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from wherry.model.errors import Closed

try:
    import uvloop as loops
except ImportError:  # there is none for Windows
    loops = asyncio  # type: ignore[misc]

END_S: Final = 2.0
"""How long tasks may take to end after they are cancelled."""

CLOSED: Final = "the sync client is closed"

T = TypeVar("T")
P = ParamSpec("P")
A_co = TypeVar("A_co", covariant=True)
O = TypeVar("O")  # noqa: E741  the type of the async object


class Portal:
    """Runs coroutines on the loop of its thread, and waits for them in the caller's."""

    def __init__(self) -> None:
        self._loop = loops.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wherry client", daemon=True)
        self._lock = threading.Lock()
        self._is_closed = False
        self._process = os.getpid()
        self._thread.start()
        # A loop that still runs while the interpreter is taken down touches what is gone: such processes crashed.
        atexit.register(self._close_at_exit)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; a caller that is interrupted cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the sync client was called on its own event loop: use the async one there")
        with self._lock:
            if self._is_closed:
                work.close()
                raise Closed(CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            if self._is_closed:
                raise Closed(CLOSED) from None
            raise
        except BaseException:
            future.cancel()
            raise

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Have a function called on the loop."""
        with self._lock:
            if self._is_closed:
                raise Closed(CLOSED)
            self._loop.call_soon_threadsafe(call, *arguments)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Have a function called on the loop after so many seconds."""
        self.soon(self._loop.call_later, seconds, call)

    def close(self) -> None:
        """End what runs on the loop, the loop and its thread; work that comes afterwards is refused."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        atexit.unregister(self._close_at_exit)
        self._thread.join()
        self._loop.close()

    def _close_at_exit(self) -> None:
        if os.getpid() == self._process:  # a forked process has no such thread
            self.close()

    async def _end(self) -> None:
        """Cancel all tasks, so that nobody waits for one for ever, and stop the loop."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)
        await asyncio.sleep(0)  # what tasks call when they are done
        self._loop.stop()


class Blocking(Protocol[A_co]):
    """The blocking form of an async object, which lives on the loop of a portal."""

    @property
    def portal(self) -> Portal:
        """The portal to its loop."""

    @property
    def other(self) -> A_co:
        """The async object."""


def waits(
    method: Callable[Concatenate[O, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[O], P], T]:
    """Return an async method as one that waits for its result."""

    @functools.wraps(method)
    def call(self: Blocking[O], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.portal.run(method(self.other, *args, **kwargs))

    return call
