"""One HTTP connection over a real socket: heads and bodies cut anywhere, and every bound at its edge."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from wherry.model.errors import Unauthorized
from wherry.security.tls import Tls, TlsFiles
from wherry.wire.http.bounds import Bounds
from wherry.wire.http.connection import INBOX_BYTES
from wherry.wire.http.message import OCTETS, Answer, Request, Response, Stream, json_response
from wherry.wire.http.problem import HttpError
from wherry.wire.http.server import Server

CERTIFICATES = Path(__file__).parents[2] / "security/certificates"

SMALL = Bounds(head_bytes=4_096, body_bytes=100_000, bodies_bytes=150_000, connections=4, requests=2)


async def echo(request: Request) -> Answer:
    """What came, said again."""
    if request.path == "/boom":
        raise RuntimeError("on purpose")
    if request.path == "/refused":
        raise HttpError("busy", "come back later")
    if request.path == "/stream":
        return Stream(_three(), "text/plain")
    if request.path == "/info":
        return json_response({"method": request.method, "segments": request.segments(), "query": request.arguments()})
    return Response(200, [request.body], OCTETS, [("X-Length", str(len(request.body)))])


async def _three() -> AsyncIterator[bytes]:
    for word in (b"one", b"", b"two", b"three"):
        yield word


class Client:
    """Raw bytes to a server and back."""

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port = server, port

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, data: bytes, *, step: int | None = None) -> bytes:
        """All that the server says until it closes, or until it has been silent for a while."""
        reader, writer = await self.open()
        for at in range(0, len(data), step or len(data) or 1):
            writer.write(data[at : at + (step or len(data))])
            await writer.drain()
            if step is not None:
                await asyncio.sleep(0)
        said = b""
        try:
            async with asyncio.timeout(0.3):
                while chunk := await reader.read(65_536):
                    said += chunk
        except (TimeoutError, ConnectionError):
            pass
        writer.close()
        return said


def served(test: Callable[[Client], Awaitable[None]], bounds: Bounds = SMALL) -> None:
    """Run a test against a fresh server."""

    async def main() -> None:
        server = Server(echo, bounds=bounds)
        client = Client(server, await server.listen("127.0.0.1", 0))
        try:
            await test(client)
        finally:
            await server.close(0.1)
        assert server.bodies_bytes == 0
        assert server.requests == 0

    asyncio.run(main())


def post(body: bytes, path: str = "/", *extra: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *extra]
    return "\r\n".join([*lines, "", ""]).encode() + body


def body_of(said: bytes) -> bytes:
    return said.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("step", [None, 1, 7, 1_000])
def test_a_request_may_be_cut_anywhere(step: int | None):
    async def test(client: Client) -> None:
        said = await client.send(post(b"hello world"), step=step)
        assert said.startswith(b"HTTP/1.1 200 OK\r\n")
        assert body_of(said) == b"hello world"

    served(test)


@pytest.mark.parametrize("size", [0, 1, 32 << 10, (32 << 10) + 1, 99_999, 100_000])
def test_bodies_of_any_size_come_whole(size: int):
    async def test(client: Client) -> None:
        body = os.urandom(size)
        assert body_of(await client.send(post(body))) == body

    served(test)


@pytest.mark.parametrize("step", [None, 1, 5])
def test_chunks_are_one_body(step: int | None):
    async def test(client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        said = await client.send(head + b"3\r\none\r\n5;x=y\r\n-two-\r\n0\r\n\r\n", step=step)
        assert body_of(said) == b"one-two-"

    served(test)


def test_requests_behind_each_other_are_answered_in_order():
    async def test(client: Client) -> None:
        said = await client.send(b"".join(post(b"%d" % number) for number in range(50)))
        assert said.count(b"HTTP/1.1 200 OK") == 50
        answers = [part.partition(b"\r\n\r\n")[2] for part in said.split(b"HTTP/1.1 200 OK")[1:]]
        assert answers == [b"%d" % number for number in range(50)]

    served(test)


def test_a_tail_behind_a_body_is_the_next_request():
    async def test(client: Client) -> None:
        said = await client.send(post(b"x" * 50_000) + post(b"tail"), step=9_999)
        assert said.count(b"HTTP/1.1 200 OK") == 2
        assert said.endswith(b"tail")

    served(test)


def test_names_with_slashes_and_queries_are_decoded():
    async def test(client: Client) -> None:
        said = await client.send(b"GET /info?a=1&b=%20x&a=2 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert msgspec.json.decode(body_of(said))["query"] == [["a", "1"], ["b", " x"], ["a", "2"]]
        assert Request("GET", "/v1/topics/a%2Fb", "", {}).segments() == ["v1", "topics", "a/b"]

    served(test)


def test_a_head_asks_for_no_body():
    async def test(client: Client) -> None:
        said = await client.send(b"HEAD /info HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"Content-Length: " in said
        assert body_of(said) == b""

    served(test)


def test_old_clients_are_closed_behind_their_answer():
    async def test(client: Client) -> None:
        assert b"Connection: close" in await client.send(b"GET /info HTTP/1.0\r\n\r\n")
        assert b"Connection: keep-alive" in await client.send(b"GET /info HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")

    served(test)


def test_a_client_that_asks_first_is_told_to_go_on():
    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(post(b"", "/", "Expect: 100-continue").replace(b"Content-Length: 0", b"Content-Length: 5"))
        assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        await reader.readline()
        writer.write(b"hello")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()

    served(test)


def test_streams_come_in_chunks():
    async def test(client: Client) -> None:
        said = await client.send(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
        assert body_of(said) == b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"
        said = await client.send(b"GET /stream HTTP/1.0\r\n\r\n")
        assert body_of(said) == b"onetwothree"

    served(test)


@pytest.mark.parametrize(
    ("data", "status", "word"),
    [
        (b"GARBAGE\r\n\r\n", 400, "not a request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "Host"),
        (b"GET / HTTP/3.7\r\nHost: h\r\n\r\n", 400, "HTTP"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nBad Header: x\r\n\r\n", 400, "not a request"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\n", 400, "not a request"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "not a request"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, ""),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400, "chunked"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "chunks"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\n\r\n", 413, "100001 bytes"),
        (b"GET /" + b"a" * 5_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431, "4096 bytes"),
        (b"GET /" + b"a" * 50_000, 431, "4096 bytes"),
        (b"GET /boom HTTP/1.1\r\nHost: h\r\n\r\n", 500, "on purpose"),
        (b"GET /refused HTTP/1.1\r\nHost: h\r\n\r\n", 503, "come back later"),
        (b"\0\1\2\3\r\n\r\n", 400, "not a request"),
    ],
)
def test_what_is_wrong_is_answered_by_a_problem_that_says_so(data: bytes, status: int, word: str):
    async def test(client: Client) -> None:
        said = await client.send(data)
        assert said.startswith(b"HTTP/1.1 %d " % status)
        assert b"application/problem+json" in said
        assert word in msgspec.json.decode(body_of(said))["detail"]

    served(test)


def test_too_many_chunks_are_cut_off():
    async def test(client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        said = await client.send(head + (b"2000\r\n" + b"x" * 0x2000 + b"\r\n") * 20)
        assert said.startswith(b"HTTP/1.1 413 ")

    served(test)


def test_one_connection_too_many_is_told_and_the_others_go_on():
    async def test(client: Client) -> None:
        held = [await client.open() for _ in range(4)]
        await asyncio.sleep(0.05)
        assert (await client.send(post(b"x"))).startswith(b"HTTP/1.1 503 ")
        held[0][1].write(post(b"still here"))
        assert await held[0][0].readline() == b"HTTP/1.1 200 OK\r\n"
        for _, writer in held:
            writer.close()

    served(test)


def test_bodies_together_are_bounded():
    async def test(client: Client) -> None:
        _, slow = await client.open()
        slow.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n\r\n" + b"x" * 89_999)
        await asyncio.sleep(0.05)
        assert (await client.send(post(b"x" * 90_000))).startswith(b"HTTP/1.1 503 ")
        slow.close()
        await asyncio.sleep(0.05)
        assert (await client.send(post(b"x" * 90_000))).startswith(b"HTTP/1.1 200 ")

    served(test)


def test_a_body_that_is_only_announced_takes_no_room():
    async def test(client: Client) -> None:
        slow = [(await client.open())[1] for _ in range(3)]
        for each in slow:
            each.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999\r\n\r\npart")
        await asyncio.sleep(0.05)
        assert client.server.bodies_bytes == 12
        assert (await client.send(post(b"x" * 90_000))).startswith(b"HTTP/1.1 200 ")
        for each in slow:
            each.close()

    served(test)


def test_large_bodies_leave_room_for_small_ones():
    server = Server(bounds=Bounds(bodies_bytes=80 << 20))
    assert server.hold(70 << 20, 70 << 20)
    assert not server.hold(1, 2 << 20)
    assert server.hold(1 << 20, 1 << 20)


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        (b"GET / HTTP/1.1\r\nHos", b"408"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf", b"408"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha", b"408"),
        (b"", b""),
    ],
)
def test_who_takes_too_long_is_closed(begun: bytes, status: bytes):
    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(begun)
        async with asyncio.timeout(5):
            said = await reader.read()
        assert said[9:12] == status
        writer.close()

    served(test, replace(SMALL, head_s=0.2, body_s=0.2, idle_s=0.2))


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
        said = await reader.read()
        assert said.endswith(b"done")
        assert b"Connection: close" in said
        assert await idle.read() == b""
        for each in (writer, idler):
            each.close()

    asyncio.run(main())


def test_a_close_asks_those_who_wait_for_what_is_so_far():
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


def gated(request: Request) -> None:
    if request.path != "/open":
        raise Unauthorized("who is there?")


@pytest.mark.rows("D27")
@pytest.mark.parametrize("framing", ["Content-Length: 90000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("expects", ["", "Expect: 100-continue\r\n"])
def test_a_stranger_is_told_so_before_the_body_comes(framing: str, expects: str):
    async def test(client: Client) -> None:
        seen: list[int] = []
        client.server.gate = gated
        client.server._observer = lambda request, status, seconds: seen.append(status)
        head = f"HTTP/1.1\r\nHost: h\r\n{framing}\r\n{expects}\r\n".encode()
        said = await client.send(b"POST /closed " + head)
        assert said.startswith(b"HTTP/1.1 401 ")
        assert b"Connection: close" in said
        assert (seen, client.server.bodies_bytes) == ([401], 0)
        assert (await client.send(b"POST /open " + head)).startswith(b"HTTP/1.1 100 " if expects else b"")

    served(test)


def test_a_wait_ends_with_its_client():
    async def main() -> None:
        ended = asyncio.Event()

        async def wait(request: Request) -> Answer:
            server.begin_wait(request)
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            return Response(204)

        server = Server(wait)
        port = await server.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b"x"))
        await asyncio.sleep(0.05)
        assert server.waits == 1
        writer.close()
        async with asyncio.timeout(5):
            await ended.wait()
        await asyncio.sleep(0.05)
        assert server.waits == 0
        await server.close(0.1)

    asyncio.run(main())


def test_an_answer_that_nobody_gets_is_undone():
    async def main() -> None:
        undone = asyncio.Event()
        go = asyncio.Event()

        async def late(request: Request) -> Answer:
            await go.wait()
            return Response(200, [b"x"], undo=undone.set)

        server = Server(late)
        port = await server.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b"x"))
        await asyncio.sleep(0.05)
        reset = struct.pack("ii", 1, 0)  # closing says so at once, and takes nothing more
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.close()
        await asyncio.sleep(0.05)
        go.set()
        async with asyncio.timeout(5):
            await undone.wait()
        await server.close(0.1)

    asyncio.run(main())


# --------------------------------------------------------------------------------------------------------- hostile ones


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\nHost: h\n\nGET /hidden HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\n\nabcGET /hidden HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nHost: other\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c: folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\x00c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\rc: d\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3, 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_two_readers_could_read_differently_is_refused_and_nothing_behind_it_is_read(data: bytes):
    async def test(client: Client) -> None:
        said = await client.send(data + post(b"smuggled"))
        assert said.startswith(b"HTTP/1.1 400 ")
        assert said.count(b"Content-Length: ") == 1
        assert b"Connection: close" in said
        assert b"smuggled" not in said

    served(test)


@pytest.mark.parametrize("step", [None, 1])
def test_a_request_behind_chunks_is_a_request_of_its_own(step: int | None):
    async def test(client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        said = await client.send(head + b"5\r\nfirst\r\n0\r\n\r\n" + post(b"second"), step=step)
        answers = [part.partition(b"\r\n\r\n")[2] for part in said.split(b"HTTP/1.1 200 OK")[1:]]
        assert answers == [b"first", b"second"]

    served(test)


def test_a_refusal_reaches_a_client_that_is_still_sending():
    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 5_000_000)
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
        writer.close()

    served(test)


def test_who_is_refused_and_goes_on_sending_is_cut_off():
    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(b"GARBAGE\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(b"x" * 1_000)
                    await writer.drain()
                    await asyncio.sleep(0.02)
        assert client.server.connections == 0
        writer.close()

    served(test)


def test_too_many_headers_are_refused():
    async def test(client: Client) -> None:
        said = await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n" + b"A: b\r\n" * 512 + b"\r\n")
        assert said.startswith(b"HTTP/1.1 431 ")

    served(test)


def test_an_idle_connection_gives_its_buffer_back():
    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(post(b"x", "/", "Big: " + "y" * 3_000))
        await reader.readuntil(b"\r\n\r\nx")
        (connection,) = client.server._connections
        assert len(connection._inbox) == INBOX_BYTES
        writer.close()

    served(test)


def test_who_says_no_more_still_gets_the_answer():
    async def main() -> None:
        async def slow(request: Request) -> Answer:
            await asyncio.sleep(0.1)
            return Response(200, [b"done"], OCTETS)

        server = Server(slow)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b"x"))
        writer.write_eof()
        async with asyncio.timeout(5):
            assert (await reader.read()).endswith(b"done")
        writer.close()
        await server.close(0.1)

    asyncio.run(main())


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
            said = await reader.read()
        assert said.startswith(b"HTTP/1.1 200 OK")
        assert said.endswith(b"\r\n\r\n")
        assert (streams.server.requests, streams.server.waits) == (0, 0)
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


def test_a_close_waits_no_longer_than_it_was_told_to():
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


def test_no_header_value_ends_its_line():
    async def main() -> None:
        async def answer(request: Request) -> Answer:
            return Response(200, [b"x"], OCTETS, [("X-Name", "a\r\nSet-Cookie: b\n\0c\u20ac")])

        server = Server(answer)
        port = await server.listen("127.0.0.1", 0)
        said = await Client(server, port).send(post(b"x"))
        assert b"X-Name: a  Set-Cookie: b  c?\r\n" in said
        await server.close(0.1)

    asyncio.run(main())


def test_the_same_over_tls():
    async def main() -> None:
        server = Server(echo)
        files = TlsFiles(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
        port = await server.listen("127.0.0.1", 0, Tls(files).context)
        context = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        writer.write(post(b"x" * 50_000) + post(b"second") + b"GARBAGE\r\n\r\n")
        async with asyncio.timeout(5):
            said = await reader.read()
        assert (said.count(b"HTTP/1.1 200 OK"), said.count(b"HTTP/1.1 400 ")) == (2, 1)
        writer.close()
        await server.close(0.5)
        assert server.connections == 0

    asyncio.run(main())
