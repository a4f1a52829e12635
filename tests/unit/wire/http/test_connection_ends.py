"""Streams that end, readers that do not read, and a server that closes while it serves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.unit.wire.http.sockets import body_of, post
from wherry.wire.http.protocol.message import (
    OCTETS,
    Answer,
    Request,
    Response,
    Stream,
    json_response,
)
from wherry.wire.http.protocol.server import Server


class Streams:
    """Streams that never end, and what happened to them."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.seen: list[int] = []
        self.server = Server(self.answer, observer=lambda request, status, seconds: self.seen.append(status))

    async def answer(self, request: Request) -> Answer:
        self.server.begin_wait(request)
        return Stream(self.words(fails=request.path == "/fails"), "text/plain")

    async def words(self, *, fails: bool) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            if fails:
                raise RuntimeError("on purpose")
            while True:
                await asyncio.sleep(0.001)
                yield b"x" * 50_000
        finally:
            self.ended.set()

    async def over(self) -> None:
        async with asyncio.timeout(5):
            await self.ended.wait()
        await asyncio.sleep(0.05)
        assert (self.server.requests, self.server.waits) == (0, 0)


async def streamed(target: bytes) -> tuple[Streams, asyncio.StreamReader, asyncio.StreamWriter]:
    streams = Streams()
    port = await streams.server.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(target + b" HTTP/1.1\r\nHost: h\r\n\r\n")
    return streams, reader, writer


def test_a_stream_is_counted_while_it_runs_and_ends_with_its_client():
    async def main() -> None:
        streams, reader, writer = await streamed(b"GET /")
        await reader.readuntil(b"first")
        assert (streams.server.requests, streams.server.waits) == (1, 1)
        writer.close()
        await streams.over()
        assert streams.server.connections == 0
        await streams.server.close(0.1)

    asyncio.run(main())


def test_a_stream_that_breaks_has_no_last_chunk(caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        streams, reader, writer = await streamed(b"GET /fails")
        async with asyncio.timeout(5):
            assert (await reader.read()).endswith(b"5\r\nfirst\r\n")
        await streams.over()
        writer.close()
        await streams.server.close(0.1)

    asyncio.run(main())
    assert "broke off" in caplog.text


def test_a_stream_has_a_head_without_a_body():
    async def main() -> None:
        streams, reader, writer = await streamed(b"HEAD /")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        writer.write(b"HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(5):
            received = await reader.read()
        assert received.startswith(b"HTTP/1.1 200 OK")
        assert received.endswith(b"\r\n\r\n")
        assert (streams.server.requests, streams.server.waits) == (0, 0)
        writer.close()
        await streams.server.close(0.1)

    asyncio.run(main())


def test_a_reader_that_does_not_read_is_cut_off():
    async def main() -> None:
        streams = Streams()
        streams.server.bounds = replace(streams.server.bounds, write_s=0.2)
        port = await streams.server.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_000)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        async with asyncio.timeout(30):
            await streams.ended.wait()
        await streams.over()
        writer.close()
        await streams.server.close(0.1)

    asyncio.run(main())


def test_a_close_ends_streams():
    async def main() -> None:
        streams, reader, writer = await streamed(b"GET /")
        await reader.readuntil(b"first")
        async with asyncio.timeout(5):
            await streams.server.close(1.0)
        await streams.over()
        writer.close()

    asyncio.run(main())


def test_a_close_answers_what_is_under_way():
    async def main() -> None:
        started = asyncio.Event()

        async def slow(request: Request) -> Answer:
            started.set()
            await asyncio.sleep(0.2)
            return Response(200, [b"done"], OCTETS)

        server = Server(slow)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle, idler = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b"x"))
        await started.wait()
        await server.close()
        received = await reader.read()
        assert received.endswith(b"done")
        assert b"Connection: close" in received
        assert await idle.read() == b""
        for each in (writer, idler):
            each.close()

    asyncio.run(main())


def test_a_close_asks_calls_that_wait_for_what_they_have_so_far():
    async def main() -> None:
        async def ask(wait_ms: int) -> int:
            await asyncio.sleep(wait_ms / 1_000)
            return wait_ms

        async def wait(request: Request) -> Answer:
            server.begin_wait(request)
            return json_response([await server.patiently(ask, ms) for ms in (0, 1, 60_000, 60_000)])

        server = Server(wait)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b"x"))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            await server.close()
            assert body_of(await reader.read()) == b"[0,1,0,0]"
        writer.close()

    asyncio.run(main())


def test_a_close_waits_no_longer_than_its_limit():
    async def main() -> None:
        started = asyncio.Event()

        async def stuck(request: Request) -> Answer:
            started.set()
            await asyncio.sleep(60)
            return Response(204)

        server = Server(stuck)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b"x"))
        await started.wait()
        async with asyncio.timeout(5):
            await server.close(0.1)
        assert (server.requests, server.connections) == (0, 0)
        assert await reader.read() == b""
        writer.close()

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
