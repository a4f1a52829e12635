"""Those who wait until something new is in a topic: readers of the log, who take no lease and so stand in no line."""

from __future__ import annotations

import asyncio


class Arrivals:
    """Everybody who waits, by topic. Costs a publish nothing while nobody does."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[asyncio.Future[None], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def came(self, topic: int) -> None:
        """Messages came, or the topic went: whoever waits looks again."""
        for waiter in self._waiting.pop(topic, ()):
            if not waiter.done():
                waiter.set_result(None)

    def wake_all(self) -> None:
        """The broker is over."""
        for topic in list(self._waiting):
            self.came(topic)

    async def wait(self, topics: list[int], wait_ms: int) -> None:
        """Until messages come to one of the topics, or the time is over. Nothing may be awaited since the last look."""
        waiter = asyncio.get_running_loop().create_future()
        for topic in topics:
            self._waiting.setdefault(topic, {})[waiter] = None
        try:
            await asyncio.wait([waiter], timeout=wait_ms / 1000)
        finally:
            for topic in topics:
                waiting = self._waiting.get(topic)
                if waiting is not None:
                    waiting.pop(waiter, None)
                    if not waiting:
                        del self._waiting[topic]
