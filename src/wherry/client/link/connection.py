"""One HTTP/1.1 connection: sends a request, gathers the answer, one at a time. Clients and webhooks use the same.

The parser (llhttp, through `httptools`) gets heads and chunked bodies only. A body of known length is read by the
kernel straight into the buffer that Arrow reads the messages from. Redirects are answers like any other: nothing here
follows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

import httptools
import pyarrow as pa

from wherry.client.link.transport import Bytes
from wherry.model.errors import Unavailable

INBOX_BYTES = 4_096
POOLED_BODY_BYTES = 32 << 10
"""Larger bodies use Arrow's memory, which is aligned, not cleared first, and reused warm."""

HEAD_START = b"HTTP/1."
HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of an answer is read before the connection is closed: `head` counts interim heads (1xx) as well."""

    head_bytes: int
    answer_bytes: int
    to_the_end: bool = False
    """Whether an answer without a length is read until the server closes, rather than refused: none is ever whole."""


class _State(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    PARSED = auto()
    CLOSED = auto()


class Connection(asyncio.BufferedProtocol):
    """From connect to close.

    `status` and `headers` are those of the last answer; they hold as soon as its head is there, also if the rest of the
    answer never comes. `received` counts what the server has sent since the last request.
    """

    def __init__(self, server: str, bounds: Bounds) -> None:
        self._server, self._bounds = server, bounds
        self._state = _State.IDLE
        self._inbox = bytearray(INBOX_BYTES)
        self._filled = 0
        self._body: Bytes = b""
        self._view = memoryview(b"")
        self._got = 0
        self._chunks: list[bytes] = []
        self._complete = False
        self._head_bytes = 0
        self._keep_alive = True
        self._waiter: asyncio.Future[Bytes] | None = None
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.received = 0

    @property
    def free(self) -> bool:
        """Whether the next request may be sent: it is open, and no request is under way."""
        return self._state is _State.IDLE and not self.closing

    @property
    def closing(self) -> bool:
        """Whether it is being closed; the future `lost` is done when it is closed."""
        return self._transport.is_closing()

    # ---------------------------------------------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, fault: Exception | None) -> None:
        self._state = _State.CLOSED
        when = "in the middle of an answer" if self.received else "without an answer"
        detail = "" if fault is None or isinstance(fault, ConnectionError) else f": {fault}"
        self._fail(f"closed the connection {when}{detail}")
        if not self.lost.done():
            self.lost.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._state is _State.BODY:
            return self._view[self._got :]
        if self._filled == len(self._inbox):
            self._inbox = self._inbox + bytes(len(self._inbox))
        return memoryview(self._inbox)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self.received += count
        if self._state is _State.BODY:
            self._got += count
            if self._got == len(self._view):
                self._done()
            return
        self._filled += count
        if self._state is _State.HEAD:
            self._parse_heads()
        elif self._state is _State.PARSED:
            self._parse_body()
        else:
            self._break("sent something without a request")

    # ------------------------------------------------------------------------------------------------------ requests

    async def ask(self, head: bytes, body: Sequence[Bytes], timeout_s: float | None = None) -> Bytes:
        """Send a request and return the body of its answer, or raise `Unavailable`.

        After an error, a timeout or a cancelled wait the connection is closed: the answer could still arrive, and would
        be taken for that of the next request.
        """
        if self._state is not _State.IDLE:
            raise Unavailable(f"{self._server} closed the connection")
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._state = _State.HEAD
        self.status = self.received = self._head_bytes = 0
        if body:
            self._transport.writelines([head, *body])
        else:
            self._transport.write(head)
        timer = None
        if timeout_s is not None:
            timer = loop.call_later(timeout_s, self._break, f"gave no answer within {timeout_s:g} s")
        try:
            return await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._waiter = None

    def close(self) -> None:
        """Close once what was written is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._state = _State.CLOSED
        self._transport.abort()

    def _break(self, why: str) -> None:
        self.abort()
        self._fail(why)

    def _fail(self, why: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Unavailable(f"{self._server} {why}"))

    # ------------------------------------------------------------------------------------------------------- answers

    def _parse_heads(self) -> None:
        """Parse the head of the answer once it is whole; interim heads (1xx) before it are dropped."""
        status = 0
        while status < 200:
            end = self._inbox.find(HEAD_END, 0, self._filled) + len(HEAD_END)
            is_whole = end >= len(HEAD_END)
            if self._head_bytes + (end if is_whole else self._filled) > self._bounds.head_bytes:
                self._break(f"sent a head of more than {self._bounds.head_bytes} bytes")
                return
            if not is_whole:
                if not HEAD_START.startswith(self._inbox[: min(self._filled, len(HEAD_START))]):
                    self._break("sent something other than HTTP/1.1")
                return
            self._head_bytes += end
            self.headers, self._complete, self._got = {}, False, 0
            self._parser = httptools.HttpResponseParser(self)
            try:
                self._parser.feed_data(bytes(memoryview(self._inbox)[:end]))
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as fault:
                self._break(f"sent something other than HTTP/1.1: {fault}")
                return
            self._take(end)
            status = self._parser.get_status_code()
        self.status = status
        self._begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        self._complete = True

    def _take(self, count: int) -> None:
        if rest := self._filled - count:
            self._inbox[:rest] = self._inbox[count : self._filled]
        self._filled = rest

    def _begin(self) -> None:
        """Begin to read the body, if one follows the head."""
        self._keep_alive = self._parser.should_keep_alive()
        length = self.headers.get(b"content-length")
        if length is not None:
            self._begin_body(int(length))
        elif self.status in (204, 304):
            self._done()
        elif b"transfer-encoding" in self.headers or self._bounds.to_the_end:
            self._state, self._chunks = _State.PARSED, []
            self._parse_body()
        else:
            self._break("sent an answer without a length")

    def _begin_body(self, length: int) -> None:
        if length > self._bounds.answer_bytes:
            self._break(f"sent an answer of {length} bytes; at most {self._bounds.answer_bytes} are read")
            return
        if length <= self._filled:
            self._body = self._inbox[:length]
            self._take(length)
            self._done()
            return
        self._body = pa.allocate_buffer(length) if length > POOLED_BODY_BYTES else bytearray(length)
        self._view = memoryview(self._body).cast("B")
        self._view[: self._filled] = self._inbox[: self._filled]
        self._got, self._filled = self._filled, 0
        self._state = _State.BODY

    def _parse_body(self) -> None:
        """Parse what came of a body in chunks. What counts for the bound is what came, sizes of chunks included."""
        data = bytes(memoryview(self._inbox)[: self._filled])
        self._got += self._filled
        self._filled = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as fault:
            self._break(f"sent broken chunks: {fault}")
            return
        if self._got > self._bounds.answer_bytes:
            self._break(f"sent an answer of more than {self._bounds.answer_bytes} bytes")
        elif self._complete:
            self._body, self._chunks = b"".join(self._chunks), []
            self._done()

    def _done(self) -> None:
        body, self._body, self._view = self._body, b"", memoryview(b"")
        self._state = _State.IDLE
        # Where the answer came before the whole request was sent, the server may never read the rest of it.
        if not self._keep_alive or self._filled or self._transport.get_write_buffer_size():
            self.close()
            self._state = _State.CLOSED
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(body)
