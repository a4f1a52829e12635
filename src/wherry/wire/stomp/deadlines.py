"""The deadlines of a client (login, end of a frame, heart-beat, reading), and when a heart-beat to it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wherry.wire.stomp import greeting
from wherry.wire.stomp.greeting import HeartBeats
from wherry.wire.stomp.queues import lost_right

if TYPE_CHECKING:
    from wherry.wire.stomp.session import Session

FRAME_PACE = 100_000
"""Each so many bytes of a frame give it one second more."""

SLOW_CHECK_S = 1.0
"""Seconds between two checks that need not be made in every tick: of rights, and of backlogs."""

Overdue = tuple[str, str]
"""The reason why a client is cut off, short and in detail."""


class Deadlines:
    """The times of one session, by the clock that all sessions share."""

    def __init__(self, session: Session) -> None:
        self._session, self._clock = session, session.shared.clock
        self.began = self._received_at = self._written_at = self._taken_at = self._checked_at = self._clock()
        self.beats = HeartBeats(0, 0)
        self._frame_began: float | None = None
        self._taken = 0

    def note_received(self) -> None:
        """Note that bytes arrived from the client."""
        self._received_at = self._clock()

    def note_written(self) -> None:
        """Note that bytes were written to the client."""
        self._written_at = self._clock()

    def note_parsed(self, partial: int, *, whole: bool) -> None:
        """Note that what arrived is parsed: `partial` bytes are an incomplete frame; `whole`: a frame was completed."""
        self.note_received()  # the time that parsing took is no delay of the client
        if whole or partial == 0:
            self._frame_began = None
        if partial and self._frame_began is None:
            self._frame_began = self._received_at

    def not_late(self, now: float) -> None:
        """Restart the deadlines, since the client is not read: it cannot be late."""
        self._received_at = now
        self._frame_began = None if self._frame_began is None else now

    def is_silent(self, now: float) -> bool:
        """Return whether a heart-beat to the client is due."""
        return bool(self.beats.send_s) and now - self._written_at >= self.beats.send_s / 2

    def overdue(self, now: float) -> Overdue | None:
        """Return which deadline the client has missed, if any."""
        bounds = self._session.shared.bounds
        if not self._session.is_open:
            if now - self.began > bounds.login_s:
                return "no login", f"no CONNECT within {bounds.login_s} s"
            return None
        expected = self.beats.expect_s
        if expected and now - self._received_at > greeting.patience_s(expected):
            return "no heart-beat", f"nothing arrived for {now - self._received_at:.1f} s; agreed: every {expected} s"
        if self._frame_began is not None:
            partial = self._session.partial_bytes
            patience_s = bounds.frame_s + partial / FRAME_PACE
            if now - self._frame_began > patience_s:
                return "frame not whole", f"{partial} bytes of a frame, and no end within {patience_s:.0f} s"
        return self._overdue_reading(now) or self._overdue_by_slow_checks(now)

    def _overdue_reading(self, now: float) -> Overdue | None:
        waiting = self._session.waiting_bytes()
        taken = self._session.written - waiting
        if waiting == 0 or taken > self._taken:
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at > self._session.shared.bounds.write_s:
            return "nothing read", f"{waiting} bytes were sent, and none was read for {now - self._taken_at:.0f} s"
        return None

    def _overdue_by_slow_checks(self, now: float) -> Overdue | None:
        """Check what need not be checked in every tick."""
        session = self._session
        if now - self._checked_at < SLOW_CHECK_S:
            return None
        self._checked_at = now
        session.forget_rights()
        lost = lost_right(session) if session.login.still_holds() else "it was deleted, or has expired"
        if lost is not None:
            return "key no longer good", lost
        for subscription in list(session.subscriptions.values()):
            subscription.check_backlog()  # messages of other wires; those of queue clients are checked as they come
        return None
