"""Subscriptions: what a client is sent, what it has not taken or acked yet, and the buffer that it declared.

A client that declares a buffer (`wherry-buffer-messages`, `wherry-buffer-bytes`) is never sent more than fits into it.
*Held* is what was sent and not acked, or with `ack:auto` not known to have reached the client's machine. Whoever has a
full buffer while more waits for it is cut off:

| queue | `ack:auto` | other modes |
|---|---|---|
| its own (`/topic/`, `/exchange/`) | after `GRACE_S` without a byte taken: nobody else takes it | after `stall_s` |
| shared (`/queue/`, durable subscriptions) | after `stall_s` without a byte taken | after `stall_s` without an ack |

A `prefetch-count` within the buffer says that the client means to be waited for: then it is.
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

LOOK_S, LOOK_S_MAX = 0.001, {"auto": 0.02, "client": 0.25, "client-individual": 0.25}
"""Between two looks at a full buffer, more and more seldom; nobody tells us what the network has taken."""

GRACE_S = 2.0
"""A long line may need this to say that something has arrived; a client that stands still uses it up."""

UNPACED_BYTES_MAX = 16 << 20
"""Bytes that may wait on the transport of a client for its subscriptions of the kind that nobody waits for, whatever
buffer it declared; passed by one delivery at most."""

BACKLOG_MESSAGES = 2
"""Messages that may wait in the own queue of a subscription, however large they are."""

SEPARATOR = "@@"

AckMode = Literal["auto", "client", "client-individual"]


class UnackedMessage(NamedTuple):
    """A message that is out: its number, a row of a delivery, whose it is, and the bytes that it takes there."""

    tag: int
    queue_delivery: QueueDelivery
    row: int
    consumer: Consumer
    size: int


class Buffer(NamedTuple):
    """What a client can take, as it says itself; None for any amount."""

    messages: int | None
    bytes: int | None

    def __str__(self) -> str:
        parts = (("wherry-buffer-messages", self.messages), ("wherry-buffer-bytes", self.bytes))
        return ", ".join(f"{name}:{value}" for name, value in parts if value is not None)


class Terms(NamedTuple):
    """What a SUBSCRIBE asks for."""

    tag: str
    """`T_` and the id; `Q_` and the destination where the client gave no id."""
    id: str | None
    destination: str
    ack: AckMode
    prefetch: int
    """Messages that may be out; 0 for any number."""
    buffer: Buffer | None
    is_own: bool
    """Whether the queue is the subscription's own, and goes with it."""


