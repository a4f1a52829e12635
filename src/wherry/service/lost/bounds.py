"""How much a log of lost calls holds, and what became of its calls."""

from __future__ import annotations

import msgspec

from wherry.model import check
from wherry.model.limits import PAYLOAD_BYTES_MAX


class LostBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a log.

    Parameters
    ----------
    calls, bytes
        Above either, the oldest are dropped.
    body_bytes
        Of one argument; a longer one is cut, marked, and not sent again.
    keep_s
        After this time a call is dropped.
    """

    calls: int = 10_000
    bytes: int = 64 << 20
    body_bytes: int = 1 << 20
    keep_s: float = 7 * 86_400.0

    def checked(self) -> LostBounds:
        """Return these bounds, or raise `InvalidInput`."""
        check.integer("calls", self.calls, 1, 10_000_000)
        check.integer("body_bytes", self.body_bytes, 1, PAYLOAD_BYTES_MAX)
        check.integer("bytes", self.bytes, 2 * self.body_bytes, 1 << 40)
        check.number("keep_s", self.keep_s, 1.0, 10 * 365 * 86_400.0)
        return self


class LostStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the calls of a log."""

    calls: int = 0
    """In it now."""

    bytes: int = 0
    kept: int = 0
    """Ever, as the next three."""

    removed: int = 0
    """Answered after a resend, or dropped by hand."""

    pushed_out: int = 0
    """By newer ones, at the bound of number or bytes."""

    expired: int = 0
    resent: int = 0
    """Answered after a resend, since the process started."""

    not_kept: int = 0
    """Since the process started: the disk was full, the folder in use, or too many failed at a time."""
