"""One HTTP/1.1 connection: find heads, collect bodies, serve one request at a time, keep every bound.

The parser (llhttp, through `httptools`) gets heads only, one at a time, so that it cannot take bytes behind a head for
part of that head. The kernel reads a body of known length straight into the buffer that becomes the message batch
(`bodies`); a chunked body passes through `chunks`. Memory is allocated as bytes arrive, and all of it is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from wherry.model.errors import Unauthorized, WherryError
from wherry.wire.fairness import LIGHT_S, fair_loop
from wherry.wire.http.api.problem import HttpError, problem
from wherry.wire.http.protocol.answering import Answering
from wherry.wire.http.protocol.chunks import BrokenChunks, Chunks
from wherry.wire.http.protocol.heads import (
    Head,
    joined,
    split,
)
from wherry.wire.http.protocol.message import (
    Bytes,
    Request,
    Response,
    Stream,
)
from wherry.wire.http.protocol.upgrade import Upgrade, hand_over
from wherry.wire.partial_body import GROWTH, GROWTH_WHEN_SHORT, PartialBody

if TYPE_CHECKING:
    from wherry.wire.http.protocol.server import Server

INBOX_BYTES = 2_048
"""Bytes that an idle connection allocates for heads; the inbox grows to the bound of a head."""

PARTING_S = 2.0
"""How long to read and drop bytes before a close: a socket closed with unread bytes is reset and loses the answer."""

CLIENT_GONE = 499
"""The status that observers get for a request whose client left before the answer."""

HEAD_END = b"\r\n\r\n"
NO_BODY = PartialBody(0)

_log = logging.getLogger("wherry.http")


class _State(Enum):
    HEAD = auto()
    BODY = auto()
    CHUNKED = auto()
    BUSY = auto()
    PARTING = auto()
    HANDED_OVER = auto()
    CLOSED = auto()


class Connection(asyncio.BufferedProtocol):
    """The connection of one client, from accept to close."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._number = next(server.numbers)
        self._bounds = server.bounds
        self._state = _State.HEAD
        self._since = server.clock()
        self._inbox = bytearray(INBOX_BYTES)
        self._filled = 0
        self._head_begun = False
        self._body: Bytes = b""
        self._partial_body = NO_BODY
        self._held = 0  # bytes allocated for a body, which count against the server's bound
        self._chunks = Chunks()
        self._request: Request | None = None
        self._eof = False
        self._task: asyncio.Task[None] | None = None
        self._streaming = False
        self._answers = Answering(server)

    # ---------------------------------------------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._answers.open(self._transport)
        self._fair_loop = fair_loop()
        self._read_at = 0.0
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._secure = transport.get_extra_info("ssl_object") is not None
        refusal = self._server.admit(self)
        if refusal is not None:
            self._refuse("busy", refusal)

    def connection_lost(self, fault: Exception | None) -> None:
        self._state = _State.CLOSED
        self._free_body()
        self._answers.resume()
        if self._task is not None and self._waits():
            self._task.cancel()  # a request that changes something runs to its end, and its answer is undone
        self._server.discard(self)
        self._server.forget(self._number)

    def eof_received(self) -> bool:
        """Answer a request under way, and cancel one that waits for messages: the client sends no more."""
        self._eof = True
        if self._state is not _State.BUSY:
            return False
        if self._task is not None and self._waits():
            self._task.cancel()
            return False
        return not self._secure  # TLS has no half-closed connections

    def _waits(self) -> bool:
        return self._streaming or (self._request is not None and self._request.waits)

    def pause_writing(self) -> None:
        self._answers.pause()

    def resume_writing(self) -> None:
        self._answers.resume()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._state is _State.BODY:
            return self._partial_body.space()
        if self._state is _State.PARTING:
            return memoryview(self._inbox)
        if self._filled == len(self._inbox):
            self._grow()
        return memoryview(self._inbox)[self._filled :]

    def _grow(self) -> None:
        """Enlarge the inbox, to a little more than the largest head, so that a head that is too large is noticed."""
        size = max(len(self._inbox) + 1, min(len(self._inbox) * 4, self._bounds.head_bytes + 1_024))
        self._inbox = self._inbox + bytes(size - len(self._inbox))

    def buffer_updated(self, count: int) -> None:
        now = self._fair_loop.clock()
        # a busy connection of another wire must yield
        self._fair_loop.note_read(self, now, is_light=now - self._read_at > LIGHT_S)
        self._read_at = now
        if self._state is _State.BODY:
            self._partial_body.got += count
            self._attempt(self._feed_body)
        elif self._state is not _State.PARTING:
            self._filled += count
            if self._state is _State.HEAD:
                self._parse_head()
            elif self._state is _State.CHUNKED:
                self._attempt(self._feed_chunks)
            elif self._filled > self._bounds.head_bytes:
                # the client pipelines more than the inbox holds; reading resumes after the answer
                self._transport.pause_reading()

    # ------------------------------------------------------------------------------------------------------ requests

    def _parse_head(self) -> None:
        if not self._head_begun:
            self._since, self._head_begun = self._server.clock(), True
        end = self._inbox.find(HEAD_END, 0, self._filled)
        if end < 0:
            if self._filled > self._bounds.head_bytes:
                self._refuse("headers-too-large", f"a head may have {self._bounds.head_bytes} bytes", "head_bytes")
            return
        end += len(HEAD_END)
        if end > self._bounds.head_bytes:
            self._refuse("headers-too-large", f"a head may have {self._bounds.head_bytes} bytes", "head_bytes")
            return
        raw = bytes(memoryview(self._inbox)[:end])
        self._take(end)
        self._attempt(partial(self._begin, raw))

    def _attempt(self, step: Callable[[], None]) -> None:
        """Run one step towards a whole request; answer with the problem if the step raises."""
        try:
            step()
        except WherryError as fault:
            if isinstance(fault, Unauthorized) and fault.pause_s:
                self._state, self._task = _State.BUSY, self._server.spawn(self._give_up_later(fault))
            else:
                self._give_up(fault)

    def _give_up(self, fault: WherryError) -> None:
        """Answer a request whose body is not read to its end, and close."""
        refusal = problem(fault)
        refusal.close, self._answers.keep_alive = True, False  # the rest of the unwanted body is still on its way
        if self._request is not None:
            self._server.dress(self._request, refusal)
            self._server.observe(self._request, refusal.status, self._server.clock() - self._since)
        self._send(refusal)

    async def _give_up_later(self, fault: Unauthorized) -> None:
        await asyncio.sleep(fault.pause_s)
        self._task = None
        self._give_up(fault)

    def _take(self, count: int) -> None:
        rest = self._filled - count
        if not rest and len(self._inbox) > INBOX_BYTES:
            self._inbox = bytearray(INBOX_BYTES)
        else:
            self._inbox[:rest] = self._inbox[count : self._filled]
        self._filled = rest

    def _begin(self, raw: bytes) -> None:
        """Make the request of a whole head, and begin to read its body if it has one."""
        head = Head(raw)
        headers, version = joined(head.pairs), head.version
        self._answers.one_zero = version == "1.0"
        wishes = headers.get("connection", "").lower()
        self._answers.keep_alive = "keep-alive" in wishes if self._answers.one_zero else "close" not in wishes
        if version not in ("1.0", "1.1"):
            raise HttpError("invalid-input", f"HTTP/{version} is not spoken here; HTTP/1.1 is", close=True)
        if not self._answers.one_zero and "host" not in headers:
            raise HttpError("invalid-input", "a request in HTTP/1.1 has a Host header", close=True)
        path, query = split(head.url)
        self._request = Request(head.method, path, query, headers, peer=self._peer, secure=self._secure)
        self._request.connection = self._number
        self._since = self._server.clock()
        waiting = self._server.awaited(self._request)
        if waiting is None:
            self._begin_reading(self._request)
        else:
            self._state, self._task = _State.BUSY, self._server.spawn(self._begin_later(self._request, waiting))

    async def _begin_later(self, request: Request, waiting: Awaitable[None]) -> None:
        """Wait until the caller of a request can be known, then go on with it, unless the client left meanwhile."""
        await waiting
        self._task = None
        if self._state is _State.BUSY:
            self._since = self._server.clock()
            if not self._transport.is_reading():
                self._transport.resume_reading()
            self._attempt(partial(self._begin_reading, request))

    def _begin_reading(self, request: Request) -> None:
        if "transfer-encoding" in request.headers:
            self._begin_chunks(request)
        elif not request.brings_body():
            self._start_call()
        else:
            self._begin_body(request)

    def _begin_body(self, request: Request) -> None:
        length = int(request.headers["content-length"])
        self._check_size(length)
        if length > self._filled:
            self._server.gate(request)
            self._check_size(length)
        here = min(length, self._filled)
        self._partial_body = PartialBody(length)
        self._make_room(here)
        self._partial_body.space()[:here] = memoryview(self._inbox)[:here]
        self._partial_body.got = here
        self._take(here)
        self._state = _State.BODY
        self._invite(request)
        self._feed_body()

    def _make_room(self, coming: int = 0) -> None:
        """Count and allocate the next buffer of a body; the one before is freed in this step, so only one counts."""
        unfinished = self._partial_body
        room = unfinished.next_room(GROWTH, coming)
        if not self._server.is_roomy(room):
            room = unfinished.next_room(GROWTH_WHEN_SHORT, coming)
        self._hold(room, unfinished.length)
        unfinished.grow(room)

    def _feed_body(self) -> None:
        unfinished = self._partial_body
        if unfinished.is_whole:
            self._body = unfinished.take()
            self._start_call()
        elif unfinished.got == unfinished.room:
            self._make_room()

    def _begin_chunks(self, request: Request) -> None:
        if request.headers["transfer-encoding"].strip().lower() != "chunked" or self._answers.one_zero:
            raise HttpError("invalid-input", "the only transfer encoding is chunked, of HTTP/1.1", close=True)
        self._server.gate(request)
        self._chunks = Chunks()
        self._state = _State.CHUNKED
        self._invite(request)
        self._feed_chunks()

    def _invite(self, request: Request) -> None:
        if (
            request.headers.get("expect", "").lower() == "100-continue"
            and not self._filled
            and not self._answers.one_zero
        ):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _feed_chunks(self) -> None:
        chunks = self._chunks
        try:
            taken = chunks.feed(memoryview(self._inbox)[: self._filled])
        except BrokenChunks as fault:
            raise HttpError("invalid-input", f"the chunks of the body are broken: {fault}", close=True) from None
        self._take(taken)
        self._check_size(chunks.wanted)
        self._hold(chunks.payload.__alloc__(), chunks.wanted)
        if chunks.done:
            self._body = chunks.payload
            self._start_call()

    def _check_size(self, length: int) -> None:
        most, request = self._bounds.body_bytes, self._request
        if request is not None and request.body_max is not None:
            most = min(most, request.body_max)
        if length > most:
            self._server.refused["body_bytes"] += 1
            detail = f"the body has {length} bytes or more; at most {most} are allowed"
            raise HttpError("too-large", detail, close=True)

    def _hold(self, size: int, whole: int) -> None:
        """Count the bytes allocated for a body of `whole` bytes, or refuse the body."""
        if not self._server.hold(size - self._held, whole):
            raise HttpError("busy", "the requests under way fill the memory for bodies", close=True)
        self._held = size

    def _free_body(self) -> None:
        self._server.hold(-self._held)
        self._answers.free()
        self._held = 0
        self._body, self._partial_body, self._chunks = b"", NO_BODY, Chunks()

    def _received_bytes(self) -> int:
        """Return how many bytes of the body have arrived."""
        return self._partial_body.got + len(self._chunks.payload)

    def _refuse(self, code: str, detail: str, bound: str | None = None) -> None:
        """Answer a request that cannot be understood, or took too long, and read nothing more."""
        if bound is not None:
            self._server.refused[bound] += 1
        self._answers.keep_alive = False
        self._send(problem(HttpError(code, detail, close=True)))

    # ------------------------------------------------------------------------------------------------------- answers

    def _start_call(self) -> None:
        assert self._request is not None
        self._state = _State.BUSY
        self._request.body = self._body
        self._body, self._partial_body = b"", NO_BODY
        self._task = self._server.spawn(self._serve(self._request))

    async def _serve(self, request: Request) -> None:
        started, status = self._server.clock(), CLIENT_GONE
        try:
            answer = await self._server.answer(request)
            if isinstance(answer, Stream):
                status = HTTPStatus.OK
                await self._send_stream(request, answer)
            elif not isinstance(answer, Response):
                status = HTTPStatus.SWITCHING_PROTOCOLS
                self._hand_over(answer)
            else:
                status = answer.status
                if request.method != "HEAD" and not self._answers.admit(answer):
                    answer = problem(HttpError("busy", "answers that nobody reads fill the memory for them"))
                    status = answer.status
                self._send(answer, head_only=request.method == "HEAD")
                if self._answers.paused_since is not None:
                    await self._answers.drain()
        except Exception:
            # The head is sent, so no problem can follow it: the client notices the failure by the missing last chunk.
            _log.exception("%s %s broke off", request.method, request.path)
            self._answers.keep_alive = False
        finally:
            self._task = None
            self._server.observe(request, int(status), self._server.clock() - started)
        self._next()

    def _hand_over(self, upgrade: Upgrade) -> None:
        """Give the transport to another protocol, together with the bytes that were already read."""
        if self._eof or self._transport.is_closing():
            self._answers.keep_alive = False
            return
        rest = bytes(memoryview(self._inbox)[: self._filled])
        self._state, self._inbox, self._filled = _State.HANDED_OVER, bytearray(), 0
        hand_over(self._transport, upgrade, rest, self._server.succeed(self, upgrade))

    def _next(self) -> None:
        """Continue after an answer with the next request, which may have arrived already."""
        self._request = None
        self._free_body()
        if self._state in (_State.CLOSED, _State.HANDED_OVER):
            return
        if not self._answers.keep_alive or self._eof or self._server.closing:
            self._part()
            return
        self._state, self._since, self._head_begun = _State.HEAD, self._server.clock(), False
        if not self._transport.is_reading():
            self._transport.resume_reading()
        if self._filled:
            self._parse_head()

    def _part(self) -> None:
        """Close so that the last answer arrives: the sending half now, the rest once the client has read the answer."""
        self._state, self._since, self._filled = _State.PARTING, self._server.clock(), 0
        self._free_body()
        if self._eof or self._server.closing or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()

    def _send(self, response: Response, *, head_only: bool = False) -> None:
        is_closing = self._transport.is_closing()
        self._answers.send(response, is_last=self._eof or self._server.closing, head_only=head_only)
        if response.close and self._task is None and not is_closing:
            self._part()

    async def _send_stream(self, request: Request, stream: Stream) -> None:
        self._streaming = True
        try:
            await self._answers.send_chunks(stream, head_only=request.method == "HEAD")
        finally:
            self._streaming = False
            await stream.chunks.aclose()  # type: ignore[attr-defined]
            self._server.end(request)

    # ---------------------------------------------------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """End what takes too long; called about once a second."""
        bounds, waited = self._bounds, now - self._since
        if self._answers.paused_since is not None and now - self._answers.paused_since > bounds.write_s:
            self._server.refused["write_s"] += 1
            self._transport.abort()
        elif self._state is _State.PARTING:
            if waited > PARTING_S:
                self._transport.abort()
        elif self._state is _State.HEAD:
            if self._filled and waited > bounds.head_s:
                self._refuse("timeout", f"the head was not whole after {bounds.head_s:g} s", "head_s")
            elif not self._filled and waited > bounds.idle_s:
                self._transport.close()
        elif (
            self._state in (_State.BODY, _State.CHUNKED)
            and waited > bounds.body_s + self._received_bytes() / bounds.body_pace
        ):
            self._refuse("timeout", f"the body was not whole after {waited:.0f} s", "body_s")

    def finish(self) -> None:
        """Close now if idle, after the answer otherwise, since the server closes."""
        if self._state is not _State.BUSY:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()
