"""When a call is sent again, and when it is sent twice: decided within a budget, so that a sick service gets no flood.

It never repeats what may not run twice: only methods declared idempotent, or calls that no instance took. It never
decides for an attempt that would begin after the deadline. More attempts than a tenth of the calls, and ten, there
never are.
"""

from __future__ import annotations

ATTEMPTS_MAX = 3
"""Of one call, the first one included."""

PART = 0.1
"""Further attempts for each call."""

SPARE = 10.0
"""Further attempts that a caller may make at the beginning, and the most that it can save up."""

PAUSE_S = 0.05
"""Before the second attempt; doubled for the next."""


class Retries:
    """The budget of one caller, for retries and hedges together."""

    def __init__(self) -> None:
        self.further = 0
        self._spare = SPARE

    def began(self) -> None:
        """Note a call: its first attempt."""
        self._spare = min(SPARE, self._spare + PART)

    def pause(
        self, attempts: int, *, idempotent: bool, untaken: bool, now: float, deadline: float, chance: float
    ) -> float | None:
        """Return the seconds to wait before the next attempt, taken from the budget; None if there must be none.

        Parameters
        ----------
        attempts
            Made so far.
        idempotent
            Whether the method is declared to do the same when it runs twice.
        untaken
            Whether it is certain that no instance began to run the method: none was reached, or it refused.
        now, deadline
            Seconds of the same clock.
        chance
            Drawn evenly from 0 up to and without 1: callers that failed together do not come back together.
        """
        if attempts >= ATTEMPTS_MAX or not (idempotent or untaken):
            return None
        seconds = PAUSE_S * 2.0 ** (attempts - 1) * (0.5 + chance)
        return seconds if now + seconds < deadline and self._take() else None

    def hedge(self, *, idempotent: bool) -> bool:
        """Take a hedge from the budget when its time has come; return whether it may be sent."""
        return idempotent and self._take()

    def _take(self) -> bool:
        # A tenth added ten times is a little less than one.
        if self._spare < 1.0 - 1e-9:
            return False
        self._spare -= 1.0
        self.further += 1
        return True
