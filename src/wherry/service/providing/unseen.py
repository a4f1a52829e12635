"""Results that a caller has not reported as read: how many, and of which calls where that is needed. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from wherry.service.providing.running import ProvidedCall
from wherry.wire.native.codec.faults import WireFault

UNSEEN_MAX: Final = 65_536
"""Beyond it the caller breaks the protocol."""

UNSEEN_BYTES_MAX: Final = 64 << 20
"""Of the arguments of their calls, where those are kept."""


class Unseen:
    """Results that were sent over one connection, oldest first."""

    def __init__(self, *, keeps_calls: bool) -> None:
        self._keeps_calls = keeps_calls
        self.count = 0
        self.calls: deque[ProvidedCall] = deque()
        """Empty where nothing needs them."""
        self._bytes = 0

    def add(self, call: ProvidedCall) -> bool:
        """Count a result that is sent; return whether there is room for it."""
        self.count += 1
        if self._keeps_calls:
            self.calls.append(call)
            self._bytes += len(call.asked.argument)
        return self.count <= UNSEEN_MAX and self._bytes <= UNSEEN_BYTES_MAX

    def seen(self, results: int) -> None:
        """Note that the caller has read so many more."""
        if results > self.count:
            raise WireFault("client", "results", results, f"at most {self.count}, which were sent")
        self.count -= results
        if self._keeps_calls:
            for _ in range(results):
                self._bytes -= len(self.calls.popleft().asked.argument)
