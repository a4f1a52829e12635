"""What every journal engine promises.

A journal is a dense sequence of opaque entries at positions 1, 2, 3, …. There is one writer at a time. Every append
names the position that it expects, and is refused if another writer has appended since: that is the fence.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from wherry.journal.disk.files import Bytes


class Record(NamedTuple):
    """One entry that was read: its position and its bytes."""

    position: int
    body: Bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """All entries up to and including `position` are durable."""

    position: int


@dataclass(frozen=True, slots=True)
class AppendFenced:
    """Another writer has appended: nothing of this group is stored."""

    actual: int


@dataclass(frozen=True, slots=True)
class AppendUnknown:
    """The group may or may not be stored. Do not repeat it: stop, and find out with `reconcile`."""

    why: str


@dataclass(frozen=True, slots=True)
class EntryTooLarge:
    """One entry is larger than `bytes_max`: nothing of this group is stored."""

    bytes_max: int


AppendResult: TypeAlias = Appended | AppendFenced | AppendUnknown | EntryTooLarge


class Writer(Protocol):
    """The one writer of a shard."""

    last: int
    """Position of the last durable entry."""

    entry_bytes_max: int

    reserve_bytes: int
    """Space reserved for essential entries."""

    file_bytes: int
    """The unit in which `trim` frees space. Until a whole unit can be freed, essential entries need reserved space."""

    syncs: bool
    """Whether an append waits for a medium, so that one for two entries is cheaper than two."""

    def admit(self, new_bytes: int, *, essential: bool, entries: int = 1) -> int | None:
        """Return None if `new_bytes` in `entries` entries can certainly be appended, else how many bytes can.

        `new_bytes` counts everything that was not yet given to `append`; the writer itself counts what an `append` is
        writing. Space is reserved for `essential` entries (settles, checkpoint marks), so that consumers can continue
        when publishing is refused.
        """

    async def make_room(self, new_bytes: int, entries: int = 1) -> bool:
        """Try to get space for `new_bytes` of new messages, waiting for the disk if that helps; return the success.

        Never raises for a full disk. Call it when `admit` returned a number, before a publish is refused: a fast
        producer may only be ahead of the allocation in the background.
        """

    async def append(self, bodies: Sequence[Sequence[Bytes]], expected: int) -> AppendResult:
        """Append a group of entries with one sync. Each entry is a list of chunks; `expected` is the position before.

        Raises
        ------
        DiskFull
            There is no space for the group, which `admit` would have reported. Nothing of it is stored.
        WriterFailed
            A write or a sync failed, now or earlier: open the journal again.
        """

    def append_at_once(self, bodies: Sequence[Sequence[Bytes]], expected: int) -> Appended | None:
        """Append a small group within the call, in the thread of the caller; None, with nothing written, if not now.

        A writer does so only where that takes a few hundred microseconds at most. Whatever `append` would refuse or
        wait for is left to it. Raises `WriterFailed` as `append` does.
        """

    async def reconcile(self) -> int:
        """Return the real last position after `AppendUnknown`; raise `WriterFailed` where that cannot be known."""

    async def trim(self, before: int) -> None:
        """Drop entries below `before`, which are not needed any more."""

    def is_short(self) -> bool:
        """Return whether the disk has no space for another file."""

    def reclaimable(self, before: int) -> int:
        """Return the bytes that `trim(before)` would free."""

    def edges(self) -> list[int]:
        """Return the positions, ascending, at which `trim` frees something."""

    def stored_bytes(self) -> int:
        """Return the bytes of entries since the last trim: what recovery would have to read."""

    async def close(self) -> None: ...


ProvenPosition: TypeAlias = Callable[[], Awaitable[int]]


class Engine(Protocol):
    """Stores journals."""

    async def open(self, proven_position: ProvenPosition | None = None) -> Writer:
        """Take the shard: find the end of the journal, cut a torn tail, raise `Corrupt` for damage before the end.

        `proven_position` is called once the shard is taken. It returns the position that a checkpoint proves to have
        been durable: the last entries of the journal cannot prove that themselves.
        """

    def read(self, start: int) -> AsyncIterator[Record]:
        """Yield the checked entries from position `start` (or from the first one that is kept) to the end, in order."""
