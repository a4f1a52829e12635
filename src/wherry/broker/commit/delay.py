"""Decides whether a group of entries that can wait is delayed, so that it shares a sync with the next entry.

An ack can wait while its consumer has no message to work on: it holds none, and none waits for it. The publish that
brings the next message is an entry that cannot wait, and ends the delay: two entries are one write and one sync, and
the answer travels with the message. PostgreSQL calls it `commit_delay`.

A client may have to do something else after the answer. So a delay has a bound; and a delay that ended without a
message for that client is in vain, also if another client's entry ended it. After it 2 groups are not delayed, after
the next 4, up to 256. A client that waits for each of its acks and then does something else notices four in a thousand.
"""

from __future__ import annotations

DELAY_S = 0.003
"""How long a group waits at most, within a millisecond: a flow of a few hundred messages a second finds company."""

VAIN_MAX = 8
"""Delays in vain, one after the other, after which the number of groups that are skipped grows no further: 256."""


class CommitDelay:
    """Remembers how delays ended."""

    __slots__ = ("_skipped", "_vain")

    def __init__(self) -> None:
        self._vain = self._skipped = 0

    def may_begin(self) -> bool:
        """Return whether the next group that can wait is delayed."""
        if self._skipped:
            self._skipped -= 1
            return False
        return True

    def ended(self, *, in_vain: bool) -> None:
        """Note how a delay ended: with an entry that could not wait, or in vain."""
        if in_vain:
            self._vain = min(self._vain + 1, VAIN_MAX)
            self._skipped = 1 << self._vain
        else:
            self._vain = max(self._vain - 1, 0)
