"""One STOMP client as a state machine. Bytes come and go by its `Transport`; the functions of frames are in `calls`.

    connecting ──CONNECT──► open ──DISCONNECT, a fault, the end of the transport──► over
                 (user, host,           (subscriptions, transactions)
                  version)

Frames are handled one after the other; one that takes time is awaited before the next. Every fault is sent in an
ERROR frame and ends the session, as the protocol requires.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from enum import Enum, auto
from typing import Any

from wherry.model.catalog.key import Verb
from wherry.model.errors import Forbidden, Unauthorized, WherryError
from wherry.queueing.flow.delivering import Holding, QueueDelivery
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.virtual_host import VirtualHost
from wherry.queueing.refusals import Refused
from wherry.wire.fairness import Budget, fair_loop
from wherry.wire.stomp import codec
from wherry.wire.stomp.calls import CALLS
from wherry.wire.stomp.codec import VERSIONS, Frame, FrameReader, StompFault
from wherry.wire.stomp.deadlines import Deadlines
from wherry.wire.stomp.greeting import HeartBeats
from wherry.wire.stomp.receipts import Receipts
from wherry.wire.stomp.sessions import CLOSING, Sessions
from wherry.wire.stomp.subscriptions import Consumer, by_consumer
from wherry.wire.stomp.transaction import Transaction
from wherry.wire.stomp.transports.transport import HIGH_BYTES, Transport
from wherry.wire.unstored import Unstored

WAITING_MAX = 10_000
WAITING_BYTES_MAX = 4 << 20
"""Bytes of frames that wait behind one that takes time; beyond it nothing should be fed."""

FRAMES_BYTES, FRAME_BYTES = 4 << 10, 256
"""Bytes of waiting frames that are carried out before the budget is checked, and what each frame counts beside its
body."""

_log = logging.getLogger("wherry.stomp")

Work = Coroutine[Any, Any, None]


class SessionState(Enum):
    """The state of a session."""

    CONNECTING = auto()
    OPEN = auto()
    OVER = auto()


LEGAL = {
    SessionState.CONNECTING: frozenset({"CONNECT", "STOMP"}),
    SessionState.OPEN: codec.COMMANDS - {"CONNECT", "STOMP"},
    SessionState.OVER: frozenset[str](),
}
"""The commands that a client may send, by state."""


class Session:
    """One client.

    `certified` is the name in a certificate that the client presented; `heart_beats=False` is for transports that
    detect in another way that a client is gone: then none are agreed on, whatever the client offers.
    """

    def __init__(
        self,
        shared: Sessions,
        transport: Transport,
        *,
        peer: str,
        secure: bool = False,
        certified: str | None = None,
        heart_beats: bool = True,
    ) -> None:
        self.shared, self.peer, self.secure = shared, peer, secure
        self.queueing, self.intake, self.settling = shared.queueing, shared.queueing.intake, shared.queueing.settling
        self.now_ms = shared.queueing.broker.now_ms
        self.login = shared.login(certified, peer)
        self.certified = certified
        self.state = SessionState.CONNECTING
        self.version = codec.V10
        self.id = f"session-{secrets.token_urlsafe(16)}"
        self.host: VirtualHost
        self.client_id = ""
        """The name that the client gave itself, for durable subscriptions as ActiveMQ names them."""
        self.subscriptions: dict[str, Consumer] = {}
        """By their tags."""
        self.transactions: dict[str, Transaction] = {}
        self.holding = Holding(self.wake, self._not_settled)
        """The messages that the client holds."""
        self._unsettled: WherryError | None = None
        """Why a settle of this client failed; it is sent with the next receipt or the next tick."""
        self.next_tag = 1
        self.written = 0
        """Bytes written since the start."""
        self.receipts = Receipts(self)
        self.partial_bytes = 0
        """Bytes of an incomplete frame."""
        self.was_write_paused = False
        """Whether a consumer got no messages because the client had not taken earlier ones."""
        self.wants_heart_beats = heart_beats
        self.prepared: dict[int, Any] = {}
        """For `sending`: what follows from heads that come again."""
        self.declared: set[tuple[str, ...]] = {()}
        """For `sending`: queues, and the headers of SENDs that gave them terms."""
        self.transport, self._reader = transport, FrameReader()
        self._fair_loop = fair_loop()
        self._unstored = Unstored(self.intake, self._fair_loop, transport, self._relieve)
        self._waiting: deque[Frame | StompFault] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._relief: list[Callable[[], None]] = []
        self._waits_for_intake = False
        self._may_publish: set[str] = set()
        self.deadlines = Deadlines(self)
        refusal = shared.admit(self)
        if refusal is not None:
            self.fail(refusal)

    # ------------------------------------------------------------------------------------------------ for the transport

    @property
    def is_over(self) -> bool:
        """Whether the session has ended: nothing is read or written any more."""
        return self.state is SessionState.OVER

    @property
    def is_open(self) -> bool:
        """Whether the client has logged in to a virtual host."""
        return self.state is SessionState.OPEN

    @property
    def is_stranger(self) -> bool:
        """Whether the client has not logged in yet."""
        return not hasattr(self, "host")

    @property
    def is_write_paused(self) -> bool:
        """Whether the client has not taken what it was sent before."""
        return self.transport.waiting_bytes() > HIGH_BYTES

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be fed for now: earlier frames are not done, or the disk does not keep up."""
        if self.is_over:
            return False
        busy = len(self._waiting) > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX
        return busy or self.intake.is_full or self.is_write_paused or self._unstored.is_too_much

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call back once when `is_full` may have ended."""
        self._relief.append(call)
        if self.intake.is_full and not self._waits_for_intake:
            self._waits_for_intake = True
            self.intake.when_relieved(self._intake_relieved)

    def feed(self, data: bytes) -> None:
        """Parse and handle bytes from the client, in whatever pieces they arrive."""
        self.deadlines.note_received()
        if self.is_over:
            return
        whole, published = False, self.intake.unstored_bytes
        for event in self._reader.feed(data):
            whole = True
            if self._task is not None or self._waiting:
                self._waiting.append(event)
                self._waiting_bytes += len(event.body) if isinstance(event, Frame) else 0
            else:
                self._start(self._handle_one(event))
            if self.is_over:
                return
        self._unstored.count(published)
        self.deadlines.note_parsed(self._reader.partial_bytes, whole=whole)
        self._count_partial(self._reader.partial_bytes)
        self.shared.check_partial()

    def drained(self) -> None:
        """Continue, since the client has taken what was written to it, down to `LOW_BYTES`."""
        if not self.is_over:
            self.wake()
            self._relieve()

    def over(self) -> None:
        """End the session, since the transport is closed."""
        if not self.is_over:
            self._end()
        self._relieve()

    # --------------------------------------------------------------------------------------------------- frame by frame

    def _handle_one(self, event: Frame | StompFault) -> Work | None:
        """Handle a frame; return the rest of its work if it takes time."""
        if self.is_over:
            return None
        if isinstance(event, StompFault):
            self.fail(event)
            return None
        try:
            command = event.command
            self.shared.frames[command] += 1
            if command not in LEGAL[self.state]:
                text = (
                    "You must log in using CONNECT first"
                    if self.state is SessionState.CONNECTING
                    else "You are logged in"
                )
                allowed = f"{command} is not expected now; allowed: {', '.join(sorted(LEGAL[self.state]))}"
                raise StompFault("Illegal command", text, allowed)
            if event.body and command != "SEND" and self.version != codec.V10 and not event.body.isspace():
                raise StompFault("malformed frame received", f"{command} has a body; only SEND may have one")
            return CALLS[command](self, event)
        except Exception as fault:
            self._failed(event, fault)
            return None

    def _failed(self, frame: Frame, fault: Exception) -> None:
        receipt = frame.headers.get("receipt")
        if isinstance(fault, StompFault):
            self.fail(fault, receipt)
        elif isinstance(fault, Refused):
            self.fail(StompFault(fault.reason.value, fault.detail), receipt)
        elif isinstance(fault, WherryError):
            self.fail(StompFault("not_done", str(fault)), receipt)
        else:
            _log.error("a fault of the broker", exc_info=fault)
            self.fail(StompFault("internal_error", "a fault of the broker, which is in its log"), receipt)

    def _start(self, work: Work | None) -> None:
        if work is not None:
            self._task = asyncio.get_running_loop().create_task(self._run_calls(work), name="wherry stomp frame")

    async def _run_calls(self, work: Work) -> None:
        budget = Budget(self._fair_loop, self.transport)
        while True:
            try:
                await budget.timed(work, is_stranger=self.is_stranger)
            except Exception:
                _log.exception("a fault of the broker")
                self.fail(StompFault("internal_error", "a fault of the broker, which is in its log"))
            following: Work | None = None
            while self._waiting and following is None:
                await self._unstored.wait_for_room()
                await budget.wait_if_used_up()
                budget.begin(is_stranger=self.is_stranger)
                following = self._carry_on()
                budget.end()
            if following is None:
                break
            work = following
        self._task = None
        self._relieve()

    def _carry_on(self) -> Work | None:
        """Handle some waiting frames; return the rest of the work of the last one if it takes time."""
        published, following, left = self.intake.unstored_bytes, None, FRAMES_BYTES
        while self._waiting and following is None and left > 0:
            event = self._waiting.popleft()
            size = len(event.body) if isinstance(event, Frame) else 0
            self._waiting_bytes -= size
            left -= size + FRAME_BYTES
            following = self._handle_one(event)
        self._unstored.count(published)
        return following

    def _relieve(self) -> None:
        if self._relief and not self.is_full:
            calls, self._relief = self._relief, []
            for call in calls:
                call()

    def _intake_relieved(self) -> None:
        self._waits_for_intake = False
        if self._relief:
            calls, self._relief = self._relief, []
            for call in calls:  # a caller that finds it full again registers again
                call()

    # ---------------------------------------------------------------------------------------------------- for the calls

    @property
    def user(self) -> str:
        """The user name; empty before login."""
        return self.login.user

    def write(self, data: bytes) -> None:
        """Send complete frames to the client."""
        if not self.is_over and data:
            self.deadlines.note_written()
            self.written += len(data)
            self.transport.write(data)

    def receipt(self, receipt_id: str | None) -> None:
        """Send the receipt of a frame that is done, if it asked for one."""
        if receipt_id is not None:
            self.write(codec.receipt(receipt_id, self.version))

    def opened(self, host: VirtualHost, version: str, beats: HeartBeats) -> None:
        """Open the session after a login."""
        self.host, self.version, self.deadlines.beats = host, version, beats
        self._reader.version = version
        self.state = SessionState.OPEN

    def finished(self, frame: Frame, work: Work, *, sends_receipt: bool = True) -> Work:
        """Run work that takes time, and answer its faults; with `sends_receipt`, then send the receipt of the frame."""

        async def done() -> None:
            try:
                await work
            except Exception as fault:
                self._failed(frame, fault)
            else:
                self.receipt(frame.headers.get("receipt") if sends_receipt else None)

        return done()

    def check(self, verb: Verb, topic: str) -> None:
        """Raise the fault to answer with if the client lacks the right."""
        try:
            self.login.check(verb, topic)
        except (Forbidden, Unauthorized) as fault:
            raise StompFault("access_refused", str(fault)) from None

    def check_publish(self, topics: Iterable[str]) -> None:
        """Raise the fault to answer with if the client may not publish to one of these topics."""
        if self.login.is_open:
            return
        for topic in topics:
            if topic not in self._may_publish:
                self.check("publish", topic)
                self._may_publish.add(topic)

    def forget_rights(self) -> None:
        """Drop the cached rights: those of the key may have changed."""
        self._may_publish.clear()

    def wake(self) -> None:
        """Wake the queues of all consumers, since they may have room again."""
        for subscription in self.subscriptions.values():
            subscription.queue.wake()

    def taken(self) -> int:
        """Return how many bytes have reached the client's machine since the start."""
        return self.written - self.transport.unread_bytes()

    def waiting_bytes(self) -> int:
        """Return how many written bytes the client has not taken yet."""
        return self.transport.waiting_bytes()

    def deliveries(self) -> Iterator[QueueDelivery]:
        """Yield the deliveries with unsettled messages."""
        for subscription in self.subscriptions.values():
            for message in subscription.unacked.values():
                yield message.queue_delivery
        for transaction in self.transactions.values():
            for message, _ in transaction.settled:
                yield message.queue_delivery

    async def all_settled(self) -> None:
        """Wait until all settles so far are done; raise if one failed."""
        await self.settling.flush()
        if self._unsettled is not None:
            raise self._unsettled

    def _not_settled(self, fault: WherryError) -> None:
        self._unsettled = fault

    def tidy_queue(self, queue: Queue) -> None:
        """Delete an auto-delete queue that has lost its last consumer."""
        if queue.terms.auto_delete and queue.was_consumed and not queue.consumers:
            self.queueing.run_in_background(self.host.delete_queue(queue))

    # ---------------------------------------------------------------------------------------------------------- endings

    def fail(self, fault: StompFault, receipt_id: str | None = None) -> None:
        """Send a fault to the client in an ERROR frame, and end the session."""
        if self.is_over:
            return
        _log.info("fault", extra={"peer": self.peer, "user": self.user, "why": str(fault)})
        headers = [("message", fault.text), ("content-type", "text/plain"), ("version", ",".join(VERSIONS))]
        extra = (("receipt-id", receipt_id), ("explanation", fault.explanation or None))
        headers += [(name, value) for name, value in extra if value is not None]
        self.write(codec.frame("ERROR", headers, fault.detail.encode("utf-8", "replace"), version=self.version))
        self.hang_up()

    async def close(self, text: str) -> None:
        """End the session with a text for the client."""
        self.fail(StompFault("connection_forced", text))

    def cut_off(self, why: str, detail: str) -> None:
        """Cut off a client that broke a bound, and record the reason where operators see it."""
        if not self.is_over:
            self.shared.note(self, why, detail)
            _log.warning("cut off", extra={"peer": self.peer, "user": self.user, "why": why, "detail": detail})
            self.fail(StompFault(why, detail))

    def lost_subscription(self, subscription: Consumer) -> None:
        """End the session after the queue of a consumer was deleted: STOMP has only ERROR to report that."""
        terms = subscription.terms
        text = f"the queue of {terms.destination} (subscription {terms.id or ''}) was deleted"
        self.fail(StompFault("Server cancelled subscription", text))

    def shut_down(self) -> None:
        """End the session, since the broker closes."""
        self.fail(CLOSING)

    def hang_up(self) -> None:
        """Close the transport after everything is written."""
        if not self.is_over:
            self.transport.close()
            self._end()

    def _end(self) -> None:
        self.state = SessionState.OVER
        self.shared.discard(self)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._count_partial(0)
        self._reader = FrameReader()
        for transaction in self.transactions.values():
            transaction.drop_messages()
        self.receipts.end()
        self.queueing.run_in_background(self._release_all())
        self._unstored.let_go_on()
        self._relieve()

    def _count_partial(self, size: int) -> None:
        """Note how many bytes of an incomplete frame are held for this client."""
        self.shared.partial_bytes += size - self.partial_bytes
        self.partial_bytes = size

    async def _release_all(self) -> None:
        """Requeue unsettled messages, and delete the queues that belong to the session."""
        subscriptions, self.subscriptions = self.subscriptions, {}
        for subscription in subscriptions.values():
            subscription.close()
        for transaction in self.transactions.values():  # after the consumers: nothing is held again
            self.undo(transaction)
        self.transactions.clear()
        await self.settling.flush()
        for subscription in subscriptions.values():
            self.tidy_queue(subscription.queue)
        if hasattr(self, "host"):
            for queue in self.host.owned_by(self):
                await self.host.delete_queue(queue)

    def undo(self, transaction: Transaction) -> None:
        """Drop a transaction. Messages that it settled are unsettled again, or requeued if their consumer is closed."""
        for subscription, unacked in by_consumer(message for message, _ in transaction.settled).items():
            if subscription.is_over:
                subscription.end(unacked, "requeue")
            else:
                subscription.hold_again(unacked)
        transaction.settled.clear()
        transaction.drop_messages()

    # --------------------------------------------------------------------------------------------------------- the time

    def tick(self, now: float) -> None:
        """Send a heart-beat if one is due, and cut off a client that is too slow."""
        if self._unsettled is not None:
            self.fail(StompFault("not_done", str(self._unsettled)))
            return
        if self.is_full or self.transport.is_stopped:  # while it is not read it cannot be late
            self.deadlines.not_late(now)
        overdue = self.deadlines.overdue(now)
        if overdue is not None:
            self.cut_off(*overdue)
            return
        if self.deadlines.is_silent(now):
            self.write(codec.HEART_BEAT)
        if not self.is_write_paused:  # `drained` may not have been called for a short pause in between
            if self.was_write_paused:
                self.was_write_paused = False
                self.wake()
            self._relieve()
