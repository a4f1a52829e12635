"""Calls from the threads of Flight to the loop of the broker.

Flight gives each call a thread that may wait; the broker runs on one loop. A call submits a coroutine to the loop, and
cancels it when its client disconnects or the server closes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from pyarrow import flight

from wherry.model.errors import Closed

CHECK_S = 0.5
"""How often a waiting call checks whether its client is still connected."""

LATE_S = 0.001
"""A loop that is no later than this for its turn is idle."""

WAY_S_MAX = 0.05
"""Longest pause of a reader of history for each batch of 2 MiB while the loop is busy."""

T = TypeVar("T")


class Bridge:
    """Runs coroutines of other threads on one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop."""
        with self._lock:
            if self._closed:
                work.close()
                raise Closed("the broker is closing")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._pending.add(future)
        future.add_done_callback(self._ended)
        return future

    def run(self, work: Coroutine[Any, Any, T], context: flight.ServerCallContext | None = None) -> T:
        """Run a coroutine on the loop, and wait for its result as long as the client is connected."""
        return self.wait(self.submit(work), context)

    def wait(self, future: Future[T], context: flight.ServerCallContext | None = None) -> T:
        """Wait for a result; cancel the work when the client disconnects."""
        while context is not None:
            try:
                return future.result(CHECK_S)
            except TimeoutError:
                if future.done():
                    break
                if context.is_cancelled():
                    future.cancel()
        return future.result()

    def give_way(self) -> None:
        """Wait for a turn of the loop, and as long again as it was late: reads of history yield to other calls."""
        turned, began = threading.Event(), time.monotonic()
        with suppress(RuntimeError):  # the loop is closed, which the next call on it reports
            self._loop.call_soon_threadsafe(turned.set)
            turned.wait(WAY_S_MAX)
            late = time.monotonic() - began
            if late > LATE_S:
                time.sleep(min(late, WAY_S_MAX))

    def iterate(self, work: AsyncIterator[T], context: flight.ServerCallContext | None = None) -> Iterator[T]:
        """Yield the values of an asynchronous iterator that runs on the loop."""
        ended = object()

        async def following() -> Any:
            return await anext(work, ended)

        while (each := self.run(following(), context)) is not ended:
            yield each

    def close(self) -> None:
        """Accept no more calls, and cancel those that wait for the loop."""
        with self._lock:
            self._closed = True
            pending = list(self._pending)
        for future in pending:
            future.cancel()

    def _ended(self, future: Future[Any]) -> None:
        with self._lock:
            self._pending.discard(future)
