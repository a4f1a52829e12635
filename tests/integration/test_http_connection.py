"""What only real sockets show of an HTTP connection: TLS, resets, and buffers of the kernel."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

from tests.unit.wire.http.memory import SMALL, body_of, echo, post
from wherry.security.tls import Tls, TlsFiles
from wherry.wire.http.protocol.message import OCTETS, Answer, Request, Response
from wherry.wire.http.protocol.server import Server

CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"


def test_the_same_over_tls():
    async def main() -> None:
        server = Server(echo)
        files = TlsFiles(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
        port = await server.listen("127.0.0.1", 0, Tls(files).context)
        context = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        writer.write(post(b"x" * 50_000) + post(b"second") + b"GARBAGE\r\n\r\n")
        async with asyncio.timeout(5):
            received = await reader.read()
        assert (received.count(b"HTTP/1.1 200 OK"), received.count(b"HTTP/1.1 400 ")) == (2, 1)
        writer.close()
        await server.close(0.5)
        assert server.connections == 0

    asyncio.run(main())


def test_a_refusal_reaches_a_client_that_is_still_sending():
    async def main() -> None:
        server = Server(echo, bounds=SMALL)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 5_000_000)
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
        writer.close()
        await server.close(0.1)

    asyncio.run(main())


def test_a_large_answer_arrives_whole_though_the_server_closes():
    async def main() -> None:
        body = os.urandom(3_000_000)

        async def large(request: Request) -> Answer:
            return Response(200, [body], OCTETS)

        server = Server(large)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b"x"))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(server.close(5.0))
        async with asyncio.timeout(5):
            assert body_of(await reader.read()) == body
        await closing
        writer.close()

    asyncio.run(main())
