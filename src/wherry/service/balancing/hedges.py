"""When a call is sent to a second instance as well, since the first one is slow: decided from measured response times.

A hedge is worth it for the slowest calls only: those that take longer than 95 of 100 did lately. It never decides
before enough calls were measured, unless the caller gave the time itself; what may run twice and what the budget still
has, others decide (`Retries`).
"""

from __future__ import annotations

from collections import deque

SHARE = 0.95
"""Of the last calls, the part that is answered before a hedge is sent."""

TIMES_MAX = 256
"""Response times that count: those of the last calls."""

TIMES_MIN = 32
"""Fewer say nothing of the slowest of twenty."""

EVERY = 16
"""Calls between two looks at all times."""

AFTER_S_MIN = 0.001
"""A loop cannot wait less; and a call that is answered so fast needs no second one."""


class Hedges:
    """The response times of the calls of one method that may be hedged, and how many hedges were sent.

    Examples
    --------
    >>> found = Hedges()
    >>> for ms in range(1, 101):
    ...     found.note(ms / 1000)
    >>> round(found.after_s(True, left_s=1.0), 3)
    0.092
    """

    __slots__ = ("_after_s", "_fresh", "_times", "sent", "won")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=TIMES_MAX)
        self._after_s: float | None = None
        self._fresh = 0
        """Times since the last look at all of them."""
        self.sent = 0
        self.won = 0
        """Hedges that were answered before the first attempt."""

    def note(self, seconds: float) -> None:
        """Note a response time: of a call whose hedge won, how long its first attempt had taken by then."""
        self._times.append(seconds)
        self._fresh += 1
        if len(self._times) >= TIMES_MIN and self._fresh >= EVERY:
            self._fresh = 0
            self._after_s = sorted(self._times)[int(len(self._times) * SHARE)]

    def after_s(self, asked: bool | float, left_s: float) -> float | None:
        """Return the seconds without an answer after which a hedge is sent; None if none must be.

        Parameters
        ----------
        asked
            The seconds that the caller gave; True for the measured time, False for no hedge.
        left_s
            Seconds up to the deadline.
        """
        if asked is False:
            return None
        found = self._after_s if asked is True else asked
        if found is None:
            return None
        seconds = max(AFTER_S_MIN, found)
        return seconds if seconds < left_s else None
