"""How much room the journal has for whom: publishes, settles, what expires, and the opening of the shard.

    for a publish     what is left beside the reserve of the writer and the room for settles
    for an expiry     what is left beside the room for settles and for openings
    for a settle      what is left beside the room for openings

A consumer can always settle what waits, and that frees the disk. It never makes room: the shard asks the writer.
"""

from __future__ import annotations

from wherry.broker.commit.commit import Committer
from wherry.journal.bodies.store import BodyStore
from wherry.journal.engine import Writer

OPENINGS_SHARE = 8
"""The reserve divided by this number is kept for opening the shard, however often that is tried on a full disk."""

ENTRY_HEAD_BYTES = 512
"""Bytes of an entry of settles beside what it has for each message, at most."""

SETTLE_BYTES = 96
"""About how many bytes an entry that settles one message takes in the journal."""
SETTLES_SHARE = 3 / 8
"""Largest share of a journal file kept for settles: enough for single acks of messages of 256 bytes and more."""


class JournalRoom:
    """The room of one journal, beside what is queued for it."""

    def __init__(self, writer: Writer, committer: Committer, store: BodyStore) -> None:
        self._writer, self._committer, self._store = writer, committer, store
        self._settles_min = writer.reserve_bytes * 3 // 4
        """Room for settles that is in the reserve of the writer."""
        self._settles_max = int(SETTLES_SHARE * writer.file_bytes)
        self._openings = writer.reserve_bytes // OPENINGS_SHARE
        """Room for openings."""

    def left(self, size: int, entries: int, *, essential: bool) -> int | None:
        """Return None if so many bytes fit, else how many do. Essential entries add no messages."""
        queued = self._committer.submitted - self._committer.durable
        pending = self._committer.pending_bytes
        if not essential:
            pending += self.kept_for_settles()
        left = self._writer.admit(size + pending, essential=essential, entries=entries + queued)
        return left if left is None else max(0, left - pending)

    def admits_settle(self, messages: int) -> bool:
        """Return whether an entry that settles so many messages fits; else leases do not end by time."""
        return self.left(self.bytes_of_settle(messages), 1, essential=True) is None

    def bytes_of_settle(self, messages: int) -> int:
        """Return the most bytes of an entry that settles so many messages, with what opening may need."""
        return ENTRY_HEAD_BYTES + 64 * messages + self._openings

    def admits_expiry(self, size: int) -> bool:
        """Return whether an entry with operations of so many bytes fits; else messages stay, though they expired.

        The room for settles is left: dead letters free nothing, and without a settle nothing else would.
        """
        whole = ENTRY_HEAD_BYTES + size
        others = self._openings + self._for_settles()
        return whole <= self._writer.entry_bytes_max and self.left(whole + others, 1, essential=True) is None

    def kept_for_settles(self) -> int:
        """Return the room for settles of waiting messages that is not in the reserve of the writer."""
        return max(0, self._waiting_settles() - self._settles_min)

    def _for_settles(self) -> int:
        return max(self._waiting_settles(), self._settles_min)

    def _waiting_settles(self) -> int:
        """Return the bytes of settles of the messages in memory.

        A file of the journal is deleted when all its messages are settled, and until then each may take an entry of its
        own.
        """
        return min(SETTLE_BYTES * self._store.cached_messages, self._settles_max)
