"""Messages on lease, as an Arrow batch and one by one, and the calls that settle them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.model import check, limits
from wherry.model.errors import InvalidInput, StaleLease, WherryError

Int64: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = Sequence[int] | Int64 | None
"""Which messages of a batch: row numbers, or None for all that are not settled yet."""

LEASE = "lease"


class BatchRequests(Protocol):
    """Settles leases of one subscription of a broker."""

    async def settle(self, verb: str, receipts: list[str], **fields: object) -> None:
        """Settle all of these receipts in one call, or none."""


class Acks(Protocol):
    """Collects acks, to send them together."""

    def note(self, batch: Batch) -> None:
        """Note that rows of a batch are done: their acks are sent soon."""

    async def sent(self, batch: Batch) -> None:
        """Wait until the rows that are done now are durable."""


class Batch:
    """Messages on lease. A row that is settled twice is sent once; if another consumer has it, `StaleLease`."""

    __slots__ = (
        "_columns",
        "_leases",
        "_requests",
        "_settled",
        "acks",
        "data",
        "done",
        "done_all",
        "lost",
        "on_end",
        "open",
    )

    def __init__(self, requests: BatchRequests, pulled: pa.RecordBatch, *, acks: bool = True) -> None:
        self._requests = requests
        self._leases: Int64 = np.asarray(pulled.column(LEASE), np.int64)
        self.data: pa.RecordBatch = pulled.drop_columns([LEASE])
        """The messages: the columns of a message that any of them has, then `partition` and `attempt`."""
        self.open = len(self._leases) if acks else 0
        """Messages not settled yet."""
        self._settled: npt.NDArray[np.bool_] | None = None if acks else np.ones(len(self._leases), np.bool_)
        self.lost: WherryError | None = None
        """Why the lease has ended, if it has."""
        self.done: list[int] = []
        """Rows whose ack is yet to be sent."""
        self.done_all = False
        self.acks: Acks | None = None
        self.on_end: Callable[[Batch, int], None] | None = None
        self._columns: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._leases)

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
            has = name in self.data.schema.names
            found = self.data.column(name).to_pylist() if has else [None] * len(self)
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
        await self._requests.settle("renew", self.leases(), lease_ms=lease_ms)

    async def stage_ack(self, key: str, rows: Rows = None) -> None:
        """Ack messages when the transaction `key` is committed; the lease must still hold then."""
        await self._settle(f"stage:{key}", rows)

    async def _settle(self, verb: str, rows: Rows, **fields: object) -> None:
        claimed = self.claim(rows)
        if claimed is None:
            return
        await self.carry_out(claimed, self._requests.settle(verb, self.receipts(claimed), **fields))

    def claim(self, rows: Rows = None) -> Int64 | None:
        """Mark rows as being settled, so that no other call settles them, and return them; None if all were marked."""
        if self.lost is not None:
            raise self.lost
        if self._settled is None:
            self._settled = np.zeros(len(self), np.bool_)
        if rows is None:
            free = np.flatnonzero(~self._settled)
        else:
            allowed = f"row numbers from 0 to {len(self) - 1}, at least one"
            wanted = check.whole_numbers("rows", rows, allowed)
            if wanted[0] < 0 or wanted[-1] >= len(self):
                raise InvalidInput("rows", rows, allowed)
            free = wanted[~self._settled[wanted]]
        self._settled[free] = True
        return free if len(free) else None

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
        return self._settled is None or not self._settled.all()

    def unclaim(self, rows: Int64) -> None:
        """Unmark rows that were not settled."""
        assert self._settled is not None
        self._settled[rows] = False

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

    # ------------------------------------------------------------------------------------------------------ receipts

    def leases(self) -> list[str]:
        """Return receipts for all messages, one for each lease."""
        if len(self._leases) and self._leases[0] == self._leases[-1] and (self._leases == self._leases[0]).all():
            return [str(self._leases[0])]
        return [str(lease) for lease in np.unique(self._leases).tolist()]

    def receipts(self, rows: Int64) -> list[str]:
        """Return receipts for some rows: ranges of offsets for each lease."""
        if len(rows) == len(self):
            return self.leases()
        lease, offset = self._leases[rows], np.asarray(self.data.column("offset"), np.int64)[rows]
        order = np.lexsort((offset, lease))
        lease, offset = lease[order], offset[order]
        breaks = np.flatnonzero((np.diff(lease) != 0) | (np.diff(offset) != 1))
        first = offset[np.concatenate(([0], breaks + 1))].tolist()
        last = offset[np.append(breaks, len(offset) - 1)].tolist()
        of = lease[np.concatenate(([0], breaks + 1))].tolist()
        return [f"{t}:{a}" if a == b else f"{t}:{a}-{b}" for t, a, b in zip(of, first, last, strict=True)]


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
        batch.done.append(self.row)
        if len(batch.done) == 1 or len(batch.done) == batch.open:
            batch.acks.note(batch)

    async def ack(self) -> None:
        """Ack it; durable on return. Acks of one turn of the event loop are one request."""
        batch = self.batch
        if batch.acks is None:
            await batch.ack([self.row])
            return
        if batch.lost is not None:
            raise batch.lost
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
