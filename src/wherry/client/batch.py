"""Messages on lease, as an Arrow batch and one by one, and the calls that settle them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.client.link.errors import returns
from wherry.model import check, limits
from wherry.model.errors import InvalidInput, StaleLease, WherryError

Int64: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = Sequence[int] | Int64 | None
"""Which messages of a batch: row numbers, or None for all that are not settled yet."""

LEASE = "lease"

LeaseParts: TypeAlias = list[tuple[int, list[tuple[int, int]]]]
"""Messages by their leases: a token, and `(first offset, messages)` of its ranges; no range for the whole lease."""


class BatchRequests(Protocol):
    """Settles leases of one subscription of a broker."""

    async def settle(self, verb: str, parts: LeaseParts, **fields: object) -> None:
        """Settle all of these messages in one call, or none."""


class AckStream(Protocol):
    """Sends an ack at once, where the broker pushed the message."""

    def ack(self, message: Leased) -> asyncio.Future[None]:
        """Ack a message whose row was claimed; what becomes of the row is noted in its batch with the answer."""


class Acks(Protocol):
    """Collects acks, to send them together."""

    stale: int
    """Acks that came too late."""

    def send_alone(self, message: Leased, answer: asyncio.Future[None]) -> None:
        """Follow an ack that was sent by itself, and that no caller waits for."""

    def note(self, batch: Batch) -> None:
        """Note that rows of a batch are done: their acks are sent soon."""

    async def sent(self, batch: Batch) -> None:
        """Wait until the rows that are done now are durable."""


class Batch:
    """Messages on lease. A row that is settled twice is sent once; if another consumer has it, `StaleLease`."""

    __slots__ = (
        "_columns",
        "_pulled",
        "_settled",
        "acks",
        "count",
        "done",
        "done_all",
        "lost",
        "on_end",
        "open",
        "requests",
        "stream",
    )

    def __init__(self, requests: BatchRequests, pulled: pa.RecordBatch | None, count: int, *, acks: bool) -> None:
        self.requests = requests
        """Settles its messages."""
        self._pulled = pulled
        self.count = count
        """Messages, settled or not."""
        self.open = count if acks else 0
        """Messages not settled yet."""
        self._settled = bytearray() if acks else bytearray(b"\1") * count
        """1 for each row that is settled or being settled; empty until the first is. Bytes: quick for single rows."""
        self.lost: WherryError | None = None
        """Why the lease has ended, if it has."""
        self.done: list[int] = []
        """Rows whose ack is yet to be sent."""
        self.done_all = False
        self.acks: Acks | None = None
        self.stream: AckStream | None = None
        """Set where the broker pushed the messages and waits for their acks."""
        self.on_end: Callable[[Batch, int], None] | None = None
        self._columns: dict[str, list[Any]] = {}

    @staticmethod
    def pulled(requests: BatchRequests, pulled: pa.RecordBatch, *, acks: bool = True) -> Batch:
        """Return messages that came as columns, the lease of each among them."""
        return Batch(requests, pulled, pulled.num_rows, acks=acks)

    def __len__(self) -> int:
        return self.count

    @property
    def data(self) -> pa.RecordBatch:
        """The messages: the columns of a message that any of them has, then `partition` and `attempt`."""
        return self._table.drop_columns([LEASE])

    @property
    def _table(self) -> pa.RecordBatch:
        """The messages in columns, the lease of each among them."""
        assert self._pulled is not None
        return self._pulled

    def __iter__(self) -> Iterator[Leased]:
        return iter(self.messages())

    def messages(self) -> list[Leased]:
        """Return the messages one by one."""
        return [Leased(self, row, payload) for row, payload in enumerate(self.column("payload"))]

    def payloads(self) -> list[bytes]:
        """Return the payloads alone."""
        return self.column("payload")

    def column(self, name: str) -> list[Any]:
        """Return a column as a list, made once; all None if no message has it."""
        found = self._columns.get(name)
        if found is None:
            table = self._table
            found = table.column(name).to_pylist() if name in table.schema.names else [None] * len(self)
            self._columns[name] = found
        return found

    # -------------------------------------------------------------------------------------------------------- settle

    def ack_later(self) -> None:
        """Ack all messages soon, together with others; closing the consumer waits for it."""
        if self.acks is None:
            raise InvalidInput("ack_later", self, "a batch that a consumer handed out; a pulled one is acked at once")
        self.done_all = True
        self.acks.note(self)

    async def ack(self, rows: Rows = None) -> None:
        """Ack messages; durable on return."""
        await self._settle("ack", rows)

    async def nack(self, rows: Rows = None, *, delay_ms: int | None = None, error: str = "") -> None:
        """Report that messages failed: they come back by the retry policy, or after `delay_ms`, or are dead letters."""
        await self._settle("nack", rows, delay_ms=delay_ms, error=error)

    async def dead_letter(self, rows: Rows = None, *, reason: str = "rejected", error: str = "") -> None:
        """Make messages dead letters at once."""
        await self._settle("dead-letter", rows, reason=reason, error=error)

    async def release(self, rows: Rows = None) -> None:
        """Give messages back: they wait again, and no attempt is counted."""
        await self._settle("release", rows)

    async def renew(self, lease_ms: int | None = None) -> None:
        """Renew the leases of all messages, for `lease_ms` or the lease of the subscription."""
        await self.requests.settle("renew", self.leases(), lease_ms=lease_ms)

    async def stage_ack(self, key: str, rows: Rows = None) -> None:
        """Ack messages when the transaction `key` is committed; the lease must still hold then."""
        await self._settle(f"stage:{key}", rows)

    async def _settle(self, verb: str, rows: Rows, **fields: object) -> None:
        claimed = self.claim(rows)
        if claimed is None:
            return
        await self.carry_out(claimed, self.requests.settle(verb, self.parts(claimed), **fields))

    def claim(self, rows: Rows = None) -> Int64 | None:
        """Mark rows as being settled, so that no other call settles them, and return them; None if all were marked."""
        if self.lost is not None:
            raise self.lost
        settled = np.frombuffer(self._marks(), np.bool_)
        if rows is None:
            free = np.flatnonzero(~settled)
        else:
            allowed = f"row numbers from 0 to {len(self) - 1}, at least one"
            wanted = check.whole_numbers("rows", rows, allowed)
            if wanted[0] < 0 or wanted[-1] >= len(self):
                raise InvalidInput("rows", rows, allowed)
            free = wanted[~settled[wanted]]
        settled[free] = True
        return free if len(free) else None

    def claim_row(self, row: int) -> bool:
        """Mark one row as being settled; return False if it was."""
        if not self._settled:
            self._settled = bytearray(self.count)
        if self._settled[row]:
            return False
        self._settled[row] = 1
        return True

    def _marks(self) -> bytearray:
        if not self._settled:
            self._settled = bytearray(self.count)
        return self._settled

    async def carry_out(self, rows: Int64, call: Awaitable[None]) -> None:
        """Settle claimed rows by this call; if it fails and the lease still holds, they can be settled again."""
        try:
            await call
        except StaleLease as fault:
            self.lose(fault)
            raise
        except BaseException:
            self.unclaim(rows)
            raise
        self.end(len(rows))

    def unclaimed(self) -> bool:
        """Return whether some rows are neither settled nor being settled."""
        return not self._settled or 0 in self._settled

    def unclaim(self, rows: Int64) -> None:
        """Unmark rows that were not settled."""
        np.frombuffer(self._marks(), np.bool_)[rows] = False

    def acked(self, row: int, fault: WherryError | None) -> None:
        """Note the answer to an ack that was sent by itself, which may come when no call waits for it any more."""
        if fault is None:
            self.end(1)
        elif isinstance(fault, StaleLease):
            if self.acks is not None:
                self.acks.stale += 1
            self.lose(fault)
        else:
            self._marks()[row] = 0

    def end(self, count: int) -> None:
        """Count rows as settled."""
        count = min(count, self.open)  # a lease that was lost meanwhile has ended for all of them
        self.open -= count
        if self.on_end is not None:
            self.on_end(self, count)

    def lose(self, fault: WherryError) -> None:
        """Note that the lease has ended: rows that are not settled are delivered to another consumer."""
        if self.lost is None:
            self.lost = fault
            self.end(self.open)

    # -------------------------------------------------------------------------------------------------------- leases

    def leases(self) -> LeaseParts:
        """Return the whole leases of all messages."""
        leases = self._int64(LEASE)
        if len(leases) and leases[0] == leases[-1] and (leases == leases[0]).all():
            return [(int(leases[0]), [])]
        return [(lease, []) for lease in np.unique(leases).tolist()]

    def parts(self, rows: Int64) -> LeaseParts:
        """Return some rows as ranges of offsets for each lease; whole leases for all rows."""
        if len(rows) == self.count:
            return self.leases()
        if len(rows) == 1:
            return [self.lease_of(int(rows[0]))]
        lease, offset = self._int64(LEASE)[rows], self._int64("offset")[rows]
        order = np.lexsort((offset, lease))
        lease, offset = lease[order], offset[order]
        breaks = np.flatnonzero((np.diff(lease) != 0) | (np.diff(offset) != 1)) + 1
        starts = np.concatenate(([0], breaks))
        counts = np.diff(np.append(starts, len(offset)))
        parts: LeaseParts = []
        for token, first, count in zip(lease[starts].tolist(), offset[starts].tolist(), counts.tolist(), strict=True):
            if not parts or parts[-1][0] != token:
                parts.append((token, []))
            parts[-1][1].append((first, count))
        return parts

    def lease_of(self, row: int) -> tuple[int, list[tuple[int, int]]]:
        """Return one row as a part of its lease."""
        return self.column(LEASE)[row], [(self.column("offset")[row], 1)]

    def _int64(self, name: str) -> Int64:
        return np.asarray(self._table.column(name), np.int64)


class View:
    """One message of a batch: its payload, and other columns when they are asked for. Times are Unix milliseconds."""

    __slots__ = ("batch", "payload", "row")

    def __init__(self, batch: Batch, row: int, payload: bytes) -> None:
        self.batch = batch
        self.row = row
        self.payload = payload

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, payload={self.payload[:40]!r}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        """The id that its producer gave, or its position as `partition-offset`."""
        return self.batch.column("id")[self.row] or f"{self.partition}-{self.offset}"

    @property
    def key(self) -> str | None:
        """The key, which messages are ordered by and partitions are chosen by."""
        return self.batch.column("key")[self.row]

    @property
    def priority(self) -> int:
        """0..65535, smallest first."""
        given = self.batch.column("priority")[self.row]
        return limits.PRIORITY_DEFAULT if given is None else given

    @property
    def due_ms(self) -> int | None:
        """When it was due."""
        return _ms(self.batch.column("due")[self.row])

    @property
    def published_ms(self) -> int | None:
        """When the broker stored it."""
        return _ms(self.batch.column("published")[self.row])

    @property
    def headers(self) -> dict[str, str]:
        """Text by name."""
        return dict(self.batch.column("headers")[self.row] or ())

    @property
    def partition(self) -> int:
        """The number of its partition."""
        return self.batch.column("partition")[self.row]

    @property
    def offset(self) -> int:
        """Its offset in the partition."""
        return self.batch.column("offset")[self.row]

    @property
    def attempt(self) -> int:
        """The number of this delivery attempt; 1 for the first."""
        return self.batch.column("attempt")[self.row]


class Leased(View):
    """One message on lease, and the calls that settle it."""

    __slots__ = ()

    def ack_later(self) -> None:
        """Ack it soon, together with others; closing the consumer waits for it. Costs next to nothing."""
        batch = self.batch
        if batch.acks is None:
            raise InvalidInput("ack_later", self, "a message that a consumer handed out; pulled ones are acked at once")
        stream = batch.stream
        # The ack of the only message of a push has no others to wait for.
        if stream is not None and batch.count == 1 and batch.lost is None and batch.claim_row(0):
            batch.acks.send_alone(self, stream.ack(self))
            return
        batch.done.append(self.row)
        if len(batch.done) == 1 or len(batch.done) == batch.open:
            batch.acks.note(batch)

    async def ack(self) -> None:
        """Ack it; durable on return. Acks of one turn of the event loop are sent together."""
        batch = self.batch
        if batch.acks is None:
            await batch.ack([self.row])
            return
        if batch.lost is not None:
            raise batch.lost
        if batch.stream is not None and batch.claim_row(self.row):
            try:
                await batch.stream.ack(self)
            except WherryError as fault:
                if not returns(fault):
                    raise
            else:
                return
        batch.done.append(self.row)
        await batch.acks.sent(batch)

    async def nack(self, *, delay_ms: int | None = None, error: str = "") -> None:
        """Report that it failed: see `Batch.nack`."""
        await self.batch.nack([self.row], delay_ms=delay_ms, error=error)

    async def dead_letter(self, *, reason: str = "rejected", error: str = "") -> None:
        """Make it a dead letter: see `Batch.dead_letter`."""
        await self.batch.dead_letter([self.row], reason=reason, error=error)

    async def release(self) -> None:
        """Give it back: see `Batch.release`."""
        await self.batch.release([self.row])


def _ms(time: Any) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)
