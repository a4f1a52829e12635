"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

try:
    import uvloop as loops
except ImportError:  # there is none for Windows
    loops = asyncio  # type: ignore[misc]

T = TypeVar("T")
P = ParamSpec("P")
A_co = TypeVar("A_co", covariant=True)
O = TypeVar("O")  # noqa: E741  the type of the async object


class Portal:
    """Runs coroutines on the loop of its thread, and waits for them in the caller's."""

    def __init__(self) -> None:
        self._loop = loops.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wherry client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; a caller that is interrupted cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the sync client was called on its own event loop: use the async one there")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Have a function called on the loop."""
        self._loop.call_soon_threadsafe(call, *arguments)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Have a function called on the loop after so many seconds."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, call)

    def close(self) -> None:
        """End the loop and its thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


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
