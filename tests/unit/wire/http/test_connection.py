"""One HTTP connection over a real socket: heads and bodies cut anywhere, answers in order, streams and TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from pathlib import Path

import msgspec
import pytest

from tests.unit.wire.http.sockets import Client, body_of, echo, post, served
from wherry.security.tls import Tls, TlsFiles
from wherry.wire.http.protocol.message import (
    OCTETS,
    Answer,
    Request,
    Response,
)
from wherry.wire.http.protocol.server import Server

CERTIFICATES = Path(__file__).parents[2] / "security/certificates"


@pytest.mark.parametrize("step", [None, 1, 7, 1_000])
def test_a_request_may_be_cut_anywhere(step: int | None):
    async def test(client: Client) -> None:
        received = await client.send(post(b"hello world"), step=step)
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert body_of(received) == b"hello world"

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
        received = await client.send(head + b"3\r\none\r\n5;x=y\r\n-two-\r\n0\r\n\r\n", step=step)
        assert body_of(received) == b"one-two-"

    served(test)


def test_requests_behind_each_other_are_answered_in_order():
    async def test(client: Client) -> None:
        received = await client.send(b"".join(post(b"%d" % number) for number in range(50)), answers=50)
        assert received.count(b"HTTP/1.1 200 OK") == 50
        answers = [part.partition(b"\r\n\r\n")[2] for part in received.split(b"HTTP/1.1 200 OK")[1:]]
        assert answers == [b"%d" % number for number in range(50)]

    served(test)


def test_a_tail_behind_a_body_is_the_next_request():
    async def test(client: Client) -> None:
        received = await client.send(post(b"x" * 50_000) + post(b"tail"), step=9_999, answers=2)
        assert received.count(b"HTTP/1.1 200 OK") == 2
        assert received.endswith(b"tail")

    served(test)


@pytest.mark.parametrize("step", [None, 1])
def test_a_request_behind_chunks_is_a_request_of_its_own(step: int | None):
    async def test(client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        received = await client.send(head + b"5\r\nfirst\r\n0\r\n\r\n" + post(b"second"), step=step, answers=2)
        answers = [part.partition(b"\r\n\r\n")[2] for part in received.split(b"HTTP/1.1 200 OK")[1:]]
        assert answers == [b"first", b"second"]

    served(test)


def test_names_with_slashes_and_queries_are_decoded():
    async def test(client: Client) -> None:
        received = await client.send(b"GET /info?a=1&b=%20x&a=2 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert msgspec.json.decode(body_of(received))["query"] == [["a", "1"], ["b", " x"], ["a", "2"]]
        assert Request("GET", "/v1/topics/a%2Fb", "", {}).segments() == ["v1", "topics", "a/b"]

    served(test)


def test_a_head_asks_for_no_body():
    async def test(client: Client) -> None:
        received = await client.send(b"HEAD /info HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"Content-Length: " in received
        assert body_of(received) == b""

    served(test)


def test_old_clients_are_closed_behind_their_answer():
    async def test(client: Client) -> None:
        assert b"Connection: close" in await client.send(b"GET /info HTTP/1.0\r\n\r\n")
        assert b"Connection: keep-alive" in await client.send(b"GET /info HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")

    served(test)


def test_a_client_that_expects_100_is_answered_to_continue():
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
        received = await client.send(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
        assert body_of(received) == b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"
        received = await client.send(b"GET /stream HTTP/1.0\r\n\r\n")
        assert body_of(received) == b"onetwothree"

    served(test)


def test_a_client_that_half_closes_still_gets_the_answer():
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


def test_an_answer_that_no_client_gets_is_undone():
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
        reset = struct.pack("ii", 1, 0)  # the reset is sent at once when the socket closes, and nothing more is read
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.close()
        await asyncio.sleep(0.05)
        go.set()
        async with asyncio.timeout(5):
            await undone.wait()
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
            received = await reader.read()
        assert (received.count(b"HTTP/1.1 200 OK"), received.count(b"HTTP/1.1 400 ")) == (2, 1)
        writer.close()
        await server.close(0.5)
        assert server.connections == 0

    asyncio.run(main())
