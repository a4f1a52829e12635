"""Consumers of STOMP: what a client is sent, what it has not taken or acked yet, and the buffer that it declared.

A client that declares a buffer (`wherry-buffer-messages`, `wherry-buffer-bytes`) is never sent more than fits into it.
*Held* is what was sent and not acked, or with `ack:auto` not known to have reached the client's machine. A client whose
buffer is full while more messages wait for it is cut off:

| queue | `ack:auto` | `ack:client`, `ack:client-individual` |
|---|---|---|
| shared (`/queue/`, durable subscriptions) | after `stall_s` without a byte taken | after `stall_s` without an ack |
| its own (`/topic/`, `/exchange/`) | the same, after `GRACE_S` if that is shorter | after `stall_s` without an ack |

There are two exceptions. A client of an own queue with `ack:auto` is cut off at once when `UNPACED_BYTES_MAX` wait on
its transport. A client that acks, with a `prefetch-count` within its buffer, is not cut off: it asked the broker to
wait for its acks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from wherry.queueing.flow.delivering import QueueDelivery, SettleVerb
from wherry.queueing.hosts.queue import PULL_MAX, Queue
from wherry.queueing.message.envelope import Row
from wherry.wire.stomp import codec
from wherry.wire.stomp.translate import message_lines

if TYPE_CHECKING:
    from wherry.wire.stomp.session import Session

CHECK_S, CHECK_S_MAX = 0.001, {"auto": 0.02, "client": 0.25, "client-individual": 0.25}
"""Seconds between two checks of a full buffer, from the first to the longest: the system does not notify of bytes
taken."""

GRACE_S = 2.0
"""A long network path may need this time to acknowledge bytes; a client that does not read uses it up."""

UNPACED_BYTES_MAX = 16 << 20
"""Bytes that may wait on the transport of a client for consumers that are not paused with the transport
(`_is_unpaced`), whatever buffer the client declared; exceeded by one delivery at most."""

BACKLOG_MESSAGES = 2
"""Messages that may wait in the own queue of a subscription, however large they are."""

SEPARATOR = "@@"

AckMode = Literal["auto", "client", "client-individual"]


class UnackedMessage(NamedTuple):
    """A message that the client has not settled: its number, a row of a delivery, its consumer, and its bytes."""

    tag: int
    queue_delivery: QueueDelivery
    row: int
    consumer: Consumer
    size: int


class Buffer(NamedTuple):
    """What a client can take, as it declared; None for any amount."""

    messages: int | None
    bytes: int | None

    def __str__(self) -> str:
        parts = (("wherry-buffer-messages", self.messages), ("wherry-buffer-bytes", self.bytes))
        return ", ".join(f"{name}:{value}" for name, value in parts if value is not None)


class Terms(NamedTuple):
    """What a SUBSCRIBE asks for."""

    tag: str
    """`T_` and the id; `Q_` and the destination if the client gave no id."""
    id: str | None
    destination: str
    ack: AckMode
    prefetch: int
    """Messages that may be unsettled; 0 for any number."""
    buffer: Buffer | None
    is_own: bool
    """Whether the queue belongs to this subscription alone, and is deleted with it."""


class Consumer:
    """One subscription of a session, which is a consumer of its queue."""

    priority = 0

    def __init__(self, session: Session, terms: Terms, queue: Queue) -> None:
        self.session, self.terms, self.queue = session, terms, queue
        self.unacked: dict[int, UnackedMessage] = {}
        """By number; empty with `ack:auto`."""
        self._order: deque[int] = deque()
        """With `ack:client`: the numbers of unsettled messages, ascending."""
        self.held_messages = self.held_bytes = 0
        """Sent and not acked, transactions included; with `ack:auto` sent and not taken."""
        self.delivered = 0
        self.is_over = False
        self.message_prefix = SEPARATOR.join((terms.tag, session.id, ""))
        """The prefix of its message ids."""
        self._head, self._message_id, self._ack = _fixed(session.version, terms, self.message_prefix)
        self._sent: deque[tuple[int, int, int]] = deque()
        """With a declared buffer and `ack:auto`: the bytes written after each write, its messages, its bytes."""
        self._is_next_too_large = False
        """Whether the next message does not fit into the bytes that are left."""
        self._full_since: float | None = None
        self._taken = 0
        """With `ack:auto`: the bytes that the client had taken at the last check of a full buffer."""
        self._check_timer: asyncio.TimerHandle | None = None
        if terms.is_own:
            session.intake.watched[queue.topic] = self.check_backlog

    # ---------------------------------------------------------------------------------------------------- for the queue

    def room(self) -> int:
        """Return how many messages the consumer may be given now."""
        session, terms = self.session, self.terms
        if self.is_over or session.is_over:
            return 0
        if session.is_write_paused:
            if not self._is_unpaced():
                session.was_write_paused = True
                return 0
            if self._is_capped():
                self._check_soon(CHECK_S)
                return 0
        if terms.ack == "auto":
            room = PULL_MAX
        elif terms.prefetch:
            room = terms.prefetch - self.held_messages
        else:
            room = session.holding.room()
        return room if terms.buffer is None else min(room, self._left(terms.buffer))

    def shares(self) -> None:
        """Return None: a consumer of STOMP shares no limit with others."""
        return None

    def take(self, queue_delivery: QueueDelivery, rows: list[int], messages: list[Row]) -> None:
        """Send rows of a delivery to the client, in one write."""
        frames, kept = self._framed(rows, messages)
        if len(kept) < len(rows):  # the others do not fit into its bytes
            self._is_next_too_large = True
            queue_delivery.release(rows[len(kept) :])  # before the next pull, so that none overtakes them
        if kept:
            self._send(queue_delivery, kept, frames)
        if self.terms.buffer is not None and self._left(self.terms.buffer) <= 0:
            self._check_soon(CHECK_S)

    def _send(self, queue_delivery: QueueDelivery, kept: list[int], frames: list[bytes]) -> None:
        session, auto = self.session, self.terms.ack == "auto"
        self.delivered += len(kept)
        if auto:
            session.settling.add(queue_delivery, "ack", kept)
        else:
            queue_delivery.give(kept, session.holding)
            first = session.next_tag - len(kept)
            for number, (row, frame) in enumerate(zip(kept, frames, strict=True), first):
                self.unacked[number] = UnackedMessage(number, queue_delivery, row, self, len(frame))
            if self.terms.ack == "client":
                self._order.extend(range(first, session.next_tag))
        data = b"".join(frames)
        session.write(data)
        if not auto or self.terms.buffer is not None:
            self.held_messages += len(kept)
            self.held_bytes += len(data)
            if auto:
                self._sent.append((session.written, len(kept), len(data)))

    def _framed(self, rows: list[int], messages: list[Row]) -> tuple[list[bytes], list[int]]:
        """Return MESSAGE frames, as many as fit, and their rows."""
        session = self.session
        version, number, head, message_id = session.version, session.next_tag, self._head, self._message_id
        buffer = self.terms.buffer
        limit = None if buffer is None else buffer.bytes
        size = self.held_bytes
        frames: list[bytes] = []
        for row in rows:
            (again, exchange, key, raw), body = messages[row]
            destination, others = message_lines(exchange, key, raw, version)
            frame = b"%s%s%s%d\nredelivered:%s\n%s%scontent-length:%d\n\n%s\0" % (
                head,
                destination,
                message_id,
                number,
                b"true" if again else b"false",
                b"%s%d\n" % (self._ack, number) if self._ack else b"",
                others,
                len(body),
                body,
            )
            if limit is not None and size + len(frame) > limit and size:
                break  # one larger than the buffer is sent if nothing is held, or it never could be
            size += len(frame)
            number += 1
            frames.append(frame)
        session.next_tag = number
        return frames, rows[: len(frames)]

    def deliveries_ended(self) -> None:
        """End the session, since the queue delivers no more."""
        if not self.is_over and not self.session.is_over:
            self.session.lost_subscription(self)

    # --------------------------------------------------------------------------------------------------------- settling

    def take_out(self, tag: int) -> list[UnackedMessage]:
        """Remove and return what an ACK or NACK settles: one message, or with `ack:client` all up to it."""
        if tag not in self.unacked:
            return []
        if self.terms.ack == "client-individual":
            return [self.unacked.pop(tag)]
        unacked, order = [], self._order
        while order and order[0] <= tag:
            unacked.append(self.unacked.pop(order.popleft()))
        return unacked

    def hold_again(self, unacked: list[UnackedMessage]) -> None:
        """Hold messages again, in order, after the transaction that settled them was aborted."""
        self.unacked |= {message.tag: message for message in unacked}
        if self.terms.ack == "client":
            tags = sorted(message.tag for message in unacked)
            if self._order and tags[-1] > self._order[0]:
                self._order = deque(sorted((*self._order, *tags)))
            else:
                self._order.extendleft(reversed(tags))

    def end(self, unacked: list[UnackedMessage], verb: SettleVerb) -> None:
        """Settle messages."""
        if verb == "reject" and self.queue.terms.dead_exchange is None:
            verb = "ack"  # no dead-letter exchange: drop them
        rows: dict[QueueDelivery, list[int]] = {}
        for message in unacked:
            rows.setdefault(message.queue_delivery, []).append(message.row)
        for queue_delivery, mine in rows.items():
            if verb == "requeue":
                self.queue.give_back(self.session.settling, queue_delivery, mine)
            else:
                self.session.settling.add(queue_delivery, verb, mine)
        self.settled(len(unacked), sum(message.size for message in unacked))

    def settled(self, messages: int, size: int) -> None:
        """Count settled messages out, and wake the queue."""
        self.held_messages -= messages
        self.held_bytes -= size
        self._full_since, self._is_next_too_large = None, False
        self.queue.wake()

    def close(self) -> None:
        """Stop delivering, and requeue unsettled messages."""
        self.is_over = True
        if self.terms.is_own:
            self.session.intake.watched.pop(self.queue.topic, None)
        if self._check_timer is not None:
            self._check_timer.cancel()
        self.queue.leave(self)
        unacked, self.unacked = list(self.unacked.values()), {}
        self._order.clear()
        if unacked:
            self.end(unacked, "requeue")

    def check_backlog(self) -> None:
        """Cut off the client if too much waits in its own queue, since that uses memory which publishers need.

        A few large messages are allowed, for a client that takes one after the other.
        """
        most = self.session.shared.backlog_bytes
        size = self.session.queueing.broker.topic_size(self.queue.topic) if self.terms.is_own else None
        if size is not None and size.bytes > most and size.messages > BACKLOG_MESSAGES:
            what = f"{size.bytes} bytes wait for subscription {self.terms.id or ''} of {self.terms.destination}"
            self.session.cut_off("backlog overrun", f"{what}; at most {most} are kept")

    # ---------------------------------------------------------------------------------------------- the declared buffer

    def _is_unpaced(self) -> bool:
        """Return whether the declared buffer, and not the transport's, bounds what waits on the transport."""
        return self.terms.buffer is not None and self.terms.is_own and self.terms.ack == "auto"

    def _is_capped(self) -> bool:
        """Return whether so much waits on the transport that the declared buffer is ignored."""
        return self._is_unpaced() and self.session.waiting_bytes() >= UNPACED_BYTES_MAX

    def _left(self, buffer: Buffer) -> int:
        """Return how many messages more the client can take."""
        if self.terms.ack == "auto":
            self._count_taken()
        if self._is_next_too_large or self._is_capped():
            return 0
        if buffer.bytes is not None and self.held_bytes >= buffer.bytes:
            return 0
        return PULL_MAX if buffer.messages is None else buffer.messages - self.held_messages

    def held_now(self) -> tuple[int, int]:
        """Return the messages and bytes that the client holds now."""
        if self.terms.ack == "auto":
            self._count_taken()
        return self.held_messages, self.held_bytes

    def _count_taken(self) -> None:
        taken, sent = self.session.taken(), self._sent
        while sent and sent[0][0] <= taken:
            _, messages, size = sent.popleft()
            self.held_messages -= messages
            self.held_bytes -= size
            self._full_since, self._is_next_too_large = None, False

    def _check_soon(self, delay_s: float) -> None:
        if self._check_timer is None and not self.is_over:
            loop = asyncio.get_running_loop()
            self._check_timer = loop.call_later(delay_s, self._check_buffer, delay_s)

    def _check_buffer(self, delay_s: float) -> None:
        """Wake the queue if a full buffer has room again; cut the client off if it was full for too long."""
        self._check_timer = None
        terms, session = self.terms, self.session
        if self.is_over or session.is_over or terms.buffer is None:
            return
        if self._left(terms.buffer) > 0:
            self._full_since = None
            self.queue.wake()
            return
        now = asyncio.get_running_loop().time()
        taken = session.taken() if terms.ack == "auto" else self._taken
        if self._full_since is None or taken > self._taken:  # progress within one write counts too
            self._full_since, self._taken = now, taken
        if now - self._full_since >= self._patience_s() and self.queue.ready():
            session.cut_off("buffer overrun", self._overrun())
            return
        self._check_soon(min(delay_s * 2, CHECK_S_MAX[terms.ack]))

    def _patience_s(self) -> float:
        terms = self.terms
        if self._is_capped():
            return 0.0
        if terms.ack == "auto":
            stall_s = self.session.shared.bounds.stall_s
            return min(GRACE_S, stall_s) if terms.is_own else stall_s
        most = None if terms.buffer is None else terms.buffer.messages
        if terms.prefetch and most is not None and terms.prefetch <= most:
            return float("inf")
        return self.session.shared.bounds.stall_s

    def _overrun(self) -> str:
        if self._is_capped():
            return (
                f"{self.session.waiting_bytes()} bytes are sent and not taken, and more are waiting for subscription "
                f"{self.terms.id or ''} of {self.terms.destination}; at most {UNPACED_BYTES_MAX} wait, "
                "whatever buffer is declared"
            )
        what = "taken" if self.terms.ack == "auto" else "acked"
        return (
            f"subscription {self.terms.id or self.terms.destination!r} of {self.terms.destination} declared "
            f"{self.terms.buffer}: {self.held_messages} messages with {self.held_bytes} bytes are sent and not {what}, "
            "and more are waiting"
        )


def by_consumer(unacked: Iterable[UnackedMessage]) -> dict[Consumer, list[UnackedMessage]]:
    """Return messages by their consumer."""
    found: dict[Consumer, list[UnackedMessage]] = {}
    for message in unacked:
        found.setdefault(message.consumer, []).append(message)
    return found


def _fixed(version: str, terms: Terms, message_prefix: str) -> tuple[bytes, bytes, bytes]:
    """Return the parts that are equal in every MESSAGE: its beginning, and its ids up to the number.

    The second id is `ack`, and empty if the mode or the version has none.
    """
    head = b"MESSAGE\n"
    if terms.id is not None:
        head += codec.header("subscription", terms.id, version)
    message_id, ack = (codec.header(name, message_prefix, version)[:-1] for name in ("message-id", "ack"))
    return head, message_id, ack if terms.ack != "auto" and version == codec.V12 else b""
