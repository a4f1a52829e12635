"""How long to wait before trying again: a random share of a time that doubles, so that clients spread."""

from __future__ import annotations

import asyncio
import random

from wherry.model.pauses import growing

FIRST_S = 0.05
CAP_S = 2.0


class Backoff:
    """Pauses with full jitter and a cap, which begin small again after a success."""

    def __init__(self, first_s: float = FIRST_S, cap_s: float = CAP_S) -> None:
        self._first_s, self._cap_s = first_s, cap_s
        self.failures = 0

    def next_s(self) -> float:
        """Return the next pause."""
        span = growing(self._first_s, self._cap_s, self.failures)
        self.failures += 1
        return random.uniform(0, span)

    async def pause(self, after_s: float = 0.0) -> None:
        """Wait for the next pause, after the time that the broker asked for."""
        await asyncio.sleep(after_s + self.next_s())

    def reset(self) -> None:
        """Begin with small pauses again, after a success."""
        self.failures = 0
