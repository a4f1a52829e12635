"""Every bound of a connection at its edge: sizes, numbers, times."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.behaviour.world import VirtualClock
from tests.unit.wire.http.memory import QUIET_S, SMALL, Client, echo, post, served
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.sim.world import loop
from wherry.wire.http.app import App, serve
from wherry.wire.http.protocol.bounds import Bounds
from wherry.wire.http.protocol.connection import INBOX_BYTES, Connection
from wherry.wire.http.protocol.message import Answer, Request, Response
from wherry.wire.http.protocol.server import Server
from wherry.wire.partial_body import FIRST_BYTES, GROWTH, GROWTH_WHEN_SHORT, PartialBody


def test_too_many_chunks_are_cut_off():
    async def test(client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        said = await client.send(head + (b"2000\r\n" + b"x" * 0x2000 + b"\r\n") * 20)
        assert said.startswith(b"HTTP/1.1 413 ")

    served(test)


def test_too_many_headers_are_refused():
    async def test(client: Client) -> None:
        said = await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n" + b"A: b\r\n" * 512 + b"\r\n")
        assert said.startswith(b"HTTP/1.1 431 ")

    served(test)


def test_one_connection_too_many_is_refused_and_the_others_go_on():
    async def test(client: Client) -> None:
        held = [await client.open() for _ in range(4)]
        await asyncio.sleep(QUIET_S)
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
        await asyncio.sleep(QUIET_S)
        assert (await client.send(post(b"x" * 90_000))).startswith(b"HTTP/1.1 503 ")
        slow.close()
        await asyncio.sleep(QUIET_S)
        assert (await client.send(post(b"x" * 90_000))).startswith(b"HTTP/1.1 200 ")

    served(test)


def grown(length: int, growth: int) -> tuple[list[int], int]:
    """The rooms that a body has one after another, and the bytes that are moved between them."""
    gathering, rooms, moved = PartialBody(length), [], 0
    while not gathering.is_whole:
        moved += gathering.got
        gathering.grow(gathering.next_room(growth))
        rooms.append(gathering.room)
        gathering.space()[:] = bytes([len(rooms)]) * len(gathering.space())
        gathering.got = gathering.room
    assert len(memoryview(gathering.take())) == length
    assert bytes(memoryview(gathering.take())[: rooms[0]]) == b"\1" * rooms[0]
    return rooms, moved


def test_room_for_a_body_follows_what_came_and_little_is_moved():
    length = 32 << 20
    rooms, moved = grown(length, GROWTH)
    assert rooms == [4_096, 32_768, 262_144, 2_097_152, 16_777_216, length]
    assert moved < length * 3 // 5  # the last step is a short one; a seventh where it is whole
    assert grown(16 << 20, GROWTH)[1] < (16 << 20) // 7 + 1
    assert max(later / room for room, later in pairwise(grown(length, GROWTH_WHEN_SHORT)[0])) == 2


@pytest.mark.parametrize(("bound", "least", "most"), [(1_000_000, 90_000, 90_000), (150_000, 40_000, 80_000)])
def test_bodies_take_smaller_steps_where_memory_is_short(bound, least, most):
    async def test(client: Client) -> None:
        _, writer = await client.open()
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n\r\n" + b"x" * 40_000)
        await asyncio.sleep(QUIET_S)
        assert least <= client.server.bodies_bytes <= most
        writer.close()

    served(test, bounds=replace(SMALL, bodies_bytes=bound))


def test_chunks_count_with_what_is_allocated_for_them():
    async def test(client: Client) -> None:
        _, writer = await client.open()
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n15f90\r\npart")
        await asyncio.sleep(QUIET_S)
        assert 4 <= client.server.bodies_bytes < 100
        writer.close()

    served(test)


def test_a_body_that_is_only_announced_takes_no_room():
    async def test(client: Client) -> None:
        slow = [(await client.open())[1] for _ in range(3)]
        for each in slow:
            each.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999\r\n\r\npart")
        await asyncio.sleep(QUIET_S)
        assert client.server.bodies_bytes == 3 * FIRST_BYTES
        assert (await client.send(post(b"x" * 90_000))).startswith(b"HTTP/1.1 200 ")
        for each in slow:
            each.close()

    served(test)


def test_answers_that_the_client_does_not_read_are_bounded():
    undone: list[str] = []

    async def large(request: Request) -> Answer:
        return Response(200, [bytes(8 << 20)], undo=lambda: undone.append(request.path))

    async def test(client: Client) -> None:
        silent = [(await client.open())[1] for _ in range(2)]
        for each in silent:
            each.transport.pause_reading()  # type: ignore[attr-defined]
            each.write(b"GET /silent HTTP/1.1\r\nHost: h\r\n\r\n")
        await asyncio.sleep(QUIET_S)
        server = client.server
        assert server.answers_bytes == 2 * (8 << 20)
        received = await client.send(b"GET /late HTTP/1.1\r\nHost: h\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 503 ")
        assert b'"busy"' in received
        assert (undone, server.refused["bodies_bytes"]) == (["/late"], 1)
        for each in silent:
            each.transport.abort()
        await asyncio.sleep(QUIET_S)
        assert server.answers_bytes == 0
        received = await client.send(b"GET /again HTTP/1.1\r\nHost: h\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 200 ")

    served(test, large, Bounds(bodies_bytes=20 << 20))


def test_a_body_that_is_no_messages_may_not_be_as_large():
    async def main() -> None:
        broker = await start(MemoryEngine(), None, VirtualClock())
        async with serve(App(broker)) as server:
            client = Client(server)
            spaces = b" " * (1 << 20)
            for head in (b"Content-Length: 1048577\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n100001\r\n"):
                line = b"PUT /v1/topics/t HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                said = await client.send(line + head + spaces)
                assert said.startswith(b"HTTP/1.1 413 ")
                assert b"at most 1048576" in said
            whole = b"PUT /v1/topics/t HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            said = await client.send(whole + b"Content-Length: 1048576\r\n\r\n{}" + spaces[2:])
            assert said.startswith(b"HTTP/1.1 201 ")
            said = await client.send(post(bytes(1 << 20) + b"x", "/v1/topics/t/messages").replace(b"here", b"[::1]", 1))
            assert b"413" not in said.partition(b"\r\n")[0]
        await broker.close()

    loop.run(main())


def test_large_bodies_leave_room_for_small_ones():
    server = Server(echo, bounds=Bounds(bodies_bytes=80 << 20))
    assert server.hold(70 << 20, 70 << 20)
    assert not server.hold(1, 2 << 20)
    assert server.hold(1 << 20, 1 << 20)


def test_an_idle_connection_gives_its_buffer_back():
    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(post(b"x", "/", "Big: " + "y" * 3_000))
        await reader.readuntil(b"\r\n\r\nx")
        (connection,) = client.server.connected
        assert isinstance(connection, Connection)
        assert len(connection._inbox) == INBOX_BYTES
        writer.close()

    served(test)


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        (b"GET / HTTP/1.1\r\nHos", b"408"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf", b"408"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha", b"408"),
        (b"", b""),
    ],
)
def test_a_client_that_takes_too_long_is_closed(begun: bytes, status: bytes):
    async def test(client: Client) -> None:
        reader, writer = await client.open()
        writer.write(begun)
        async with asyncio.timeout(5):
            said = await reader.read()
        assert said[9:12] == status
        writer.close()

    served(test, bounds=replace(SMALL, head_s=2, body_s=2, idle_s=2))


def test_a_wait_ends_with_its_client():
    ended: list[str] = []

    async def test(client: Client) -> None:
        async def wait(request: Request) -> Answer:
            client.server.begin_wait(request)
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(request.path)
            return Response(204)

        client.server._app = wait
        _, writer = await client.open()
        writer.write(post(b"x"))
        await asyncio.sleep(QUIET_S)
        assert client.server.waits == 1
        writer.close()
        await asyncio.sleep(QUIET_S)
        assert (ended, client.server.waits) == (["/"], 0)

    served(test)
