"""Requests that are broken, hostile or not allowed: each is told so, and nothing behind it is read."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.unit.wire.http.memory import Client, body_of, post, served
from wherry.model.errors import Unauthorized
from wherry.wire.http.protocol.connection import PARTING_S
from wherry.wire.http.protocol.message import (
    OCTETS,
    Answer,
    Request,
    Response,
)
from wherry.wire.http.protocol.server import TICK_S


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
def test_a_request_that_is_wrong_is_answered_by_a_problem_that_names_the_fault(data: bytes, status: int, word: str):
    async def test(client: Client) -> None:
        said = await client.send(data)
        assert said.startswith(b"HTTP/1.1 %d " % status)
        assert b"application/problem+json" in said
        assert word in msgspec.json.decode(body_of(said))["detail"]

    served(test)


def gated(request: Request) -> None:
    if request.path != "/open":
        raise Unauthorized("who is there?")


@pytest.mark.rows("D27")
@pytest.mark.parametrize("framing", ["Content-Length: 90000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("expects", ["", "Expect: 100-continue\r\n"])
def test_a_client_without_a_key_is_refused_before_the_body_comes(framing: str, expects: str):
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


def test_a_client_that_is_refused_and_goes_on_sending_is_cut_off():
    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(b"GARBAGE\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        began = asyncio.get_running_loop().time()
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"x" * 1_000)
                await writer.drain()
                await asyncio.sleep(0.02)
        assert PARTING_S <= asyncio.get_running_loop().time() - began < PARTING_S + 2 * TICK_S
        assert client.server.connections == 0
        writer.close()

    served(test)


def test_no_header_value_ends_its_line():
    async def answer(request: Request) -> Answer:
        return Response(200, [b"x"], OCTETS, [("X-Name", "a\r\nSet-Cookie: b\n\0c\u20ac")])

    async def test(client: Client) -> None:
        assert b"X-Name: a  Set-Cookie: b  c?\r\n" in await client.send(post(b"x"))

    served(test, answer)
