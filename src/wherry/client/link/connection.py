"""One HTTP/1.1 connection to a broker: sends a request, gathers the answer, one at a time.

The parser (llhttp, through `httptools`) sees heads and chunked bodies only. A body of known length is read by the
kernel straight into the buffer that Arrow reads the messages from.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import cast

import httptools
import pyarrow as pa

from wherry.client.link.transport import Answer, Ask, Bytes
from wherry.model.errors import Unavailable

INBOX_BYTES = 4_096
HEAD_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 256 << 20
"""Far above what a pull or a listing asks for; a longer answer is none of ours."""

POOLED_BODY_BYTES = 32 << 10
"""Larger bodies lie in Arrow's memory, which is aligned, not cleared first, and reused warm."""

HEAD_END = b"\r\n\r\n"


class _State(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    CHUNKED = auto()
    CLOSED = auto()


class Connection(asyncio.BufferedProtocol):
    """From connect to close. `free` tells that the next request may go out here."""

    def __init__(self, host: str, authorization: str = "") -> None:
        self._common = f"Host: {host}\r\n" + (f"Authorization: {authorization}\r\n" if authorization else "")
        self._state = _State.IDLE
        self._inbox = bytearray(INBOX_BYTES)
        self._filled = 0
        self._body: Bytes = b""
        self._view = memoryview(b"")
        self._got = 0
        self._chunks: list[bytes] = []
        self._complete = False
        self._headers: dict[bytes, bytes] = {}
        self._keep_alive = True
        self._answer = Answer(0)
        self._waiter: asyncio.Future[Answer] | None = None

    @property
    def free(self) -> bool:
        """Whether it is open, and nothing is under way."""
        return self._state is _State.IDLE and not self.closing

    @property
    def closing(self) -> bool:
        """Whether it is on its way out; `lost` tells when it is gone."""
        return self._transport.is_closing()

    # ---------------------------------------------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, fault: Exception | None) -> None:
        self._state = _State.CLOSED
        self._fail(f"the connection broke: {fault}" if fault else "the broker closed the connection")
        if not self.lost.done():
            self.lost.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._state is _State.BODY:
            return self._view[self._got :]
        if self._filled == len(self._inbox):
            self._inbox = self._inbox + bytes(len(self._inbox))
        return memoryview(self._inbox)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._state is _State.BODY:
            self._got += count
            if self._got == len(self._view):
                self._done()
            return
        self._filled += count
        if self._state is _State.HEAD:
            self._parse_head()
        elif self._state is _State.CHUNKED:
            self._feed_chunks()
        else:
            self._break("the broker sent something that nobody asked for")

    # ------------------------------------------------------------------------------------------------------ requests

    async def ask(self, ask: Ask, timeout_s: float) -> Answer:
        """Send a request, wait for the answer. Whoever stops waiting takes the connection down with it."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._state = _State.HEAD
        self._send(ask)
        timer = loop.call_later(timeout_s, self._break, f"no answer within {timeout_s:g} s")
        try:
            return await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def _send(self, ask: Ask) -> None:
        head = f"{ask.method} {ask.target} HTTP/1.1\r\n{self._common}Accept: {ask.accept}\r\n"
        for name, value in ask.headers:
            head += f"{name}: {value}\r\n"
        if ask.content_type:
            size = sum(memoryview(part).nbytes for part in ask.body)
            head = f"{head}Content-Type: {ask.content_type}\r\nContent-Length: {size}\r\n\r\n"
        elif ask.method in ("GET", "DELETE"):
            head += "\r\n"
        else:
            head += "Content-Length: 0\r\n\r\n"
        if ask.body:
            self._transport.writelines([head.encode("ascii"), *ask.body])
        else:
            self._transport.write(head.encode("ascii"))

    def close(self) -> None:
        """Go, once what was written is out."""
        self._transport.close()

    def abort(self) -> None:
        """Go at once."""
        self._state = _State.CLOSED
        self._transport.abort()

    def _break(self, why: str) -> None:
        self.abort()
        self._fail(why)

    def _fail(self, why: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Unavailable(why))

    # ------------------------------------------------------------------------------------------------------- answers

    def _parse_head(self) -> None:
        end = self._inbox.find(HEAD_END, 0, self._filled) + len(HEAD_END)
        if end < len(HEAD_END):
            if self._filled > HEAD_BYTES_MAX:
                self._break(f"the head of an answer is longer than {HEAD_BYTES_MAX} bytes")
            return
        self._headers, self._complete, self._got = {}, False, 0
        self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(bytes(memoryview(self._inbox)[:end]))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as fault:
            self._break(f"this is not an answer in HTTP/1.1: {fault}")
            return
        self._take(end)
        self._begin(self._parser.get_status_code())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, chunk: bytes) -> None:
        self._got += len(chunk)
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        self._complete = True

    def _take(self, count: int) -> None:
        rest = self._filled - count
        self._inbox[:rest] = self._inbox[count : self._filled]
        self._filled = rest

    def _begin(self, status: int) -> None:
        """A head is whole: see whether a body follows."""
        headers = self._headers
        if status < 200:  # "go on", and then the real one
            if self._filled:
                self._parse_head()
            return
        self._keep_alive = self._parser.should_keep_alive()
        after = headers.get(b"retry-after", b"")
        self._answer = Answer(status, headers.get(b"content-type", b"").decode("latin-1"))
        self._answer.retry_after_s = float(after) if after.isdigit() else None
        if b"wherry-next" in headers:
            self._answer.following = headers[b"wherry-next"].decode("latin-1")
        length = headers.get(b"content-length")
        if length is not None:
            self._begin_body(int(length))
        elif b"transfer-encoding" in headers:
            self._state, self._chunks = _State.CHUNKED, []
            self._feed_chunks()
        elif status in (204, 304):
            self._done()
        else:
            self._break("an answer without a length")

    def _begin_body(self, length: int) -> None:
        if length > ANSWER_BYTES_MAX:
            self._break(f"the answer has {length} bytes; at most {ANSWER_BYTES_MAX} are taken")
            return
        self._body = pa.allocate_buffer(length) if length > POOLED_BODY_BYTES else bytearray(length)
        self._view = memoryview(self._body).cast("B")
        self._got = min(length, self._filled)
        self._view[: self._got] = self._inbox[: self._got]
        self._take(self._got)
        self._state = _State.BODY
        if self._got == length:
            self._done()

    def _feed_chunks(self) -> None:
        data = bytes(memoryview(self._inbox)[: self._filled])
        self._filled = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as fault:
            self._break(f"the chunks of an answer are broken: {fault}")
            return
        if self._got > ANSWER_BYTES_MAX:
            self._break(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
        elif self._complete:
            self._body, self._chunks = b"".join(self._chunks), []
            self._done()

    def _done(self) -> None:
        answer, self._answer.body = self._answer, self._body
        self._body, self._view = b"", memoryview(b"")
        self._state = _State.IDLE
        if not self._keep_alive or self._filled:
            self.close()
            self._state = _State.CLOSED
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(answer)
