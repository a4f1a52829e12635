"""A journal in memory, for brokers without a directory, tests and the simulator.

It is lost with the process, but otherwise behaves exactly like a durable engine. The engine object is the shard: a
second `open` finds the entries of the first, and fences its writer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

import pyarrow as pa

from wherry.journal.disk.files import Bytes
from wherry.journal.engine import Appended, AppendFenced, AppendResult, EntryTooLarge, ProvenPosition, Record, Writer
from wherry.journal.format import byte_count
from wherry.model.errors import Closed

ENTRY_BYTES_MAX: Final = 32 << 20


class MemoryEngine:
    """One shard, kept as long as this object.

    Parameters
    ----------
    bytes_max
        Bytes of entries at which new messages are refused; None for no bound. Essential entries are always admitted:
        they lead to trims, and there is no reserved space as on a disk.
    entry_bytes_max
        The largest entry.
    """

    def __init__(self, *, bytes_max: int | None = None, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.entry_bytes_max = entry_bytes_max
        self.records: deque[Record] = deque()
        self.last = 0
        self.stored_bytes = 0
        self.owner: MemoryWriter | None = None

    async def open(self, proven_position: ProvenPosition | None = None) -> Writer:
        """Take the shard from its current writer."""
        self.owner = MemoryWriter(self)
        return self.owner

    async def read(self, start: int) -> AsyncIterator[Record]:
        for record in tuple(self.records):
            if record.position >= start:
                yield record


class MemoryWriter:
    """The writer of a `MemoryEngine`, until another one is opened."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._closed = False
        self.last = engine.last
        self.entry_bytes_max = engine.entry_bytes_max
        self.reserve_bytes = self.file_bytes = 0
        self.syncs = False

    def admit(self, new_bytes: int, *, essential: bool, entries: int = 1) -> int | None:
        """See `Writer.admit`. Entries have no overhead here."""
        if essential or self._engine.bytes_max is None:
            return None
        left = max(0, self._engine.bytes_max - self._engine.stored_bytes)
        return None if new_bytes <= left else left

    async def make_room(self, new_bytes: int, entries: int = 1) -> bool:
        """See `Writer.make_room`. There is nothing to allocate."""
        return self.admit(new_bytes, essential=False, entries=entries) is None

    def append_at_once(self, bodies: Sequence[Sequence[Bytes]], expected: int) -> Appended | None:
        """See `Writer.append_at_once`. Memory never keeps a caller waiting."""
        outcome = None if self._closed else self._append(bodies, expected)
        return outcome if isinstance(outcome, Appended) else None

    async def append(self, bodies: Sequence[Sequence[Bytes]], expected: int) -> AppendResult:
        if self._closed:
            raise Closed("the journal is closed")
        return self._append(bodies, expected)

    def _append(self, bodies: Sequence[Sequence[Bytes]], expected: int) -> AppendResult:
        engine = self._engine
        if engine.owner is not self or expected != engine.last:
            return AppendFenced(engine.last)
        if any(byte_count(parts) > self.entry_bytes_max for parts in bodies):
            return EntryTooLarge(self.entry_bytes_max)
        for parts in bodies:
            # Joined, because a chunk may be a slice that would keep a much larger buffer alive.
            body = pa.py_buffer(b"".join(parts))
            engine.last += 1
            engine.stored_bytes += body.size
            engine.records.append(Record(engine.last, body))
        self.last = engine.last
        return Appended(engine.last)

    async def reconcile(self) -> int:
        return self._engine.last

    async def trim(self, before: int) -> None:
        records = self._engine.records
        while records and records[0].position < before:
            self._engine.stored_bytes -= len(records.popleft().body)

    def is_short(self) -> bool:
        """Return False: there is no disk."""
        return False

    def reclaimable(self, before: int) -> int:
        return sum(len(record.body) for record in self._engine.records if record.position < before)

    def edges(self) -> list[int]:
        return [record.position + 1 for record in self._engine.records]

    def stored_bytes(self) -> int:
        return self._engine.stored_bytes

    async def close(self) -> None:
        self._closed = True
        if self._engine.owner is self:
            self._engine.owner = None
