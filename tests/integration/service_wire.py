"""A caller of the wire of services by hand: a test sends what bytes it wants, and reads the frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from wherry.service.peer import Peer
from wherry.wire.native.codec.frames import Kind
from wherry.wire.native.codec.invokes import SERVICE_RULES
from wherry.wire.native.codec.reader import Frame, FrameReader

UPGRADE = b"GET /services HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: wherry-service/1\r\n\r\n"


class ByHand:
    """A caller that sends bytes as a test wants them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = FrameReader("server", rules=SERVICE_RULES)
        self._read: list[Frame] = []

    async def frame(self) -> Frame | None:
        """Return the next frame; None once the provider has closed."""
        while not self._read:
            data = await self._reader.read(65_536)
            if not data:
                return None
            self._read += self._frames.feed(data)
        return self._read.pop(0)

    async def closed(self) -> list[Frame]:
        """Return all frames up to the end."""
        found = []
        while (frame := await self.frame()) is not None:
            found.append(frame)
        return found


@asynccontextmanager
async def by_hand(provider: Peer) -> AsyncIterator[ByHand]:
    parts = urlsplit(provider.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(UPGRADE)
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        found = ByHand(reader, writer)
        hello = await found.frame()
        assert hello is not None
        assert hello[0] == Kind.HELLO
        yield found
    finally:
        writer.close()
