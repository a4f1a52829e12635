"""The delivery of messages to consumers: the rows of a delivery, which client holds which, and how they are settled.

No body is kept for a message that waits for an ack: only its lease, its offset and its size.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wherry.broker.port.consume import DeliveryPort, SettlerPort
from wherry.model.calls.lease import LeasePart
from wherry.model.errors import StaleLease, WherryError
from wherry.queueing.message.envelope import Label, Row, from_elsewhere, opened
from wherry.queueing.message.properties import replaced, used_properties
from wherry.queueing.message.table import Int64, with_entries

SettleVerb = Literal["ack", "requeue", "reject"]
"""Done; back to the queue at once; a dead letter, or dropped if the queue has no dead-letter exchange."""

HELD_MAX = 1 << 18
"""Messages that one connection may hold unsettled if its consumers have no limit of their own."""

HELD_BYTES_MAX = 1 << 30
"""The same in bytes of bodies. The bodies are in the memory of the client, not here."""

_log = logging.getLogger("wherry.queueing")


class Holding:
    """The messages that one connection was given and has not settled, counted by batches, never message by message.

    Messages of a consumer with a limit of its own (prefetch) are counted, but these bounds do not stop that consumer.
    One delivery may exceed the bounds.
    """

    __slots__ = ("_failed", "_relieved", "bytes", "messages")

    def __init__(self, relieved: Callable[[], None], failed: Callable[[WherryError], None] | None = None) -> None:
        self.messages = self.bytes = 0
        self._relieved, self._failed = relieved, failed

    def room(self) -> int:
        """Return how many messages more the connection may be given."""
        return 0 if self.bytes >= HELD_BYTES_MAX else max(0, HELD_MAX - self.messages)

    def add(self, messages: int, size: int) -> None:
        """Count messages that the connection was given."""
        self.messages += messages
        self.bytes += size

    def remove(self, messages: int, size: int) -> None:
        """Count messages that the connection has settled; call `relieved` if it has room again."""
        was_full = self.room() == 0
        self.messages -= messages
        self.bytes -= size
        if was_full and self.room():
            self._relieved()

    def failed(self, fault: WherryError) -> None:
        """Report that messages could not be settled, and will be delivered again."""
        if self._failed is not None:
            self._failed(fault)


class QueueDelivery:
    """One delivery of the broker: its rows are given to consumers, and settled by row number."""

    __slots__ = (
        "_bytes",
        "_holder_of_row",
        "_holders",
        "_marked",
        "_offsets",
        "_settler",
        "_sizes",
        "_then",
        "_token_of_row",
        "_tokens",
        "count",
    )

    def __init__(self, settler: SettlerPort, delivery: DeliveryPort, bodies: list[bytes]) -> None:
        self.count = len(bodies)
        self._settler = settler
        self._tokens = delivery.tokens
        self._token_of_row = delivery.lease_column() if len(self._tokens) > 1 else None
        self._offsets = delivery.offsets() if self.count > 1 else None
        """A column in memory of its own, so that it does not keep the bodies; a lone row is the whole delivery."""
        self._sizes = None if self.count == 1 else np.fromiter(map(len, bodies), np.int64, self.count)
        self._bytes = len(bodies[0]) if self._sizes is None else int(self._sizes.sum(dtype=np.int64))
        self._holders: list[Holding] = []
        self._holder_of_row: npt.NDArray[np.int32] | None = None
        """The number of each row's holder, -1 for none; None if one holder has all rows, or no row has one."""
        self._marked: dict[SettleVerb, list[int]] = {}
        self._then: list[Callable[[], None]] = []
        """Called when requeued rows wait in their place again."""

    # ------------------------------------------------------------------------------------------------- who holds what

    def give(self, rows: list[int], holding: Holding) -> None:
        """Hand rows over to a connection, which holds them until they are settled."""
        if len(rows) < self.count:
            if self._holder_of_row is None:
                self._holder_of_row = np.full(self.count, -1, np.int32)
            self._holder_of_row[rows] = len(self._holders)
        self._holders.append(holding)
        holding.add(len(rows), self._size(rows))

    def let_go(self, rows: list[int]) -> None:
        """Count rows out of the holdings of their connections."""
        for holding, mine in self._held(rows):
            holding.remove(len(mine), self._size(mine))

    def _held(self, rows: list[int]) -> Iterator[tuple[Holding, list[int] | npt.NDArray[np.int64]]]:
        """Yield each connection that has, or had, some of these rows, with those rows."""
        if self._holder_of_row is None:
            for holding in self._holders:
                yield holding, rows
            return
        holder_of_row = self._holder_of_row[rows]
        for number in np.unique(holder_of_row[holder_of_row >= 0]).tolist():
            yield self._holders[number], np.array(rows)[holder_of_row == number]

    def _size(self, rows: list[int] | npt.NDArray[np.int64]) -> int:
        if self._sizes is None or len(rows) == self.count:
            return self._bytes
        return int(self._sizes[rows].sum(dtype=np.int64))

    # ------------------------------------------------------------------------------------------------------- settling

    def parts(self, rows: list[int]) -> list[LeasePart]:
        """Return the tokens of these rows, each with its offsets; no row twice."""
        if len(rows) == self.count:
            return [(token, None) for token in self._tokens]
        assert self._offsets is not None
        offsets = self._offsets[rows]
        if self._token_of_row is None:
            return [(self._tokens[0], offsets)]
        tokens = self._token_of_row[rows]
        return [(token, offsets[tokens == token]) for token in np.unique(tokens).tolist()]

    def mark(self, verb: SettleVerb, rows: Iterable[int], then: Callable[[], None] | None = None) -> bool:
        """Note how to settle rows; return whether they are the first since the last `settle`.

        `then` is called when requeued rows are in their place in memory: what is pulled from there on sees them.
        """
        first = not self._marked
        self._marked.setdefault(verb, []).extend(rows)
        if then is not None:
            self._then.append(then)
        return first

    def ack_soon(self, acked: Callable[[list[int], BaseException | None], None]) -> bool:
        """Begin to settle the marked rows if all of them are acks, and call back; else return False.

        Most settles are acks, and a lone ack needs no task so.
        """
        if len(self._marked) > 1 or "ack" not in self._marked:
            return False
        rows = self._marked.pop("ack")
        self.let_go(rows)
        self._settler.ack_soon(self.parts(rows), partial(acked, rows))
        return True

    async def ack_each(self, rows: list[int]) -> None:
        """Ack rows one by one: those that are no longer on lease were settled over another wire, expired or purged."""
        for row in rows:
            with suppress(StaleLease):
                await self._settle("ack", [row])

    def failed(self, rows: list[int], fault: WherryError) -> None:
        """Report to the connections of rows that these could not be settled."""
        for holding, _ in self._held(rows):
            holding.failed(fault)

    async def settle(self) -> None:
        """Settle the rows that were marked since the last call."""
        marked, self._marked = self._marked, {}
        then, self._then = self._then, []
        for rows in marked.values():
            self.let_go(rows)
        try:
            await self._settle_all(marked, partial(_call_all, then))
        except WherryError as fault:
            self.failed([row for rows in marked.values() for row in rows], fault)
            raise
        finally:
            _call_all(then)  # called even if requeueing failed, since then nothing waits for it any more

    async def _settle_all(self, marked: dict[SettleVerb, list[int]], then: Callable[[], None]) -> None:
        """Settle one kind after the other, each durable before the next; requeues first: a queue waits for them."""
        for verb, rows in sorted(marked.items(), key=lambda each: each[0] != "requeue"):
            try:
                await self._settle(verb, rows, then)
            except StaleLease:  # some were settled over another wire, expired or purged: settle the others
                for row in rows:
                    with suppress(StaleLease):
                        await self._settle(verb, [row])

    async def _settle(self, verb: SettleVerb, rows: list[int], then: Callable[[], None] | None = None) -> None:
        parts = self.parts(rows)
        if verb == "ack":
            await self._settler.ack(parts)
        elif verb == "requeue":
            await self._settler.nack(parts, 0, "requeued", applied=then)
        else:
            await self._settler.dead_letter(parts, "rejected", "")

    def release(self, rows: list[int]) -> None:
        """Release rows that were not handed over after all."""
        with suppress(StaleLease):  # they were released already
            self._settler.release(self.parts(rows))

    def renew(self) -> None:
        """Renew the leases of the rows that are held."""
        for token in self._tokens:
            with suppress(StaleLease):  # all rows are settled
                self._settler.renew([token], None)


