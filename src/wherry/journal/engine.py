"""What a journal promises, whoever keeps it.

A journal is a dense sequence of opaque entries, positions 1, 2, 3, …. One writer at a time; the fence is the
expected position on every append, the lease only decides who tries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from wherry.journal.disk.files import Bytes


class Record(NamedTuple):
    """One entry as read back: its position and its bytes."""

    position: int
    body: Bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """Durable up to and including `position`."""

    position: int


@dataclass(frozen=True, slots=True)
class AppendFenced:
    """Another writer was here: nothing of this group is stored."""

    actual: int


@dataclass(frozen=True, slots=True)
class AppendUnknown:
    """The group may or may not be stored. Never retry blindly: stop, `reconcile`, decide."""

    why: str


@dataclass(frozen=True, slots=True)
class EntryTooLarge:
    """One entry is above `bytes_max`: nothing of this group is stored."""

    bytes_max: int


AppendResult: TypeAlias = Appended | AppendFenced | AppendUnknown | EntryTooLarge


class Writer(Protocol):
    """The one appender of a shard."""

    last: int
    """Position of the last entry that is durable."""

    entry_bytes_max: int

    reserve_bytes: int
    """Kept back for essential entries."""

    file_bytes: int
    """What `trim` lets go at once: as long as it cannot, essential entries need room of their own."""

    def admit(self, new_bytes: int, *, essential: bool, entries: int = 1) -> int | None:
        """None when `new_bytes` more, in `entries` entries, can be appended for sure, else how many bytes are left.

        `new_bytes` counts everything that is not yet handed to `append`; what an `append` is writing at the moment
        is known here. Space is kept back for `essential` entries (settles, checkpoint marks), so that consuming goes
        on when publishing cannot.
        """

    async def make_room(self, new_bytes: int, entries: int = 1) -> bool:
        """Try to get room for `new_bytes` of new messages, waiting for the disk where that helps; whether there is now.

        Never raises for a full disk. Call it when `admit` said no, before refusing: a fast publisher may merely be
        ahead of the allocation in the background.
        """

    async def append(self, bodies: Sequence[Sequence[Bytes]], expected: int) -> AppendResult:
        """Append a group of entries with one sync; each entry is a list of parts. `expected` is the position before it.

        Raises
        ------
        DiskFull
            There is no room for the group, which `admit` would have said. Nothing of it is stored.
        WriterFailed
            The disk refused a write or a sync, now or earlier: open the journal again.
        """

    async def reconcile(self) -> int:
        """The position that is really last, after `AppendUnknown`; raises `WriterFailed` where that cannot be known."""

    async def trim(self, before: int) -> None:
        """Entries below `before` are not needed any more."""

    def is_short(self) -> bool:
        """Whether no more room can be had than there is: the disk has no space for another file."""

    def reclaimable(self, before: int) -> int:
        """Bytes of room that `trim(before)` would win."""

    def edges(self) -> list[int]:
        """Positions, ascending, at which `trim` wins something."""

    def stored_bytes(self) -> int:
        """Bytes of entries written since the last trim took hold: what recovery would have to read."""

    async def close(self) -> None: ...


Vouched: TypeAlias = Callable[[], Awaitable[int]]


class Engine(Protocol):
    """Keeps journals."""

    async def open(self, vouched: Vouched | None = None) -> Writer:
        """Take the shard: find the end of the journal, cut a torn tail, refuse a damaged middle with `Corrupt`.

        `vouched` is asked, once the shard is taken, which position must be there: a checkpoint may know of entries
        that nothing in the journal vouches for.
        """

    def read(self, start: int) -> AsyncIterator[Record]:
        """Entries from position `start` (or the first kept one, if later) to the end, in order, checked."""
