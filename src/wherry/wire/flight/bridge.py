"""From the threads of Flight to the loop of the broker and back.

Flight gives each call a thread that may wait; the broker lives on one loop. A call is handed over as a coroutine, and
cancelled there when its client is gone or the server closes.
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

LOOK_S = 0.5
"""How often a call that waits looks whether its client is still there."""

LATE_S = 0.001
"""A loop that needs no longer for a turn has nothing to do."""

WAY_S_MAX = 0.05
"""So slow a reader of history becomes beside a busy loop, at worst: a batch of 2 MiB each time."""

T = TypeVar("T")


class Bridge:
    """The way into one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have the loop do something."""
        with self._lock:
            if self._closed:
                work.close()
                raise Closed("the broker is closing")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._pending.add(future)
        future.add_done_callback(self._ended)
        return future

    def run(self, work: Coroutine[Any, Any, T], context: flight.ServerCallContext | None = None) -> T:
        """Have the loop do something, and wait for it as long as the client does."""
        return self.wait(self.submit(work), context)

    def wait(self, future: Future[T], context: flight.ServerCallContext | None = None) -> T:
        """Until it is done; cancelled when the client is gone."""
        while context is not None:
            try:
                return future.result(LOOK_S)
            except TimeoutError:
                if future.done():
                    break
                if context.is_cancelled():
                    future.cancel()
        return future.result()

    def give_way(self) -> None:
        """Wait for a turn of the loop, and as long again as it was late: who reads history waits for who is served."""
        turned, began = threading.Event(), time.monotonic()
        with suppress(RuntimeError):  # the loop is closed, and whoever asks it next is told
            self._loop.call_soon_threadsafe(turned.set)
            turned.wait(WAY_S_MAX)
            late = time.monotonic() - began
            if late > LATE_S:
                time.sleep(min(late, WAY_S_MAX))

    def iterate(self, work: AsyncIterator[T], context: flight.ServerCallContext | None = None) -> Iterator[T]:
        """What the loop makes, one by one."""
        ended = object()

        async def following() -> Any:
            return await anext(work, ended)

        while (each := self.run(following(), context)) is not ended:
            yield each

    def close(self) -> None:
        """No more calls; those that wait for the loop end."""
        with self._lock:
            self._closed = True
            pending = list(self._pending)
        for future in pending:
            future.cancel()

    def _ended(self, future: Future[Any]) -> None:
        with self._lock:
            self._pending.discard(future)
