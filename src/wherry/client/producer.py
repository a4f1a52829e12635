"""Producers: publish messages one by one, gathered into batches; each batch is one request and one answer.

    publish ──► open batch ──► full, or lingered ──► queue ──► one request at a time ──► answer ──► pending messages
    └─ waits when the buffer is full ─┘                        └─ tried again, never stored twice

Each request carries the producer's name and the number of its first message. One that is sent again, because its answer
was lost with the connection, is answered with the offsets of the first; so nothing is lost and nothing is stored twice.
The broker takes the numbers of a producer in their order, which is why there is one request at a time: while it is
under way the next batches grow. `in_flight` above 1 adds senders with names of their own, and then the order of
messages is that of each sender only.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.client.frames import Columns
from wherry.client.link.backoff import Backoff
from wherry.client.link.errors import retry_after_s, returns
from wherry.client.native.rows import ROWS_FEW
from wherry.client.options import PRODUCER, ProducerOptions, producer_options
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.errors import Closed, DuplicateId, InvalidInput, TooLarge, WherryError
from wherry.model.schema import MESSAGE, Message, compact

if TYPE_CHECKING:
    from wherry.client.client import Client

Int64: TypeAlias = npt.NDArray[np.int64]

TROUBLED_MAX = 100
"""Batches with refusals that are kept until `flush` raises one of them."""

OUTSIDE = "a producer publishes inside its `async with`"

TYPES: dict[str, type] = {"id": str, "key": str, "priority": int, "due_ms": int, "expires_ms": int, "headers": dict}
TIMES = {"due_ms": "due", "expires_ms": "expires"}


class PendingMessage:
    """A message on its way."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: Gathered, row: int) -> None:
        self._batch = batch
        self._row = row

    async def stored(self) -> str:
        """Return the id of the message once it is on disk, or raise why it is not."""
        batch = self._batch
        batch.asked.add(self._row)
        if not batch.answered:
            await batch.wait()
        return batch.id_of(self._row)


