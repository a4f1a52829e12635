"""One connection of the native wire, from the side of the client.

    request ──► frame of this turn ──► one write         CONFIRM, SETTLED, ANSWER ──► the future of its request
                                                         DELIVER ──► its stream

What is sent in one turn of the event loop is one write. A request is a future in a table, by its number; no task is
made for it. The table and the bytes that the socket has not taken are bounded: at the bound `is_full` is set, and
callers wait for `room`. When the connection ends, every request without an answer gets `Unavailable`: it may have been
carried out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any, Final, TypeAlias

from wherry.client.batch import Leased
from wherry.client.link.errors import error_of
from wherry.client.link.transport import ClientRequest, ClientResponse
from wherry.client.native.answers import answered, check_places, published_by
from wherry.client.native.stream import ClientStream
from wherry.model.calls.publish import Published
from wherry.model.errors import StaleLease, Unavailable, WherryError
from wherry.model.limits import OFFSET_MAX
from wherry.wire.native.codec.calls import CallHead, decode_answer, encode_call
from wherry.wire.native.codec.documents import (
    ClientHello,
    GoodbyeDocument,
    MovedDocument,
    ProblemDocument,
    ServerHello,
    StreamTerms,
    SubscribeTerms,
    decode_document,
    encode_cancel,
    encode_goodbye,
    encode_hello,
    encode_subscribe,
)
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import Chunk, Flag, Kind, chunk_bytes, encode_frame
from wherry.wire.native.codec.publishes import decode_confirm, encode_publish, encode_publish_arrow
from wherry.wire.native.codec.reader import Frame, FrameReader
from wherry.wire.native.codec.rows import RowFields
from wherry.wire.native.codec.settles import decode_settled

REQUESTS_MAX = 16_384
"""Requests without an answer; more wait for room."""

TURN_BYTES_MAX = 256 << 10
"""Frames of one turn are written before its end when they are larger than this together."""

JOINED_BYTES_MAX = 16 << 10
"""A frame of chunks up to this size is copied into the write of its turn, which is cheaper than a write of its own."""

GIVEN_UP_S = 1.0
"""How long a call waits for the answers to calls that were given up before it."""

HELLO_S = 10.0
TICK_S = 1.0
"""How often timeouts and heartbeats are looked at, at the least."""

NUMBER_MAX: Final = (1 << 32) - 1

HEARTBEAT_MS_MAX = 600_000

Waiting: TypeAlias = tuple[asyncio.Future[Any], Any, int]
"""A request without an answer: its future; the number of its messages (PUBLISH), the message that it acks or None
(SETTLE, RENEW), or `CALL`; and the tick by which it needs an answer."""

CALL: Final = Kind.CALL
PUBLISHES, SETTLES, CALLS = (int,), (Leased, type(None)), (Kind,)
"""What a request may wait for that gets a CONFIRM, a SETTLED or an ANSWER."""


class NativeSession(asyncio.Protocol):
    """A connection that was switched to the native wire; `opened` is done with the HELLO of the server."""

    def __init__(self, transport: asyncio.Transport, timeout_s: float, ended: Callable[[NativeSession], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._timeout_s = timeout_s
        self._ended = ended
        self._reader = FrameReader("server")
        self._turn: list[bytes] = []
        self._turn_bytes = 0
        self._waiting: dict[int, Waiting] = {}
        self._last = 0
        self._given_up: set[asyncio.Future[Any]] = set()
        """Calls that were given up, and that the broker has not answered."""
        self._streams: dict[int, ClientStream] = {}
        self._last_stream = 0
        self._paused = False
        self._for_room: deque[asyncio.Future[None]] = deque()
        self._why = ""
        """Why the connection is closed: each caller gets an error of its own that says so."""
        self._handlers = {
            Kind.HELLO: self._hello,
            Kind.PING: self._ping,
            Kind.PONG: self._pong,
            Kind.GOODBYE: self._goodbye,
            Kind.ERROR: self._error,
            Kind.MOVED: self._moved,
            Kind.CONFIRM: self._confirm,
            Kind.SUBSCRIBED: self._subscribed,
            Kind.DELIVER: self._deliver,
            Kind.CANCEL: self._cancelled,
            Kind.SETTLED: self._settled,
            Kind.ANSWER: self._answer,
        }
        self._ticks = self._spoke_at = self._heard_at = 0
        self._tick_s = max(0.01, min(TICK_S, timeout_s / 4))
        self._due_ticks = round(timeout_s / self._tick_s)
        self._timer = self._loop.call_later(HELLO_S, self.end, "sent no HELLO")
        self.is_full = False
        """Whether callers have to wait for `room` before they send a request."""
        self.is_leaving = False
        """Whether either side sent GOODBYE: nothing new is begun here."""
        self.is_closed = False
        self._is_finishing = False
        """Whether the client is closed: the connection is, with its last answer."""
        self.opened: asyncio.Future[ServerHello] = self._loop.create_future()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        transport.set_protocol(self)
        if transport.is_closing():  # the protocol before this one was told
            self._loop.call_soon(self.connection_lost, None)
        transport.write(encode_hello(ClientHello(name="wherry-python", features=("arrow",))))

    # ------------------------------------------------------------------------------------------------------ requests

    def publish(
        self, topic: str, payloads: list[bytes], fields: list[RowFields] | None, options: bytes
    ) -> asyncio.Future[Published]:
        """Send messages as rows in this turn; the future has their places once they are stored."""
        number = self.next_number()
        return self.request(number, encode_publish(number, topic, payloads, fields, options), len(payloads))

    def publish_arrow(
        self, topic: str, chunks: list[Chunk], messages: int, options: bytes
    ) -> asyncio.Future[Published]:
        """Send messages as an Arrow stream, without a copy."""
        number = self.next_number()
        self._send_chunks(encode_publish_arrow(number, topic, chunks, options))
        return self._wait(number, messages)

    async def call(self, request: ClientRequest) -> ClientResponse:
        """Send a request of HTTP without HTTP, and return its answer."""
        if self._given_up:
            await asyncio.wait(self._given_up, timeout=GIVEN_UP_S)
        number, wait_ticks = self.next_number(), round(request.wait_s / self._tick_s)
        headers = {"accept": request.accept, **{name.lower(): value for name, value in request.headers}}
        if request.content_type:
            headers["content-type"] = request.content_type
        head = CallHead(request.method, request.target, headers)
        self._send_chunks(encode_call(number, head, list(request.body)))
        future: asyncio.Future[ClientResponse] = self._wait(number, CALL, wait_ticks)
        try:
            return await future
        except (asyncio.CancelledError, Unavailable):
            if number in self._waiting and not self.is_closed:
                self._give_up(number, waits=bool(request.wait_s))
            raise

    def _give_up(self, number: int, *, waits: bool) -> None:
        """Go on without the answer to a call; later calls are sent behind it. What a call waits for is cancelled.

        Calls run side by side at the broker: an ack that no caller awaits any more would be overtaken by the call that
        leaves the subscription.
        """
        if waits:
            self._send(encode_cancel(number, stream=False))
        answer = self._wait(number, CALL)
        self._given_up.add(answer)
        answer.add_done_callback(self._given_up.discard)
        answer.add_done_callback(asyncio.Future.exception)

    def request(self, number: int, frame: bytes, what: object = None) -> asyncio.Future[Any]:
        """Send a request in this turn; the future has its answer. `what` is as in `Waiting`."""
        self._send(frame)
        return self._wait(number, what)

    def next_number(self) -> int:
        """Return the number of the next request, which the caller sends at once; raise if the connection is closed."""
        if self.is_closed:
            raise Unavailable(self._why or "the broker is closing")
        number = self._last + 1
        if number > NUMBER_MAX or number in self._waiting:
            number = _free_number(number, self._waiting)
        self._last = number
        return number

    def subscribe(self, terms: SubscribeTerms, stream: ClientStream) -> int:
        """Open a stream; return its number. The stream gets what comes for it."""
        if self.is_closed or self.is_leaving:
            raise Unavailable(self._why or "the broker is closing")
        self._last_stream = number = _free_number(self._last_stream + 1, self._streams)
        self._streams[number] = stream
        self._send(encode_subscribe(number, terms))
        return number

    def forget(self, number: int) -> None:
        """Forget a stream that has ended."""
        self._streams.pop(number, None)
        self._look_whether_done()

    def send(self, frame: bytes) -> None:
        """Send a frame that has no answer."""
        if not self.is_closed:
            self._send(frame)

    async def room(self) -> None:
        """Wait until a request may be sent; raise `Unavailable` after the time that a request has."""
        waiter = self._loop.create_future()
        self._for_room.append(waiter)
        try:
            async with asyncio.timeout(self._timeout_s):
                await waiter
        except TimeoutError:
            raise Unavailable(f"the broker took nothing for {self._timeout_s:g} s") from None

    # ---------------------------------------------------------------------------------------------------------- send

    def _wait(self, number: int, what: object, more_ticks: int = 0) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[number] = future, what, self._ticks + self._due_ticks + more_ticks
        if len(self._waiting) >= REQUESTS_MAX:
            self.is_full = True
        return future

    def _send(self, frame: bytes) -> None:
        if not self._turn:
            self._loop.call_soon(self._flush)
        self._turn.append(frame)
        self._turn_bytes += len(frame)
        if self._turn_bytes > TURN_BYTES_MAX:
            self._flush()

    def _send_chunks(self, chunks: list[Chunk]) -> None:
        """Send a frame that may be large, without a copy, behind the frames of this turn."""
        if chunk_bytes(chunks) <= JOINED_BYTES_MAX:
            self._send(b"".join(chunks))
            return
        self._flush()
        self._spoke_at = self._ticks
        self._transport.writelines(chunks)

    def _flush(self) -> None:
        """Write the frames of this turn."""
        turn = self._turn
        if turn and not self.is_closed:
            self._turn, self._turn_bytes, self._spoke_at = [], 0, self._ticks
            self._transport.write(turn[0] if len(turn) == 1 else b"".join(turn))

    def pause_writing(self) -> None:
        """The socket has not taken what was written: callers wait."""
        self._paused = self.is_full = True

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self._paused = False
        self._look_for_room()

    def _look_for_room(self) -> None:
        self.is_full = not self.is_closed and (self._paused or len(self._waiting) >= REQUESTS_MAX)
        while self._for_room and not self.is_full:
            waiter = self._for_room.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------------------------------------------------- receive

    def data_received(self, data: bytes) -> None:
        """Hand each whole frame to what waits for it."""
        if self.is_closed:
            return
        self._heard_at = self._ticks
        try:
            for frame in self._reader.feed(data):
                self._handlers[frame[0]](frame)  # type: ignore[index]  # kinds are plain numbers here
        except WireFault as fault:
            self.end(f"broke the protocol: {fault}")
            return
        if self._reader.fault is not None:
            self.end(f"broke the protocol: {self._reader.fault}")
        if self.is_full:
            self._look_for_room()
        if self.is_leaving:
            self._look_whether_done()

    def _take(self, number: int, kinds: tuple[type, ...]) -> Waiting:
        waiting = self._waiting.get(number)
        if waiting is None or type(waiting[1]) not in kinds:
            raise WireFault("server", "id", number, "the number of a request of this kind that has no answer yet")
        del self._waiting[number]
        return waiting

    def _confirm(self, frame: Frame) -> None:
        for entry in decode_confirm(frame[3]):
            number, stop, offset = entry.first, entry.first + entry.requests, entry.offset
            dead_from = self._dead_from(entry.first, entry.requests, offset, entry.dead) if entry.dead else None
            if entry.places or offset > OFFSET_MAX:
                check_places(entry, self._waiting.get(entry.first, (None, None))[1])
            while number < stop:
                future, messages, _ = self._take(number, PUBLISHES)
                if not future.done():
                    future.set_result(published_by(entry, offset, messages, dead_from))
                offset += messages
                number += 1

    def _dead_from(self, first: int, requests: int, offset: int, dead: int) -> int:
        """Return from which offset on the messages of an entry are dead letters: its last ones."""
        waiting = [self._waiting.get(number) for number in range(first, first + min(requests, REQUESTS_MAX))]
        return offset + sum(each[1] for each in waiting if each is not None and type(each[1]) is int) - dead

    def _settled(self, frame: Frame) -> None:
        for first, requests in decode_settled(frame[3]):
            for number in range(first, first + requests):
                future, message, _ = self._take(number, SETTLES)
                if message is not None:
                    message.batch.acked(message.row, None)
                if not future.done():
                    future.set_result(None)

    def _answer(self, frame: Frame) -> None:
        head, body = decode_answer(frame[3])
        future, _, _ = self._take(frame[2], CALLS)
        if not future.done():
            future.set_result(answered(head, body))

    def _deliver(self, frame: Frame) -> None:
        stream = self._streams.get(frame[2])
        if stream is None:
            raise WireFault("server", "id", frame[2], "the number of a stream")
        stream.deliver(frame[1], frame[3])

    def _subscribed(self, frame: Frame) -> None:
        stream = self._streams.get(frame[2])
        if stream is not None:
            stream.open(decode_document("server", StreamTerms, frame[3]))

    def _cancelled(self, frame: Frame) -> None:
        if not frame[1] & Flag.STREAM:
            raise WireFault("server", "flags", frame[1], "STREAM: a server ends streams, and no calls")
        stream = self._streams.pop(frame[2], None)
        if stream is not None:
            stream.end(None)

    def _error(self, frame: Frame) -> None:
        _, flags, number, body = frame
        problem = decode_document("server", ProblemDocument, body)
        fault = error_of(ClientResponse(problem.status, "", body))
        if not number:
            self._why = f"the broker closed the connection: {fault}"
        else:
            self._refuse(flags, number, fault)

    def _moved(self, frame: Frame) -> None:
        moved = decode_document("server", MovedDocument, frame[3])
        self._refuse(frame[1], frame[2], Unavailable(f"the topic {moved.topic!r} is served at {moved.url}"))

    def _refuse(self, flags: int, number: int, fault: WherryError) -> None:
        if flags & Flag.STREAM:
            stream = self._streams.pop(number, None)
            if stream is not None:
                stream.end(fault)
            return
        future, what, _ = self._take(number, PUBLISHES + SETTLES + CALLS)
        if type(what) is Leased:
            what.batch.acked(what.row, fault)
        if not future.done():
            future.set_exception(fault)

    def _hello(self, frame: Frame) -> None:
        hello = decode_document("server", ServerHello, frame[3])
        if not self.opened.done():
            self._timer.cancel()
            beat_s = max(1, min(hello.heartbeat_ms, HEARTBEAT_MS_MAX)) / 1000
            self._tick_s = max(0.01, min(self._tick_s, beat_s / 4))
            self._due_ticks = max(1, round(self._timeout_s / self._tick_s))
            self._beat_ticks = max(2, round(beat_s / self._tick_s))
            self._timer = self._loop.call_later(self._tick_s, self._tick)
            self.opened.set_result(hello)

    def _ping(self, frame: Frame) -> None:
        self._send(encode_frame(Kind.PONG, frame[2]))

    def _pong(self, frame: Frame) -> None:
        """Do nothing: that something came was noted already."""

    def _tick(self) -> None:
        """Fail requests that had no answer in time; send a PING when idle; close if the broker is silent."""
        self._ticks += 1
        if self._ticks - self._heard_at > 2 * self._beat_ticks:
            self.end("sent nothing for twice the heartbeat")
            return
        if self._ticks - self._spoke_at >= self._beat_ticks // 2:
            self._send(encode_frame(Kind.PING))
        late = [each[0] for each in self._waiting.values() if each[2] <= self._ticks and not each[0].done()]
        for future in late:
            future.set_exception(Unavailable(f"the broker gave no answer within {self._timeout_s:g} s"))
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    # ----------------------------------------------------------------------------------------------------------- end

    def _goodbye(self, frame: Frame) -> None:
        """Begin nothing new; what is under way is answered, and messages that the reader holds can be settled."""
        decode_document("server", GoodbyeDocument, frame[3])
        self._leave()

    def _leave(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self._ended(self)
            for stream in list(self._streams.values()):
                stream.leave()

    def _look_whether_done(self) -> None:
        """Send GOODBYE once nothing is under way and no message is held."""
        held = self._streams and not self._is_finishing
        if self.is_leaving and not (self._waiting or held or self.is_closed):
            self.close()

    def finish(self) -> None:
        """Leave with the last answer, since the client is closed; at once if nothing is under way."""
        self._is_finishing = True
        self._leave()
        self._look_whether_done()

    def close(self) -> None:
        """Leave now: messages still held are released by the broker, no attempt counted."""
        self._leave()
        if not self.is_closed:
            self._send(encode_goodbye("the client is done"))
            self._flush()
            self._close("the client is closed")
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._close("the client is closed")
        self._transport.abort()

    def end(self, why: str) -> None:
        """Close at once, since the broker did something that it must not."""
        self._close(f"the broker {why}")
        self._transport.abort()

    def connection_lost(self, fault: Exception | None) -> None:
        """Fail what is under way: it may have been carried out."""
        detail = "" if fault is None or isinstance(fault, ConnectionError) else f": {fault}"
        self._close(f"the broker closed the connection without an answer{detail}")
        if not self.lost.done():
            self.lost.set_result(None)

    def _close(self, why: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._timer.cancel()
        self._why = self._why or why
        self._ended(self)
        waiting, self._waiting = self._waiting, {}
        for future, what, _ in waiting.values():
            error: WherryError = Unavailable(self._why)
            if type(what) is Leased:  # the lease ended with the connection
                error = StaleLease(0, f"the connection was lost before the answer: {self._why}")
                what.batch.acked(what.row, error)
            if not future.done():
                future.set_exception(error)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.end(Unavailable(self._why))
        if not self.opened.done():
            self.opened.set_exception(Unavailable(self._why))
            self.opened.exception()  # the client may have stopped waiting for it
        self._look_for_room()

    async def gone(self, seconds: float) -> None:
        """Wait until the connection is closed, for a while; then cut it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(self.lost)
                return
        self._transport.abort()
        await self.lost


def _free_number(number: int, taken: Container[int]) -> int:
    """Return the first number from this one on that is not taken; after the largest comes 1."""
    while number > NUMBER_MAX or number in taken:
        number = number + 1 if number < NUMBER_MAX else 1
    return number
