"""How long a client may take to log in, to end a frame, to show that it is there, to read; and when we must speak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wherry.wire.stomp import greeting
from wherry.wire.stomp.greeting import HeartBeats
from wherry.wire.stomp.queues import lost_right

if TYPE_CHECKING:
    from wherry.wire.stomp.session import Session

FRAME_PACE = 100_000
"""Bytes that win a frame one second more."""

HELD_CHECK_S = 1.0

Overdue = tuple[str, str]
"""Why a client is cut off, in a few words and in detail."""


class Deadlines:
    """The times of one session, by the clock that all sessions share."""

    def __init__(self, session: Session) -> None:
        self._session, self._clock = session, session.shared.clock
        self.began = self._heard = self._said = self._read_at = self._checked_at = self._clock()
        self.beats = HeartBeats(0, 0)
        self._frame_began: float | None = None
        self._taken = 0

    def heard(self) -> None:
        """Something came from the client."""
        self._heard = self._clock()

    def said(self) -> None:
        """Something was written to it."""
        self._said = self._clock()

    def heard_all(self, held: int, *, whole: bool) -> None:
        """What came is taken in: so much of it is a frame that is not whole, and whether there was one that is."""
        self.heard()  # what it took us to hear it is no delay of the client
        if whole or held == 0:
            self._frame_began = None
        if held and self._frame_began is None:
            self._frame_began = self._heard

    def not_late(self, now: float) -> None:
        """Nothing is read from the client: it cannot be late."""
        self._heard = now
        self._frame_began = None if self._frame_began is None else now

    def is_silent(self, now: float) -> bool:
        """Whether the client must hear from us."""
        return bool(self.beats.send_s) and now - self._said >= self.beats.send_s / 2

    def overdue(self, now: float) -> Overdue | None:
        """What the client takes too long for."""
        bounds = self._session.shared.bounds
        if not self._session.is_open:
            if now - self.began > bounds.login_s:
                return "no login", f"no CONNECT within {bounds.login_s} s"
            return None
        expected = self.beats.expect_s
        if expected and now - self._heard > greeting.patience_s(expected):
            return "no heart-beat", f"nothing was heard for {now - self._heard:.1f} s; agreed: every {expected} s"
        if self._frame_began is not None:
            held = self._session.held
            patience_s = bounds.frame_s + held / FRAME_PACE
            if now - self._frame_began > patience_s:
                return "frame not whole", f"{held} bytes of a frame, and no end within {patience_s:.0f} s"
        return self._overdue_reading(now) or self._overdue_slowly(now)

    def _overdue_reading(self, now: float) -> Overdue | None:
        waiting = self._session.waiting_bytes()
        taken = self._session.written - waiting
        if waiting == 0 or taken > self._taken:
            self._taken, self._read_at = taken, now
        elif now - self._read_at > self._session.shared.bounds.write_s:
            return "nothing read", f"{waiting} bytes were sent, and none was read for {now - self._read_at:.0f} s"
        return None

    def _overdue_slowly(self, now: float) -> Overdue | None:
        """What need not be looked at in every tick."""
        session = self._session
        if now - self._checked_at < HELD_CHECK_S:
            return None
        self._checked_at = now
        session.forget_rights()
        lost = lost_right(session) if session.login.still_holds() else "it was deleted, or has expired"
        if lost is not None:
            return "key no longer good", lost
        for subscription in list(session.subscriptions.values()):
            subscription.check_backlog()  # of what came over other wires; what came over ours is looked at as it comes
        return None