class Consumer:
    """One subscription of a session; a consumer of its queue."""

    priority = 0

    def __init__(self, session: Session, terms: Terms, queue: Queue) -> None:
        self.session, self.terms, self.queue = session, terms, queue
        self.unacked: dict[int, UnackedMessage] = {}
        """What is out, by number; empty with `ack:auto`."""
        self._order: deque[int] = deque()
        """With `ack:client`: their numbers, ascending."""
        self.out = self.out_bytes = 0
        """Held: sent and not acked, transactions included, or sent and not taken."""
        self.delivered = 0
        self.is_over = False
        self.message_prefix = SEPARATOR.join((terms.tag, session.id, ""))
        """What its message ids begin with."""
        self._head, self._message_id, self._ack = _fixed(session.version, terms, self.message_prefix)
        self._sent: deque[tuple[int, int, int]] = deque()
        """Of a declared buffer with `ack:auto`: where the transport was after a write, its messages, its bytes."""
        self._is_clogged = False
        """Whether the next message does not fit into what is left of its bytes."""
        self._full_since: float | None = None
        self._taken = 0
        """With `ack:auto`: what of the transport had been taken at the last look at a full buffer."""
        self._look: asyncio.TimerHandle | None = None
        if terms.is_own:
            session.intake.watched[queue.topic] = self.check_backlog

    # ---------------------------------------------------------------------------------------------------- for the queue

    def room(self) -> int:
        """How many messages it may be given now."""
        session, terms = self.session, self.terms
        if self.is_over or session.is_over:
            return 0
        if session.is_write_paused:
            if not self._is_unpaced():
                session.was_write_paused = True
                return 0
            if self._is_capped():
                self._look_soon(LOOK_S)
                return 0
        if terms.ack == "auto":
            room = PULL_MAX
        elif terms.prefetch:
            room = terms.prefetch - self.out
        else:
            room = session.holding.room()
        return room if terms.buffer is None else min(room, self._left(terms.buffer))

    def shares(self) -> None:
        """With nobody."""
        return None

    def take(self, queue_delivery: QueueDelivery, rows: list[int], messages: list[Row]) -> None:
        """Messages to be sent, as one write."""
        frames, kept = self._framed(rows, messages)
        if len(kept) < len(rows):  # they do not fit into its bytes
            self._is_clogged = True
            queue_delivery.release(rows[len(kept) :])  # before the queue pulls again: else later ones would come first
        if kept:
            self._send(queue_delivery, kept, frames)
        if self.terms.buffer is not None and self._left(self.terms.buffer) <= 0:
            self._look_soon(LOOK_S)

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
            self.out += len(kept)
            self.out_bytes += len(data)
            if auto:
                self._sent.append((session.written, len(kept), len(data)))

    def _framed(self, rows: list[int], messages: list[Row]) -> tuple[list[bytes], list[int]]:
        """MESSAGE frames, as many as fit, and the rows that they are."""
        session = self.session
        version, number, head, message_id = session.version, session.next_tag, self._head, self._message_id
        buffer = self.terms.buffer
        limit = None if buffer is None else buffer.bytes
        size = self.out_bytes
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
                break  # one message above the buffer goes to whoever holds nothing: else nobody would ever get it
            size += len(frame)
            number += 1
            frames.append(frame)
        session.next_tag = number
        return frames, rows[: len(frames)]

    def gone(self) -> None:
        """Its queue is no more: it gets nothing any longer, and must know."""
        if not self.is_over and not self.session.is_over:
            self.session.lost_subscription(self)

    # --------------------------------------------------------------------------------------------------------- settling

    def take_out(self, tag: int) -> list[UnackedMessage]:
        """What an ACK or NACK is about: one message, or with `ack:client` all up to it. Empty if it is not out."""
        if tag not in self.unacked:
            return []
        if self.terms.ack == "client-individual":
            return [self.unacked.pop(tag)]
        outs, order = [], self._order
        while order and order[0] <= tag:
            outs.append(self.unacked.pop(order.popleft()))
        return outs

    def hold_again(self, outs: list[UnackedMessage]) -> None:
        """A transaction that settled these was aborted. All of one subscription at once: they are put in order."""
        self.unacked |= {out.tag: out for out in outs}
        if self.terms.ack == "client":
            tags = sorted(out.tag for out in outs)
            if self._order and tags[-1] > self._order[0]:
                self._order = deque(sorted((*self._order, *tags)))
            else:
                self._order.extendleft(reversed(tags))

    def end(self, outs: list[UnackedMessage], verb: SettleVerb) -> None:
        """These are no longer out."""
        if verb == "reject" and self.queue.terms.dead_exchange is None:
            verb = "ack"  # nobody wants to see them again
        rows: dict[QueueDelivery, list[int]] = {}
        for out in outs:
            rows.setdefault(out.queue_delivery, []).append(out.row)
        for queue_delivery, mine in rows.items():
            if verb == "requeue":
                self.queue.give_back(self.session.settling, queue_delivery, mine)
            else:
                self.session.settling.add(queue_delivery, verb, mine)
        self.settled(len(outs), sum(out.size for out in outs))

    def settled(self, messages: int, size: int) -> None:
        """There is room again."""
        self.out -= messages
        self.out_bytes -= size
        self._full_since, self._is_clogged = None, False
        self.queue.wake()

    def close(self) -> None:
        """No more messages; what is out comes back."""
        self.is_over = True
        if self.terms.is_own:
            self.session.intake.watched.pop(self.queue.topic, None)
        if self._look is not None:
            self._look.cancel()
        self.queue.leave(self)
        outs, self.unacked = list(self.unacked.values()), {}
        self._order.clear()
        if outs:
            self.end(outs, "requeue")

    def check_backlog(self) -> None:
        """What waits in its own queue is in memory that publishers need: who lets too much wait there is cut off.

        That is not who is sent large messages, and takes one after the other.
        """
        most = self.session.shared.backlog_bytes
        size = self.session.queueing.broker.topic_size(self.queue.topic) if self.terms.is_own else None
        if size is not None and size.bytes > most and size.messages > BACKLOG_MESSAGES:
            what = f"{size.bytes} bytes wait for subscription {self.terms.id or ''} of {self.terms.destination}"
            self.session.cut_off("backlog overrun", f"{what}; at most {most} are kept")

    # ---------------------------------------------------------------------------------------------- the declared buffer

    def _is_unpaced(self) -> bool:
        """Whether its own buffer bounds what waits on the transport, and not the transport's."""
        return self.terms.buffer is not None and self.terms.is_own and self.terms.ack == "auto"

    def _is_capped(self) -> bool:
        """Whether so much waits on the transport already that no declared buffer counts."""
        return self._is_unpaced() and self.session.waiting_bytes() >= UNPACED_BYTES_MAX

    def _left(self, buffer: Buffer) -> int:
        """How many messages more the client can take."""
        if self.terms.ack == "auto":
            self._count_taken()
        if self._is_clogged or self._is_capped() or (buffer.bytes is not None and self.out_bytes >= buffer.bytes):
            return 0
        return PULL_MAX if buffer.messages is None else buffer.messages - self.out

    def held(self) -> tuple[int, int]:
        """Messages and bytes that it holds now."""
        if self.terms.ack == "auto":
            self._count_taken()
        return self.out, self.out_bytes

    def _count_taken(self) -> None:
        taken, sent = self.session.taken(), self._sent
        while sent and sent[0][0] <= taken:
            _, messages, size = sent.popleft()
            self.out -= messages
            self.out_bytes -= size
            self._full_since, self._is_clogged = None, False

    def _look_soon(self, delay_s: float) -> None:
        if self._look is None and not self.is_over:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(delay_s, self._looked, delay_s)

    def _looked(self, delay_s: float) -> None:
        """Whether a full buffer has room again, and whether it was full for too long."""
        self._look = None
        terms, session = self.terms, self.session
        if self.is_over or session.is_over or terms.buffer is None:
            return
        if self._left(terms.buffer) > 0:
            self._full_since = None
            self.queue.wake()
            return
        now = asyncio.get_running_loop().time()
        taken = session.taken() if terms.ack == "auto" else self._taken
        if self._full_since is None or taken > self._taken:  # also in the middle of what was one write
            self._full_since, self._taken = now, taken
        if now - self._full_since >= self._patience_s() and self.queue.ready():
            session.cut_off("buffer overrun", self._overrun())
            return
        self._look_soon(min(delay_s * 2, LOOK_S_MAX[terms.ack]))

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
            f"{self.terms.buffer}: {self.out} messages with {self.out_bytes} bytes are sent and not {what}, "
            "and more are waiting"
        )


def by_subscription(outs: Iterable[UnackedMessage]) -> dict[Consumer, list[UnackedMessage]]:
    """Whose they are."""
    found: dict[Consumer, list[UnackedMessage]] = {}
    for out in outs:
        found.setdefault(out.consumer, []).append(out)
    return found


def _fixed(version: str, terms: Terms, message_prefix: str) -> tuple[bytes, bytes, bytes]:
    """The parts of each MESSAGE that are the same: what it begins with, and its ids up to the number.

    The second of these is `ack`, and empty where there is none.
    """
    head = b"MESSAGE\n"
    if terms.id is not None:
        head += codec.header("subscription", terms.id, version)
    message_id, ack = (codec.header(name, message_prefix, version)[:-1] for name in ("message-id", "ack"))
    return head, message_id, ack if terms.ack != "auto" and version == codec.V12 else b""
