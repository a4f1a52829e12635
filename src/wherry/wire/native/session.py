"""One connection of the native wire as a state machine; it has no socket.

    bytes ── feed ──► Session ── write_all ──► transport

    greeting ──hello──► open ──goodbye of either side──► leaving ──nothing under way──► over
    any of them ──a header that breaks a rule, a bound──► over

A frame whose body breaks a rule is an error of its request alone. A header that breaks a rule ends the connection,
since the bytes behind it cannot be understood.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum, auto
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from wherry.model.calls.lease import LOST
from wherry.model.catalog.key import Verb
from wherry.model.errors import CutOff, Forbidden, LimitReached, Unauthorized, WherryError
from wherry.wire.native import greeting
from wherry.wire.native.application import Application, RefusedCall
from wherry.wire.native.codec.calls import CallHead
from wherry.wire.native.codec.deliveries import decode_credit
from wherry.wire.native.codec.documents import (
    ClientHello,
    GoodbyeDocument,
    SubscribeTerms,
    decode_document,
    encode_error,
    encode_goodbye,
    encode_hello,
)
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import Chunk, Flag, Kind, encode_frame
from wherry.wire.native.codec.reader import Frame, FrameReader
from wherry.wire.native.intake import PlacedMessages
from wherry.wire.native.outgoing import Outgoing
from wherry.wire.native.publishing import Publishing
from wherry.wire.native.running_calls import CALLS_MAX, RunningCalls
from wherry.wire.native.sessions import Sessions
from wherry.wire.native.settling import SETTLES_MAX, Settles, no_stream
from wherry.wire.native.streams import PushStream
from wherry.wire.native.transport import Transport

RIGHTS_MAX = 10_000
"""Rights that are remembered until the next tick."""

T = TypeVar("T")


class SessionState(Enum):
    """The state of a session."""

    GREETING = auto()
    OPEN = auto()
    LEAVING = auto()
    """One side has sent GOODBYE: what is under way is answered."""
    OVER = auto()


_GREETING, _OVER, _HELLO = SessionState.GREETING, SessionState.OVER, Kind.HELLO
"""Looked up once: a member of an enum costs as much as a call."""


class Session:
    """One client."""

    def __init__(
        self, shared: Sessions, transport: Transport, application: Application, *, peer: str = "", secure: bool = False
    ) -> None:
        self.shared, self.transport, self._application = shared, transport, application
        self.peer, self.secure, self.state = peer, secure, SessionState.GREETING
        self.user = ""
        self.client = ""
        """What the client calls itself."""
        self.began = self._heard_at = self._sent_at = shared.clock()
        self.heartbeat_s = 0.0
        self.reads_arrow = False
        self.streams: dict[int, PushStream] = {}
        self._reader = FrameReader("client", is_roomy=shared.is_roomy)
        self._outgoing = Outgoing(shared.broker.at_end_of_turn, self._write, self._after_write)
        self._publishing = Publishing(shared.broker, shared.intake, self, shared.spawn)
        self._settles = Settles(shared.broker.settler, self)
        self._calls = RunningCalls(application, transport, self.send, shared.spawn, self.room)
        self._rights: set[tuple[Verb, str]] = set()
        """Rights that were checked a moment ago."""
        self._room: list[asyncio.Future[None]] = []
        self._unread = 0
        self._stalled_since: float | None = None
        self._leaving_since = 0.0
        self._is_announced = False
        """Whether one side has sent GOODBYE."""
        self._has_left = False
        """Whether the client has."""
        self._ending = 0
        """Streams that are being closed."""
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            Kind.PUBLISH: self._publish,
            Kind.SETTLE: lambda flags, number, body: self._settles.settle(number, body),
            Kind.RENEW: lambda flags, number, body: self._settles.renew(number, body),
            Kind.CREDIT: self._credit,
            Kind.CALL: self._call,
            Kind.SUBSCRIBE: self._subscribe,
            Kind.CANCEL: self._cancel,
            Kind.PING: lambda flags, number, body: self.send(encode_frame(Kind.PONG, number)),
            Kind.PONG: lambda flags, number, body: None,
            Kind.HELLO: self._hello,
            Kind.GOODBYE: self._goodbye,
        }
        shared.open[self] = None
        with suppress(Unauthorized):  # a key that was deleted in this moment: the next tick notices
            self.user = self._name()

    def _name(self) -> str:
        try:
            return self._application.check("publish", "*")
        except Forbidden as fault:
            return fault.name

    # --------------------------------------------------------------------------------------------------------- bytes in

    @property
    def is_over(self) -> bool:
        """Whether nothing more is sent or carried out."""
        return self.state is _OVER

    @property
    def partial_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return self._reader.partial_bytes

    @property
    def unstored_bytes(self) -> int:
        """Bytes that the client published and that are not on disk yet."""
        return self._publishing.unstored_bytes

    @property
    def calls_under_way(self) -> int:
        """How many calls are not answered yet."""
        return len(self._calls)

    @property
    def is_full(self) -> bool:
        """Whether the client should not be read: too much of what it sent is under way, or it does not read itself."""
        return (
            self.transport.is_write_paused
            or self._settles.under_way > SETTLES_MAX
            or self.shared.intake.is_full
            or (self._publishing.unstored_bytes > 0 and self._publishing.unstored_bytes > self.transport.unstored_max())
        )

    def feed(self, data: bytes) -> None:
        """Take bytes of the client, in whatever pieces they come."""
        if self.state is not _OVER:
            self._read(self._reader.feed, data)

    def space(self) -> memoryview | None:
        """Return where the next bytes of the client are to be written, if a large body is arriving."""
        return None if self.state is _OVER else self._reader.space()

    @property
    def reads_large(self) -> bool:
        """Whether the next frame is probably large."""
        return self._reader.reads_large

    def arrived(self, count: int) -> None:
        """Take bytes of the client that were written to `space`."""
        if self.state is not _OVER:
            self._read(self._reader.arrived, count)

    def _read(self, take: Callable[[T], list[Frame]], arrived: T) -> None:
        """Carry out the frames that what arrived completes."""
        shared, reader = self.shared, self._reader
        self._heard_at = shared.clock()
        before = reader.partial_bytes
        frames = take(arrived)
        partial = reader.partial_bytes - before  # counted now, since a frame may end the session
        shared.partial_bytes += partial
        counts, handlers = shared.frames, self._handlers
        for kind, flags, number, body in frames:
            counts[kind] += 1
            if self.state is _GREETING and kind != _HELLO:
                self.cut_off("no hello", f"{Kind(kind).name} came before HELLO")
            if self.state is _OVER:
                break
            try:
                handlers[kind](flags, number, body)
            except WherryError as fault:
                self._refused(kind, number, fault)
        self._settles.carry_out()  # those that came before a fault count
        if reader.fault is not None:
            self._end_with(reader.fault)
        if partial:
            shared.check_partial()

    def _refused(self, kind: int, number: int, fault: WherryError) -> None:
        """Answer a frame that cannot be carried out: for its request, its stream, or the connection."""
        if not number:
            self._end_with(fault)
        elif kind == Kind.SUBSCRIBE:
            self.stream_ended(number, fault)
        elif kind == Kind.CREDIT:
            if (stream := self.streams.get(number)) is not None:
                self._close_stream(stream, stream.fail(fault))
        else:
            self.refuse(number, fault)

    def _end_with(self, fault: WherryError) -> None:
        """End the connection by a rule that the client broke."""
        if not self.is_over:
            self.shared.note(self, "protocol", str(fault))
            self.send(encode_error(0, self._problem(fault)))
            self._end()

    # ----------------------------------------------------------------------------------------------------------- frames

    def _hello(self, flags: int, number: int, body: bytes) -> None:
        if self.state is not SessionState.GREETING:
            raise WireFault("client", "kind", "HELLO", "HELLO once, as the first frame")
        hello = decode_document("client", ClientHello, body)
        agreed = greeting.answer(
            hello, self.shared.bounds.heartbeat_ms, {"streams": self.shared.bounds.streams, "calls": CALLS_MAX}
        )
        self.client = hello.name[: greeting.NAME_CHARS_MAX]
        self.reads_arrow = "arrow" in hello.features
        self.heartbeat_s = agreed.heartbeat_ms / 1_000
        self.state = SessionState.OPEN
        self.send(encode_hello(agreed))

    def _goodbye(self, flags: int, number: int, body: bytes) -> None:
        decode_document("client", GoodbyeDocument, body)
        self._has_left = True
        self._settles.carry_out()  # before the streams end
        for stream in list(self.streams.values()):
            self._close_stream(stream, stream.close())
        if self.state is SessionState.OPEN:
            self._leave("goodbye")
        self._end_if_left()

    def _publish(self, flags: int, number: int, body: bytes) -> None:
        self._publishing.publish(number, flags, body, self._check_publish)

    def _subscribe(self, flags: int, number: int, body: bytes) -> None:
        if number in self.streams:
            self._end_with(WireFault("client", "id", number, "the number of no open stream"))
            return
        most = self.shared.bounds.streams
        if len(self.streams) >= most:
            raise LimitReached("streams of a connection", most, len(self.streams) + 1)
        stream = PushStream(self.shared.broker, self, number, decode_document("client", SubscribeTerms, body))
        self.streams[number] = stream
        stream.begin(self.shared.spawn)
        if self.state is SessionState.LEAVING:
            stream.halt()

    def _credit(self, flags: int, number: int, body: bytes) -> None:
        stream = self.streams.get(number)
        messages = decode_credit(body)
        if stream is not None:  # else it ended before the client knew
            stream.grant(messages)

    def _cancel(self, flags: int, number: int, body: bytes) -> None:
        if not flags & Flag.STREAM:
            self._calls.cancel(number)
        elif (stream := self.streams.get(number)) is not None:  # else its ERROR is on its way
            self._settles.carry_out()
            self._close_stream(stream, stream.cancel())

    def _call(self, flags: int, number: int, body: bytes) -> None:
        if number in self._calls:
            self._end_with(WireFault("client", "id", number, "the number of no call under way"))
        else:
            self._calls.begin(number, body)

    def _close_stream(self, stream: PushStream, closing: Coroutine[Any, Any, None]) -> None:
        stream.halt()  # at once: until its task has begun, messages would still be sent

        async def close() -> None:
            try:
                await closing
            finally:
                self._ending -= 1
                self._end_if_left()

        self._ending += 1
        _ = self.shared.spawn(close())

    # ---------------------------------------------------------------------------------------- for publishes and settles

    def take_stored(self, size: int) -> None:
        """Note that a publish of so many bytes is durable, or refused."""
        intake = self.shared.intake
        was_full = intake.is_full
        self._publishing.take_stored(size)
        self.transport.look_again()
        if was_full:
            self.shared.relieved()

    def confirm(self, number: int, published: PlacedMessages) -> None:
        """Answer a PUBLISH."""
        if self.state is not _OVER:
            self._outgoing.confirm(number, *published)

    def settled(self, number: int) -> None:
        """Answer a SETTLE or RENEW."""
        if self.state is not _OVER:
            self._outgoing.settled(number)

    def refuse(self, number: int, fault: WherryError) -> None:
        """Answer a request with an error."""
        self.send(encode_error(number, self._problem(fault)))

    def _problem(self, fault: WherryError) -> bytes:
        return fault.document if isinstance(fault, RefusedCall) else self._application.problem(fault)

    def within(self, stream: int) -> tuple[str, str]:
        """Return the topic and subscription of a stream; raise if there is none, or the client lost its right."""
        found = self.streams.get(stream)
        if found is None:
            raise no_stream(stream)
        self.check_consume(found.terms.topic)
        return found.within

    # ------------------------------------------------------------------------------------------------------ for streams

    def stream_ended(self, number: int, fault: WherryError | None) -> None:
        """Forget a stream; with a fault, send it to the client."""
        self.streams.pop(number, None)
        if fault is not None:
            self.send(encode_error(number, self._problem(fault), stream=True))

    async def create_subscription(self, terms: SubscribeTerms) -> None:
        """Create the subscription that a stream asks for, by the same call that a client would make."""
        path = f"/v1/topics/{quote(terms.topic, safe='')}/subscriptions/{quote(terms.subscription, safe='')}"
        body = memoryview(msgspec.json.encode(terms.create))
        reply = await self._application.call(CallHead("PUT", path, {"content-type": "application/json"}), body).run()
        if reply.status >= 400:
            raise RefusedCall(b"".join(map(bytes, reply.body)))

    @property
    def has_room(self) -> bool:
        """Whether the client has read what it was sent."""
        return not self.transport.is_write_paused

    async def room(self) -> None:
        """Wait until the client has read what it was sent, or is gone."""
        while not self.has_room and not self.is_over:
            room = asyncio.get_running_loop().create_future()
            self._room.append(room)
            await room

    # ----------------------------------------------------------------------------------------------------------- rights

    def _check_publish(self, topic: str) -> None:
        if ("publish", topic) not in self._rights:
            self._check("publish", topic)

    def check_consume(self, topic: str) -> None:
        """Raise if the client may not consume from a topic, or no more."""
        if ("consume", topic) not in self._rights:
            self._check("consume", topic)

    def _check(self, verb: Verb, topic: str) -> None:
        self._application.check(verb, topic)
        if len(self._rights) < RIGHTS_MAX:
            self._rights.add((verb, topic))

    # -------------------------------------------------------------------------------------------------------- bytes out

    def send(self, *chunks: Chunk) -> None:
        """Send a frame."""
        if self.state is not _OVER:
            self._outgoing.send(*chunks)

    def _write(self, chunks: list[Chunk]) -> None:
        self._sent_at = self.shared.clock()
        self.transport.write_all(chunks)

    def _after_write(self) -> None:
        if self._calls.kept_bytes and not self.transport.is_write_paused:
            self._calls.drained()
        self.transport.look_again()
        if self._is_announced:
            self._end_if_left()

    def drained(self) -> None:
        """Go on, since the client has read most of what it was sent."""
        self._calls.drained()
        waiting, self._room = self._room, []
        for room in waiting:
            if not room.done():
                room.set_result(None)
        self.transport.look_again()

    # ------------------------------------------------------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Send a PING if one is due, and cut off a client that is too slow; called about once a second."""
        self._rights.clear()
        if self.transport.is_stopped:  # while it is not read it cannot be late, nor right afterwards
            self._heard_at = now
        if self.is_over:
            return
        overdue = self._overdue(now)
        if overdue is not None:
            self.cut_off(*overdue)
            return
        if self.heartbeat_s and now - self._sent_at >= self.heartbeat_s / 2:
            self.send(encode_frame(Kind.PING))
        self._end_if_left()

    def _overdue(self, now: float) -> tuple[str, str] | None:
        bounds = self.shared.bounds
        if self.state is SessionState.GREETING and now - self.began > bounds.hello_s:
            return "no hello", f"nothing within {bounds.hello_s:g} s"
        if self.heartbeat_s and now - self._heard_at > 2 * self.heartbeat_s:
            return "no heartbeat", f"nothing for {2 * self.heartbeat_s:g} s"
        if self._is_stalled(now):
            return "nothing read", f"{self._unread} bytes for {bounds.write_s:g} s"
        try:
            self.user = self._name()
        except Unauthorized as fault:
            return "key no longer good", str(fault)
        return None

    def _is_stalled(self, now: float) -> bool:
        """Return whether the client has read nothing for too long of what waits for it."""
        waiting = self.transport.waiting_bytes()
        if not self.transport.is_write_paused or waiting < self._unread or self._stalled_since is None:
            self._stalled_since = now if self.transport.is_write_paused else None
        self._unread = waiting
        return self._stalled_since is not None and now - self._stalled_since > self.shared.bounds.write_s

    # -------------------------------------------------------------------------------------------------------------- end

    def drain(self, reason: str) -> None:
        """Announce the end to the client: deliver no more, answer what is under way, then close."""
        if self.state is SessionState.GREETING:
            self.send(encode_goodbye(reason))
            self._end()
        elif self.state is SessionState.OPEN:
            for stream in self.streams.values():
                stream.halt()
            self._leave(reason)

    def _leave(self, reason: str) -> None:
        self.state, self._leaving_since, self._is_announced = SessionState.LEAVING, self.shared.clock(), True
        self.send(encode_goodbye(reason))

    @property
    def _is_busy(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._publishing.under_way or self._settles.under_way or self._calls or self._ending)

    def _end_if_left(self) -> None:
        """Close once nothing is under way, and the client has left or had its time to."""
        if self.state is not SessionState.LEAVING or self._is_busy or not self._outgoing.is_empty:
            return
        if self._has_left or self.shared.clock() - self._leaving_since > self.shared.bounds.goodbye_s:
            self._end()

    def _end(self) -> None:
        """Write the rest, and close."""
        self.state = SessionState.OVER
        for stream in self.streams.values():  # the connection stays for a while, and nothing more is sent on it
            stream.halt()
        self._outgoing.flush()
        self.transport.close()

    def cut_off(self, why: str, detail: str) -> None:
        """Close at once, and record the reason; the client gets it if it reads."""
        if self.is_over:
            return
        self.shared.note(self, why, detail)
        fault = Unauthorized(detail) if why == "key no longer good" else CutOff(self.client or "the client", detail)
        self.send(encode_error(0, self._problem(fault)))
        self._end()

    def lost(self) -> None:
        """Release everything, since the connection is closed.

        Messages that the client holds have failed, unless one side had announced the end.
        """
        self.state = SessionState.OVER
        self.shared.open.pop(self, None)
        self.shared.partial_bytes -= self._reader.partial_bytes
        self._reader.partial_bytes = 0
        self._calls.lost()
        for stream in list(self.streams.values()):
            _ = self.shared.spawn(stream.close("" if self._is_announced else LOST))
        for room in self._room:
            if not room.done():
                room.set_result(None)
        self._application.close()
