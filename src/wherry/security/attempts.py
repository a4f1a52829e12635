"""Failed logins, by the address that they came from: each makes the next refusal come later.

A password that people choose can be guessed; what a guess costs is the time until its answer. A successful login has no
pause.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from wherry.model.pauses import growing

PAUSE_S, PAUSE_S_MAX = 0.1, 2.0
"""The pause before the first refusal, which doubles each time, and the longest."""

FORGET_S = 60.0
"""The count of an address that has not failed for so long begins again."""

PEERS_MAX = 10_000
"""Addresses that are remembered; the one that failed longest ago is forgotten first."""


class Attempts:
    """How often logins from an address have failed lately."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def failed(self, peer: str) -> float:
        """Count a failed login; return after how many seconds to send the refusal.

        Examples
        --------
        >>> attempts = Attempts()
        >>> [attempts.failed("10.0.0.1") for _ in range(6)], attempts.failed("10.0.0.2")
        ([0.1, 0.2, 0.4, 0.8, 1.6, 2.0], 0.1)
        """
        now = self._now()
        count, last = self._failed.pop(peer, (0, now))
        count = count + 1 if now - last < FORGET_S else 1
        self._failed[peer] = count, now
        if len(self._failed) > PEERS_MAX:
            self._failed.popitem(last=False)
        return growing(PAUSE_S, PAUSE_S_MAX, count - 1)

    def __len__(self) -> int:
        """Return how many addresses are remembered."""
        return len(self._failed)