def queue_delivery_of(
    settler: SettlerPort, delivery: DeliveryPort, queue: str, old_below: int, *, counted: bool = False
) -> tuple[QueueDelivery, list[Row]]:
    """Return a queue delivery, and its messages as they are sent to clients; the messages are not kept.

    Messages with an offset below `old_below` may have been handed over before. With `counted`, each message has a
    header with the number of times that it was delivered before.
    """
    bodies, envelopes, attempts, old = _values(delivery, old_below)
    foreign = _Foreign(delivery, queue)
    labels: list[Label] = []
    label, last = None, None
    for row, seen in enumerate(zip(envelopes, attempts, old, strict=True)):
        if label is None or seen != last:  # most messages have the label of the one before
            envelope, attempt, is_old = last = seen
            label = _label(envelope, attempt, is_old, counted=counted)
        labels.append(label or foreign.label(row, seen[1] > 1 or seen[2]))
    return QueueDelivery(settler, delivery, bodies), list(zip(labels, bodies, strict=True))


def _values(delivery: DeliveryPort, old_below: int) -> tuple[list[bytes], list[bytes | None], list[int], list[bool]]:
    """Return the bodies, envelopes and attempts of messages, and whether each may have been handed over before."""
    rows = delivery.rows
    if rows is not None:
        return (
            [row.payload for row in rows],
            [row.envelope for row in rows],
            [row.attempt for row in rows],
            [row.offset < old_below for row in rows],
        )
    present = delivery.present
    bodies: list[bytes] = present.column("payload").to_pylist()
    known = "envelope" in present.schema.names
    envelopes = present.column("envelope").to_pylist() if known else [None] * len(bodies)
    old: list[bool] = (present.column("offset").to_numpy() < old_below).tolist()
    return bodies, envelopes, present.column("attempt").to_pylist(), old