class Gathered:
    """Messages that are sent together, column by column, and the answer to them."""

    __slots__ = ("answered", "asked", "columns", "errors", "ids", "offset", "partition", "payloads", "size", "waiter")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.columns: dict[str, list[Any]] = {}
        self.size = 0
        self.answered = False
        self.asked: set[int] = set()
        self.waiter: asyncio.Future[None] | None = None
        self.errors: dict[int, WherryError] = {}

    def put(self, row: int, fields: dict[str, Any]) -> None:
        """Put values that not every message has, of the right types, into their columns."""
        for name, value in fields.items():
            column = self.columns.setdefault(name, [])
            column.extend([None] * (row - len(column)))
            column.append(value)

    def batch(self) -> tuple[Int64, pa.RecordBatch]:
        """Return the rows that can be published, and those rows in columns; note an error for each of the others."""
        count = len(self.payloads)
        for column in self.columns.values():
            column.extend([None] * (count - len(column)))
        rows = np.arange(count)
        try:
            return rows, compact(self._columns())
        except (InvalidInput, pa.ArrowException, OverflowError, TypeError, UnicodeEncodeError):
            fine = [row for row in range(count) if self._is_fine(row)]
        messages = [self._message(row) for row in fine]
        return rows[fine], compact(messages) if messages else compact(b"").slice(0, 0)

    def _columns(self) -> pa.RecordBatch:
        columns = {"payload": pa.array(self.payloads, pa.binary())}
        for name, values in self.columns.items():
            if name in TIMES:
                columns[TIMES[name]] = pa.array(values, pa.int64()).view(MESSAGE.field(TIMES[name]).type)
            elif name == "headers":
                pairs = [None if value is None else list(value.items()) for value in values]
                columns[name] = pa.array(pairs, MESSAGE.field(name).type)
            else:
                columns[name] = pa.array(values, MESSAGE.field(name).type)
        return pa.RecordBatch.from_pydict(columns)

    def messages(self) -> list[bytes | str | Message]:
        """Return the messages one by one."""
        if not self.columns:
            return [*self.payloads]
        for column in self.columns.values():
            column.extend([None] * (len(self.payloads) - len(column)))
        return [self._message(row) for row in range(len(self.payloads))]

    def _message(self, row: int) -> Message:
        return Message(payload=self.payloads[row], **{name: column[row] for name, column in self.columns.items()})

    def _is_fine(self, row: int) -> bool:
        try:
            compact(self._message(row))
        except InvalidInput as fault:
            self.errors[row] = fault
        return row not in self.errors

    def begin(self) -> None:
        """Make room for the answer, before the batch is sent."""
        self.partition = np.zeros(len(self.payloads), np.int64)
        self.offset = np.zeros(len(self.payloads), np.int64)

    def finish(self) -> None:
        """Note that every message is stored or refused, and wake the callers that wait for it."""
        self.ids = self.columns.get("id")
        self.payloads, self.columns = [], {}
        self.answered = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until it is answered; one future for all callers."""
        if self.waiter is None:
            self.waiter = asyncio.get_running_loop().create_future()
        await asyncio.shield(self.waiter)

    def id_of(self, row: int) -> str:
        """Return the id of a message, or raise its error."""
        if row in self.errors:
            raise self.errors[row]
        own = self.ids[row] if self.ids is not None else None
        return own or f"{self.partition[row]}-{self.offset[row]}"


class Producer:
    """Publishes messages one by one; made by `Client.producer`, used in `async with`."""

    def __init__(self, client: Client, topic: str, **options: Unpack[ProducerOptions]) -> None:
        chosen = producer_options(options)
        self.name = f"{chosen.get('name', 'python')}-{secrets.token_hex(8)}"
        self._client, self._topic = client, topic
        self._linger_s = chosen["linger_ms"] / 1000
        self._buffer_messages, self._buffer_bytes = chosen["buffer_messages"], chosen["buffer_bytes"]
        self._batch_messages = min(chosen["batch_messages"], self._buffer_messages)
        self._batch_bytes = min(chosen["batch_bytes"], self._buffer_bytes)
        self._in_flight, self._patience_s = chosen["in_flight"], chosen["patience_s"]
        self._open = Gathered()
        self._queue: deque[Gathered] = deque()
        self._under_way: dict[Gathered, None] = {}
        self._held_messages = self._held_bytes = 0  # in the queue and under way
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._senders: list[asyncio.Task[None]] = []
        self._troubled: deque[Gathered] = deque(maxlen=TROUBLED_MAX)
        self._closed = True  # until it is entered
        self.stored = 0
        """Messages that are on disk, as far as the broker has answered."""

    async def __aenter__(self) -> Producer:
        self._loop = asyncio.get_running_loop()
        self._closed = False
        names = [self.name, *(f"{self.name}/{number}" for number in range(1, self._in_flight))]
        self._senders = [asyncio.create_task(self._send_all(name), name=f"wherry send {name}") for name in names]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True  # before anything else: no sender would take what came later
        self._room.set()
        try:
            await self.flush()
        except WherryError:
            if fault is None:
                raise
        finally:
            for task in self._senders:
                task.cancel()
            await asyncio.gather(*self._senders, return_exceptions=True)
            for gathered in [*self._under_way, *self._queue]:  # only if the flush was cancelled
                gathered.errors = dict.fromkeys(range(len(gathered.payloads)), Closed("the producer was closed"))
                gathered.finish()

    async def publish(
        self,
        payload: bytes | str,
        *,
        id: str | None = None,  # noqa: A002  the word of the message's field
        key: str | None = None,
        priority: int | None = None,
        due_ms: int | None = None,
        expires_ms: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> PendingMessage:
        """Send a message; wait only while the buffer is full. The pending message that is returned has its outcome.

        Refusals that no caller asked a pending message about are raised by `flush` and at the end of the producer; from
        then on the producer takes nothing (`Closed`).
        """
        if self._closed:
            raise Closed(OUTSIDE)
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        fields = fields_of(id, key, priority, due_ms, expires_ms, headers)
        if not self._open.payloads and self._is_full():
            await self.wait_for_room()
        pending = self.put(payload, fields)
        if not self._open.payloads:  # it was the last of its batch
            await asyncio.sleep(0)  # else a busy caller would never let it be sent
        return pending

    async def wait_for_room(self) -> None:
        """Wait until there is room for one more message; raise `Closed` if the producer is closed."""
        while not self._open.payloads and self._is_full() and not self._closed:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            raise Closed(OUTSIDE)

    def put(self, payload: bytes, fields: dict[str, Any]) -> PendingMessage:
        """Take a message that there is room for, and whose fields were checked."""
        batch = self._open
        row = len(batch.payloads)
        if row == 0:
            self._linger()
        if fields:
            batch.put(row, fields)
        batch.payloads.append(payload)
        batch.size += len(payload)
        if row + 1 >= self._batch_messages or batch.size >= self._batch_bytes:
            self._seal()
        return PendingMessage(batch, row)

    async def flush(self) -> None:
        """Wait until everything published so far is stored; raise the first refusal that no caller has seen."""
        if self._open.payloads:
            self._seal()
        waiting = [*self._under_way, *self._queue]
        for batch in waiting:
            if not batch.answered:
                await batch.wait()
        unseen = [fault for each in self._troubled for row, fault in each.errors.items() if row not in each.asked]
        self._troubled.clear()
        if unseen:
            if len(unseen) > 1:
                unseen[0].add_note(f"{len(unseen)} messages were not published; this is why the first was not")
            raise unseen[0]

    @property
    def held_messages(self) -> int:
        """How many messages are published and not answered yet."""
        return self._held_messages + len(self._open.payloads)

    # -------------------------------------------------------------------------------------------------------- gather

    def _is_full(self) -> bool:
        """Return whether one more whole batch would exceed the buffer."""
        return (
            self._held_messages + self._batch_messages > self._buffer_messages
            or self._held_bytes + self._batch_bytes > self._buffer_bytes
        )

    def _linger(self) -> None:
        """Have the batch sent after the linger at the latest; called with its first message."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._linger_s, self._lingered)

    def _lingered(self) -> None:
        self._timer = None
        # While requests are under way the batch may grow: the sender that is done next takes it as it is then.
        if len(self._under_way) < self._in_flight:
            self._wake.set()

    def _seal(self) -> None:
        """Close the open batch, and queue it to be sent."""
        batch, self._open = self._open, Gathered()
        self._held_messages += len(batch.payloads)
        self._held_bytes += batch.size
        self._queue.append(batch)
        self._wake.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _take(self) -> Gathered:
        while True:
            if not self._queue and self._open.payloads and self._timer is None:
                self._seal()
            if self._queue:
                return self._queue.popleft()
            self._wake.clear()
            await self._wake.wait()

    # ---------------------------------------------------------------------------------------------------------- send

    async def _send_all(self, name: str) -> None:
        sequence = 0
        while True:
            gathered = await self._take()
            self._under_way[gathered] = None
            count, size = len(gathered.payloads), gathered.size
            gathered.begin()
            try:
                await self._send(gathered, name, sequence)
            except Exception as fault:  # a fault of the client must not leave a caller waiting
                why = fault if isinstance(fault, WherryError) else WherryError(f"a fault of the client: {fault!r}")
                gathered.errors = dict.fromkeys(range(count), why)
            sequence += count
            self._finished(gathered, count, size)

    def _finished(self, gathered: Gathered, count: int, size: int) -> None:
        self.stored += count - len(gathered.errors)
        if gathered.errors:
            self._troubled.append(gathered)
        gathered.finish()
        del self._under_way[gathered]
        self._held_messages -= count
        self._held_bytes -= size
        self._room.set()

    async def _send(self, gathered: Gathered, name: str, sequence: int) -> None:
        """Send a batch; halve it around a message that is refused, so that it is refused alone."""
        if len(gathered.payloads) <= ROWS_FEW and self._client.native is not None:
            with suppress(InvalidInput, DuplicateId, TooLarge):  # nothing is stored: the refused message is looked for
                await self._send_few(gathered, PublishOptions(producer=name, sequence=sequence))
                return
        rows, whole = gathered.batch()
        pieces = deque([(0, len(rows))] if len(rows) else [])
        while pieces:
            start, stop = pieces.popleft()
            options = PublishOptions(producer=name, sequence=sequence + start)
            piece = whole.slice(start, stop - start)
            try:
                placed = await publish_again(self._client, self._topic, piece, options, self._patience_s)
            except WherryError as fault:
                if stop - start > 1 and isinstance(fault, InvalidInput | DuplicateId | TooLarge):
                    middle = (start + stop) // 2
                    pieces.extendleft([(middle, stop), (start, middle)])
                else:
                    gathered.errors |= dict.fromkeys(rows[start:stop].tolist(), fault)
            else:
                gathered.partition[rows[start:stop]] = placed.partition
                gathered.offset[rows[start:stop]] = placed.offset

    async def _send_few(self, gathered: Gathered, options: PublishOptions) -> None:
        """Send a few messages as they are, without making columns of them."""
        placed = await publish_again(self._client, self._topic, gathered.messages(), options, self._patience_s)
        gathered.partition, gathered.offset = placed.partition, placed.offset


