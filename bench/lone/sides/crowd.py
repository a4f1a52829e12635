"""Many producers and many consumers as tasks of one process: the same for every client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

WORKERS = 32
AHEAD = 32
"""Messages that one consumer is given before it has acked them, where its client lets it choose."""


async def produce(count: int, send: Callable[[], Awaitable[object]], workers: int = WORKERS) -> list[float]:
    """Call `send` so many times, each worker one call at a time; return how long each took, in milliseconds."""
    took: list[float] = []
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            await send()
            took.append((time.perf_counter() - began) * 1e3)

    await asyncio.gather(*(work() for _ in range(workers)))
    return took


class Arrivals:
    """Counts messages that were handled by any of many consumers, and keeps their ages."""

    def __init__(self, count: int) -> None:
        self.expect(count)

    def expect(self, count: int) -> None:
        """Begin to count anew, up to so many."""
        self.ages: list[float] = []
        self._count = count
        self._all = asyncio.Event()

    def add(self, age_ms: float) -> None:
        """Note that a message was handled."""
        self.ages.append(age_ms)
        if len(self.ages) >= self._count:
            self._all.set()

    async def wait(self, consumers: Iterable[asyncio.Task[None]]) -> None:
        """Wait until all have arrived; a consumer that fails or ends before fails the run."""
        everything = asyncio.ensure_future(self._all.wait())
        done, _ = await asyncio.wait([everything, *consumers], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        assert everything in done, f"a consumer ended after {len(self.ages)} of {self._count} messages"


def started(some: Iterable[Coroutine[Any, Any, None]]) -> list[asyncio.Task[None]]:
    """Return coroutines as tasks that run."""
    return [asyncio.create_task(each) for each in some]


async def stop(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait for their ends."""
    some = list(tasks)
    for task in some:
        task.cancel()
    await asyncio.gather(*some, return_exceptions=True)
