"""Writing answers to a connection: heads, bodies, chunks. A large answer counts as memory until the client read it."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from itertools import repeat
from typing import TYPE_CHECKING

from wherry.wire.http.protocol.heads import written
from wherry.wire.http.protocol.message import Response, Stream

if TYPE_CHECKING:
    from wherry.wire.http.protocol.server import Server

JOINED_BYTES = 16 << 10
"""The largest body that is joined with its head: one buffer is cheaper than a list of buffers."""

ROOM_S = 0.1
"""How often a stream checks whether there is room for its next chunk."""


class Answering:
    """Writes the answers of a connection, one after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._kept = 0
        """Bytes of an answer that count against the server's bound, until the client has read it."""
        self._resumed: asyncio.Future[None] | None = None
        self.keep_alive = True
        self.one_zero = False
        """Whether the request came by HTTP/1.0, which has no chunks."""
        self.paused_since: float | None = None
        """Since when the transport is write-paused, because the client reads less than is sent; None when it is not."""

    def open(self, transport: asyncio.Transport) -> None:
        """Begin to write to a transport."""
        self._transport = transport

    def pause(self) -> None:
        """Note that the transport takes no more for now."""
        self.paused_since = self._server.clock()

    def resume(self) -> None:
        """Note that the transport takes more, or is closed: `drain` returns."""
        self.paused_since = None
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)

    async def drain(self) -> None:
        """Wait until the transport takes more, or is closed."""
        while self.paused_since is not None:
            self._resumed = asyncio.get_running_loop().create_future()
            await self._resumed

    def free(self) -> None:
        """Stop counting the bytes of the answer."""
        self._server.keep(-self._kept)
        self._kept = 0

    def admit(self, response: Response) -> bool:
        """Count an answer until it is read, if there is room; small answers fit into the buffers of any connection."""
        size = sum(memoryview(part).nbytes for part in response.body) if response.body else 0
        if size <= JOINED_BYTES:
            return True
        if not self._server.keep(size):
            self._server.refused["bodies_bytes"] += 1
            if response.undo is not None:
                response.undo()
            return False
        self._kept = size
        return True

    def send(self, response: Response, *, is_last: bool, head_only: bool = False) -> None:
        """Write an answer; after the last one the connection closes."""
        if self._transport.is_closing():
            if response.undo is not None:
                response.undo()
            return
        length = sum(memoryview(part).nbytes for part in response.body)
        more = [] if response.status == HTTPStatus.NO_CONTENT else [f"Content-Length: {length}\r\n"]
        if is_last or response.close or not self.keep_alive:
            self.keep_alive = False
            more.append("Connection: close\r\n")
        elif self.one_zero:
            more.append("Connection: keep-alive\r\n")
        head = written(response.status, self._server.date_line(), response.content_type, response.headers, more)
        if head_only or not length:
            self._transport.write(head)
        elif length <= JOINED_BYTES:
            self._transport.write(b"".join([head, *response.body]))
        else:
            self._transport.writelines([head, *response.body])

    async def send_chunks(self, stream: Stream, *, head_only: bool) -> None:
        """Write a stream as it comes: in chunks, or, for HTTP/1.0, until the connection closes."""
        chunked = not self.one_zero
        more = ["Transfer-Encoding: chunked\r\n" if chunked else "Connection: close\r\n"]
        self.keep_alive = self.keep_alive and chunked
        date = self._server.date_line()
        self._transport.write(written(HTTPStatus.OK, date, stream.content_type, stream.headers, more))
        if head_only:
            return
        async for chunk in stream.chunks:
            if self._transport.is_closing():
                return
            if chunk:
                await self._wait_for_room(len(chunk))
                self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
            if self.paused_since is not None:
                await self.drain()
            self.free()
        if chunked:
            self._transport.write(b"0\r\n\r\n")

    async def _wait_for_room(self, size: int) -> None:
        """Count a chunk, waiting for room; the wait ends, since clients that do not read are cut off."""
        if size > JOINED_BYTES:
            for pause in repeat(ROOM_S):
                if self._server.keep(size):
                    self._kept = size
                    return
                await asyncio.sleep(pause)
