"""One HTTP connection as a state machine: bytes in, bytes out, and a clock that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from tests.unit.wire.http.memory import body_of, echo, post
from tests.unit.wire.memory_transport import MemoryTransport
from wherry.sim.world import loop
from wherry.wire.http.protocol.bounds import Bounds
from wherry.wire.http.protocol.connection import PARTING_S
from wherry.wire.http.protocol.message import Answer, Request
from wherry.wire.http.protocol.server import Server

GET = b"GET /info HTTP/1.1\r\nHost: h\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n5;x=y\r\n-two-\r\n0\r\n\r\n"
UPGRADE = b"GET /upgrade HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: parrot\r\n\r\n"
BOUNDS = Bounds(head_s=10, body_s=30, body_pace=100, idle_s=75)


class Parrot(asyncio.BufferedProtocol):
    """A protocol to upgrade to: it sends back what it reads."""

    def begin(self, transport: asyncio.Transport, rest: bytes, left: Callable[[], None]) -> None:
        self._transport, self._left, self._room = transport, left, bytearray(64)
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + rest)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, count: int) -> None:
        self._transport.write(self._room[:count])

    def connection_lost(self, fault: Exception | None) -> None:
        self._left()

    def tick(self, now: float) -> None:
        """Do nothing."""

    def finish(self) -> None:
        self._transport.close()

    abort = finish


async def answer(request: Request) -> Answer:
    return Parrot() if request.path == "/upgrade" else await echo(request)


class MemoryServer:
    """A server whose clock the test sets, and one connection to it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.server = Server(answer, bounds=BOUNDS, clock=lambda: self.now, wall_clock=lambda: 0.0)
        self.connection = self.server.connection()
        self.transport = MemoryTransport(self.connection)

    async def ask(self, *pieces: bytes) -> bytes:
        """Let the connection read pieces, and return what it has written since then."""
        self.transport.written.clear()
        for piece in pieces:
            self.transport.feed(piece)
            await asyncio.sleep(0.001)  # the loop has no other timers: all that is ready is done before
        return bytes(self.transport.written)

    def tick(self, now: float) -> bytes:
        """Set the clock, and return what the connection has written by then."""
        self.now = now
        self.connection.tick(now)
        return bytes(self.transport.written)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    loop.run(test())


@pytest.mark.parametrize("request_bytes", [GET, post(b"hello"), CHUNKED, post(b"a") + CHUNKED + GET])
def test_a_request_cut_at_any_byte_has_the_same_answer(request_bytes: bytes):
    async def test() -> None:
        whole = await MemoryServer().ask(request_bytes)
        assert whole.count(b"HTTP/1.1 200 OK") == whole.count(b"HTTP/1.1")
        for at in range(1, len(request_bytes)):
            assert await MemoryServer().ask(request_bytes[:at], request_bytes[at:]) == whole
        single = [request_bytes[at : at + 1] for at in range(len(request_bytes))]
        assert await MemoryServer().ask(*single) == whole

    run(test)


def test_pipelined_requests_are_answered_in_order_and_beyond_a_head_they_are_not_read():
    async def test() -> None:
        home = MemoryServer()
        bodies = [b"%d" % number for number in range(20)]
        answers = (await home.ask(b"".join(map(post, bodies)))).split(b"HTTP/1.1 200 OK")[1:]
        assert [body_of(each) for each in answers] == bodies
        home.transport.feed(GET * 2_000)
        assert not home.transport.is_reading()
        await asyncio.sleep(1)
        assert home.transport.is_reading()
        assert home.transport.written.count(b"HTTP/1.1 200 OK") == 20 + 2_000

    run(test)


def test_chunks_are_one_body_and_what_follows_is_the_next_request():
    async def test() -> None:
        answers = (await MemoryServer().ask(CHUNKED + post(b"next"))).split(b"HTTP/1.1 200 OK")[1:]
        assert [body_of(each) for each in answers] == [b"one-two-", b"next"]

    run(test)


@pytest.mark.parametrize(
    ("begun", "most_s"),
    [
        (b"GET / HTTP/1.1\r\nHos", 10),
        (post(b"x" * 1_000)[:-1_000], 30),
        (post(b"x" * 1_000)[:-200], 30 + 8),
        (CHUNKED[:-15], 30 + 0.03),
    ],
)
def test_a_request_that_is_not_whole_in_time_is_refused_by_the_given_clock(begun: bytes, most_s: float):
    async def test() -> None:
        home = MemoryServer()
        await home.ask(begun)
        home.connection.tick(100.0 + most_s)
        assert not home.transport.written
        assert home.tick(100.0 + most_s + 0.01).startswith(b"HTTP/1.1 408 ")
        assert home.transport.is_over
        assert not home.transport.is_closed
        home.tick(home.now + PARTING_S + 0.01)
        assert home.transport.is_closed

    run(test)


def test_the_time_of_a_head_begins_with_its_first_byte_and_that_of_an_idle_connection_with_the_last_answer():
    async def test() -> None:
        home = MemoryServer()
        home.now = 150.0
        await home.ask(GET[:5])
        home.connection.tick(160.0)
        home.now = 160.0
        assert (await home.ask(GET[5:])).startswith(b"HTTP/1.1 200 ")
        home.tick(235.0)
        assert not home.transport.is_closed
        home.tick(235.1)
        assert home.transport.is_closed

    run(test)


@pytest.mark.parametrize("cut", range(1, len(UPGRADE) + 4))
def test_an_upgrade_hands_over_the_connection_and_the_bytes_behind_the_request(cut: int):
    async def test() -> None:
        home, sent = MemoryServer(), UPGRADE + b"abc"
        received = await home.ask(sent[:cut], sent[cut:], b"d")
        assert received == b"HTTP/1.1 101 Switching Protocols\r\n\r\nabcd"
        (guest,) = home.server.connected
        assert isinstance(guest, Parrot)
        guest.connection_lost(None)
        assert home.server.connections == 0

    run(test)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("wish", ["close", "keep-alive"])
def test_the_connection_closes_after_an_answer_if_the_client_wishes_it(version: str, wish: str):
    async def test() -> None:
        home = MemoryServer()
        head = f"GET / HTTP/{version}\r\nHost: h\r\nConnection: {wish}\r\n\r\n".encode()
        received = await home.ask(head + GET)
        is_closed = wish == "close"
        assert home.transport.is_over is is_closed
        assert received.count(b"HTTP/1.1 200 OK") == (1 if is_closed else 2)
        assert (b"Connection: close" in received) is is_closed

    run(test)


def test_a_client_that_closes_is_counted_out():
    async def test() -> None:
        home = MemoryServer()
        await home.ask(post(b"half")[:-1])
        assert (home.server.connections, home.server.bodies_bytes) == (1, 4)
        home.connection.connection_lost(None)
        assert (home.server.connections, home.server.bodies_bytes) == (0, 0)

    run(test)