async def publish_again(
    client: Client,
    topic: str,
    batch: Columns,
    options: PublishOptions,
    patience_s: float = PRODUCER["patience_s"],
) -> Published:
    """Publish under a producer's name, again while the broker is away; stored once, however often it is sent."""
    backoff, loop = Backoff(), asyncio.get_running_loop()
    until = loop.time() + patience_s
    while True:
        try:
            return await client.publish(topic, batch, options)
        except WherryError as fault:
            left_s = until - loop.time()
            if not returns(fault) or left_s < 0:
                raise
            after_s = retry_after_s(fault)
        await backoff.pause(min(after_s, left_s))


def fields_of(
    id: str | None = None,  # noqa: A002  the word of the message's field
    key: str | None = None,
    priority: int | None = None,
    due_ms: int | None = None,
    expires_ms: int | None = None,
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return the fields that are given; raise `InvalidInput` for a value of another type."""
    if key is None and id is None and headers is None and due_ms is None and priority is None and expires_ms is None:
        return {}
    fields = {"id": id, "key": key, "priority": priority, "due_ms": due_ms, "expires_ms": expires_ms}
    given = {name: value for name, value in {**fields, "headers": headers}.items() if value is not None}
    for name, value in given.items():
        if type(value) is not TYPES[name]:
            raise InvalidInput(name, value, f"{TYPES[name].__name__}, or None")
    return given


def as_bytes(payload: object) -> bytes:
    """Return a payload as bytes, or raise `InvalidInput`."""
    if isinstance(payload, str):
        try:
            return payload.encode()
        except UnicodeEncodeError:
            raise InvalidInput("payload", payload, "bytes, or text that is valid Unicode") from None
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise InvalidInput("payload", payload, "bytes or text")
