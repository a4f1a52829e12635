"""A proxy between client and node: it may refuse upgrades, cut connections that are idle, or cut all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

UPGRADE = b"GET /v1/wire "


class Proxy:
    """Passes bytes on. `refuse` gets the head of an upgrade, and returns what to do with it.

    Bytes are the answer of the proxy, behind which it closes; a head that begins like a request is passed on in its
    place.
    """

    def __init__(self, url: str, refuse: Callable[[bytes], bytes] | None = None, idle_s: float | None = None) -> None:
        parts = urlsplit(url)
        self._node = parts.hostname, parts.port
        self._refuse, self._idle_s = refuse, idle_s
        self._open: set[asyncio.StreamWriter] = set()
        self.upgrades = self.connections = 0

    def cut(self) -> None:
        """Cut all connections."""
        for writer in list(self._open):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(65_536)
        if first.startswith(UPGRADE):
            self.upgrades += 1
            if self._refuse is not None:
                first = self._refuse(first)
                if not first.startswith(UPGRADE):
                    writer.write(first)
                    await writer.drain()
                    return
        far_reader, far = await asyncio.open_connection(*self._node)
        self._open.add(far)
        far.write(first)
        copies = [asyncio.create_task(self._copy(*ends)) for ends in ((reader, far), (far_reader, writer))]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            self._open.discard(far)
            far.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError):
            while data := await asyncio.wait_for(reader.read(1 << 20), self._idle_s):
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def proxied(
    url: str, refuse: Callable[[bytes], bytes] | None = None, idle_s: float | None = None
) -> AsyncIterator[tuple[str, Proxy]]:
    """Start a proxy before a node; yield its address, and the proxy."""
    proxy = Proxy(url, refuse, idle_s)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", proxy
    finally:
        server.close()
        proxy.cut()
        await asyncio.sleep(0.05)
