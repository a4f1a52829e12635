"""One HTTP connection: heads and bodies cut anywhere, answers in order, streams, clients that leave."""

from __future__ import annotations

import asyncio
import os

import msgspec
import pytest

from tests.unit.wire.http.memory import QUIET_S, Client, body_of, post, served
from wherry.wire.http.protocol.message import (
    OCTETS,
    Answer,
    Request,
    Response,
)


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


@pytest.mark.parametrize("step", [None, 1])
def test_a_request_behind_chunks_is_a_request_of_its_own(step: int | None):
    async def test(client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        said = await client.send(head + b"5\r\nfirst\r\n0\r\n\r\n" + post(b"second"), step=step)
        answers = [part.partition(b"\r\n\r\n")[2] for part in said.split(b"HTTP/1.1 200 OK")[1:]]
        assert answers == [b"first", b"second"]

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


def test_a_client_that_asks_first_gets_100_continue():
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


def test_a_client_that_has_half_closed_still_gets_the_answer():
    async def slow(request: Request) -> Answer:
        await asyncio.sleep(QUIET_S)
        return Response(200, [b"done"], OCTETS)

    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(post(b"x"))
        writer.write_eof()
        assert (await reader.read()).endswith(b"done")
        writer.close()

    served(test, slow)


def test_an_answer_that_the_client_does_not_get_is_undone():
    undone: list[str] = []

    async def late(request: Request) -> Answer:
        await asyncio.sleep(QUIET_S)
        return Response(200, [b"x"], undo=lambda: undone.append(request.path))

    async def test(client: Client) -> None:
        _, writer = await client.open()
        writer.write(post(b"x", "/late"))
        await asyncio.sleep(QUIET_S / 2)
        writer.transport.abort()
        await asyncio.sleep(QUIET_S)
        assert undone == ["/late"]

    served(test, late)