def _label(envelope: bytes | None, attempt: int, is_old: bool, *, counted: bool) -> Label | None:
    """Return the label of a message; None if the message came over another wire."""
    found = opened(envelope)
    if found is None:
        return None
    exchange, key, raw = found
    if counted and attempt > 1:
        raw = _with_count(raw, attempt - 1)
    return attempt > 1 or is_old, exchange, key, raw


def _with_count(raw: bytes, count: int) -> bytes:
    """Return the properties with the number of earlier deliveries, as quorum queues have it."""
    return replaced(raw, "headers", with_entries(used_properties(raw).headers, {"x-delivery-count": Int64(count)}))


class _Foreign:
    """Messages that came over another wire, with labels made from their headers."""

    def __init__(self, delivery: DeliveryPort, queue: str) -> None:
        self._delivery, self._queue = delivery, queue
        self._columns: tuple[list[Any], list[Any]] | None = None

    def label(self, row: int, again: bool) -> Label:
        """Return a label with properties made from headers."""
        if self._columns is None:
            batch = self._delivery.batch
            self._columns = batch.column("headers").to_pylist(), batch.column("id").to_pylist()
        return again, "", self._queue, from_elsewhere(self._columns[0][row], self._columns[1][row])


class Settling:
    """Settles at the end of each turn of the loop: rows of a delivery that were added in the turn are one call."""

    def __init__(self) -> None:
        self._marked: dict[QueueDelivery, None] = {}
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._acks: dict[int, None] = {}
        """The numbers of acks that are under way without a task, ascending."""
        self._last_ack = 0
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Callers of `flush`, each with the number of the last ack that it waits for."""

    def add(
        self,
        queue_delivery: QueueDelivery,
        verb: SettleVerb,
        rows: Iterable[int],
        then: Callable[[], None] | None = None,
    ) -> None:
        """Settle rows of a delivery at the end of this turn; call `then` when requeued rows are in their place."""
        if queue_delivery.mark(verb, rows, then):
            self._marked[queue_delivery] = None
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._scheduled = False
        if self._marked:
            marked, self._marked = self._marked, {}
            others = [each for each in marked if not self._ack(each)]
            if others:
                self.run(_settle(each.settle() for each in others))

    def _ack(self, queue_delivery: QueueDelivery) -> bool:
        number = self._last_ack + 1
        if not queue_delivery.ack_soon(partial(self._acked, number, queue_delivery)):
            return False
        self._last_ack = number
        self._acks[number] = None
        return True

    def _acked(self, number: int, queue_delivery: QueueDelivery, rows: list[int], fault: BaseException | None) -> None:
        del self._acks[number]
        if isinstance(fault, StaleLease):
            if len(rows) > 1:
                self.run(_settle([queue_delivery.ack_each(rows)]))
        elif isinstance(fault, WherryError):  # any other is a fault of the broker, which reports it
            queue_delivery.failed(rows, fault)
            _log_not_settled(fault)
        while self._flushes and next(iter(self._acks), self._last_ack + 1) > self._flushes[0][0]:
            _, flushed = self._flushes.popleft()
            if not flushed.done():
                flushed.set_result(None)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, even if its caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait until everything that was added so far is settled."""
        self._end_of_turn()
        if self._acks:
            flushed = asyncio.get_running_loop().create_future()
            self._flushes.append((self._last_ack, flushed))
            await flushed
        if self._tasks:
            await asyncio.wait(set(self._tasks))


def _call_all(calls: list[Callable[[], None]]) -> None:
    """Call each once."""
    while calls:
        calls.pop()()


async def _settle(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Settle deliveries; the entries of all are submitted before the first is awaited."""
    for answer in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(answer, StaleLease):
            continue  # the queue was purged, deleted, or its messages expired
        if isinstance(answer, WherryError):
            _log_not_settled(answer)
        elif isinstance(answer, BaseException):
            raise answer


def _log_not_settled(fault: WherryError) -> None:
    _log.warning("messages were not settled, and will be delivered again", extra={"why": str(fault)})
