"""Readers of the log that wait for new messages in a topic; they take no lease, so all of them may look at once."""

from __future__ import annotations

import asyncio


class Arrivals:
    """Waiting readers, by topic. Costs a publish nothing while none waits."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[asyncio.Future[None], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def came(self, topic: int) -> None:
        """Wake the readers of a topic that got messages, or was deleted."""
        for waiter in self._waiting.pop(topic, ()):
            if not waiter.done():
                waiter.set_result(None)

    def wake_all(self) -> None:
        """Wake all readers, since the broker closes."""
        for topic in list(self._waiting):
            self.came(topic)

    async def wait(self, topics: list[int], wait_ms: int) -> None:
        """Wait until messages come to one of the topics, or the time is over. Await nothing between a look and this."""
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
