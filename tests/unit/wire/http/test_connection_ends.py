"""Streams that end, readers that do not read, and a server that closes while somebody is served."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from tests.unit.wire.http.memory import QUIET_S, SMALL, Client, body_of, post, served
from wherry.wire.http.protocol.message import (
    OCTETS,
    Answer,
    Request,
    Response,
    Stream,
    json_response,
)

Streaming = Callable[["Streams", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Streams:
    """Streams that never end, and what happened to them."""

    def __init__(self, client: Client) -> None:
        self.ended = asyncio.Event()
        self.server = client.server
        self.server._app = self.answer

    async def answer(self, request: Request) -> Answer:
        self.server.begin_wait(request)
        return Stream(self.words(fails=request.path == "/fails"), "text/plain")

    async def words(self, *, fails: bool) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            if fails:
                raise RuntimeError("on purpose")
            while True:
                await asyncio.sleep(0.01)
                yield b"x" * 50_000
        finally:
            self.ended.set()

    async def over(self) -> None:
        async with asyncio.timeout(5):
            await self.ended.wait()
        await asyncio.sleep(QUIET_S)
        assert (self.server.requests, self.server.waits) == (0, 0)


def streamed(target: bytes, test: Streaming) -> None:
    """Run a test with a stream that a client has asked for."""

    async def asked(client: Client) -> None:
        streams = Streams(client)
        reader, writer = await client.open()
        writer.write(target + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        await test(streams, reader, writer)
        writer.close()

    served(asked)


def test_a_stream_is_counted_while_it_runs_and_ends_with_its_client():
    async def test(streams: Streams, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"first")
        assert (streams.server.requests, streams.server.waits) == (1, 1)
        writer.close()
        await streams.over()
        assert streams.server.connections == 0

    streamed(b"GET /", test)


def test_a_stream_that_breaks_has_no_last_chunk(caplog: pytest.LogCaptureFixture):
    async def test(streams: Streams, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.read()).endswith(b"5\r\nfirst\r\n")
        await streams.over()

    streamed(b"GET /fails", test)
    assert "broke off" in caplog.text


def test_a_stream_has_a_head_without_a_body():
    async def test(streams: Streams, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        writer.write(b"HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        said = await reader.read()
        assert said.startswith(b"HTTP/1.1 200 OK")
        assert said.endswith(b"\r\n\r\n")
        assert (streams.server.requests, streams.server.waits) == (0, 0)

    streamed(b"HEAD /", test)


def test_a_reader_that_does_not_read_is_cut_off():
    async def test(client: Client) -> None:
        streams = Streams(client)
        _, writer = await client.open()
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await streams.over()
        assert client.server.refused["write_s"] == 1
        writer.close()

    served(test, bounds=replace(SMALL, write_s=2))


def test_a_close_ends_streams():
    async def test(streams: Streams, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"first")
        async with asyncio.timeout(5):
            await streams.server.close(1.0)
        await streams.over()

    streamed(b"GET /", test)


def test_a_close_answers_what_is_under_way():
    async def slow(request: Request) -> Answer:
        await asyncio.sleep(2 * QUIET_S)
        return Response(200, [b"done"], OCTETS)

    async def test(client: Client) -> None:
        reader, writer = await client.open()
        idle, idler = await client.open()
        writer.write(post(b"x"))
        await asyncio.sleep(QUIET_S)
        await client.server.close()
        said = await reader.read()
        assert said.endswith(b"done")
        assert b"Connection: close" in said
        assert await idle.read() == b""
        for each in (writer, idler):
            each.close()

    served(test, slow)


def test_a_close_ends_waiting_calls_with_what_they_have_so_far():
    async def test(client: Client) -> None:
        async def ask(wait_ms: int) -> int:
            await asyncio.sleep(wait_ms / 1_000)
            return wait_ms

        async def wait(request: Request) -> Answer:
            client.server.begin_wait(request)
            return json_response([await client.server.patiently(ask, ms) for ms in (0, 1, 60_000, 60_000)])

        client.server._app = wait
        reader, writer = await client.open()
        writer.write(post(b"x"))
        await asyncio.sleep(QUIET_S)
        async with asyncio.timeout(5):
            await client.server.close()
            assert body_of(await reader.read()) == b"[0,1,0,0]"
        writer.close()

    served(test)


def test_a_close_waits_no_longer_than_its_limit():
    async def stuck(request: Request) -> Answer:
        await asyncio.sleep(60)
        return Response(204)

    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(post(b"x"))
        await asyncio.sleep(QUIET_S)
        async with asyncio.timeout(5):
            await client.server.close(0.1)
        assert (client.server.requests, client.server.connections) == (0, 0)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()

    served(test, stuck)


def test_a_large_answer_arrives_whole_though_the_server_closes():
    body = os.urandom(3_000_000)

    async def large(request: Request) -> Answer:
        return Response(200, [body], OCTETS)

    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(post(b"x"))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(client.server.close(5.0))
        assert body_of(await reader.read()) == body
        await closing
        writer.close()

    served(test, large, replace(SMALL, bodies_bytes=4_000_000))
