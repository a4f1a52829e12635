"""What the callers of one provider make it hold: incomplete frames, and results that they do not read. Bounded.

Beyond a bound the connection that holds the most is cut off, so that no caller takes the memory of the others.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wherry.service.providing.connection import ProviderConnection

PARTIAL_BYTES_MAX: Final = 256 << 20
"""Of the incomplete frames of all connections."""

RESULTS_BYTES_MAX: Final = 64 << 20
"""Of the results that one caller has not read."""

ALL_RESULTS_BYTES_MAX: Final = 256 << 20
"""Of the results that all callers have not read."""

_log = logging.getLogger("wherry.service")


class HeldBytes:
    """The memory that connections hold, and which were cut off and why."""

    def __init__(self) -> None:
        self.connections: dict[ProviderConnection, None] = {}
        self.partial_bytes = 0
        """Of incomplete frames."""
        self.cut_offs: Counter[str] = Counter()
        """Callers that were cut off, by what they broke: the field of a frame, or a bound."""

    def is_roomy(self, size: int) -> bool:
        """Return whether `size` more bytes of incomplete frames leave half of their memory free."""
        return self.partial_bytes + size <= PARTIAL_BYTES_MAX // 2

    def note_partial(self, change: int) -> None:
        """Count bytes of incomplete frames, and cut off the connection with the most if they are too many."""
        self.partial_bytes += change
        if self.partial_bytes > PARTIAL_BYTES_MAX:
            most = max(self.connections, key=lambda each: each.partial_bytes)
            most.abort_since("frames", f"{most.partial_bytes} bytes of an incomplete frame, and memory is short")

    def check_results(self, one: ProviderConnection) -> None:
        """Cut off a caller that reads too little of what it was sent, or the worst of all."""
        held = one.held_bytes
        if held > RESULTS_BYTES_MAX:
            one.abort_since("results", f"{held} bytes of results are not read")
        elif sum(each.held_bytes for each in self.connections) > ALL_RESULTS_BYTES_MAX:
            most = max(self.connections, key=lambda each: each.held_bytes)
            most.abort_since("results", f"{most.held_bytes} bytes of results are not read, and memory is short")

    def note_cut_off(self, peer: str, what: str, why: str) -> None:
        """Record a caller that was cut off."""
        _log.info("cut off", extra={"peer": peer, "why": why})
        self.cut_offs[what] += 1
