"""Answers as they may arrive: whole, byte by byte, with a tail, and broken."""

from __future__ import annotations

import asyncio

import pytest

import wherry
from wherry.client.link.address import Address
from wherry.client.link.connection import Connection
from wherry.client.link.pool import BOUNDS, Pool
from wherry.client.link.transport import ClientRequest, ClientResponse

BODY = bytes(range(256)) * 200
"""Longer than what is copied, so that the body stays in Arrow's memory."""

SHORT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
LONG = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
NOTHING = b"HTTP/1.1 204 No Content\r\nServer: wherry\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n" + SHORT
BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Wire(asyncio.Transport):
    """The other end, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.unsent = 0
        self.over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.over

    def close(self) -> None:
        self.over = True

    def abort(self) -> None:
        self.over = True


def feed(connection: Connection, data: bytes, step: int) -> None:
    while data:
        room = connection.get_buffer(-1)
        count = min(step, len(room), len(data))
        room[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


class Wired(Pool):
    """A pool whose connections lead to this wire."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(Address("broker"), "wk_1", timeout_s=5.0)
        self.wire, self.connection = wire, Connection("the broker", BOUNDS)

    async def _connect(self) -> Connection:
        self.connection.connection_made(self.wire)
        return self.connection


async def ask(
    data: bytes, *, step: int = 1 << 20, ask: ClientRequest | None = None
) -> tuple[ClientResponse, Connection, Wire]:
    """Ask something, and have this arrive."""
    pool = Wired(Wire())
    asking = asyncio.ensure_future(pool.ask(ask or ClientRequest("GET", "/v1/topics")))
    await asyncio.sleep(0)
    feed(pool.connection, data, step)
    return await asking, pool.connection, pool.wire


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("data", "status", "body"),
    [(SHORT, 200, b"{}"), (LONG, 200, BODY), (NOTHING, 204, b""), (CHUNKED, 200, b"abcde"), (GO_ON, 200, b"{}")],
    ids=["short", "long", "nothing", "chunked", "go on"],
)
def test_an_answer_is_whole_however_it_is_cut(data, status, body, step):
    answer, connection, _ = asyncio.run(ask(data, step=step))
    assert (answer.status, bytes(answer.body)) == (status, body)
    assert connection.free


def test_a_request_names_the_client_and_what_it_asks_for():
    sent = ClientRequest("POST", "/v1/topics/a/messages", [b"abc", memoryview(b"de")], "text/plain", accept="*/*")
    _, _, wire = asyncio.run(ask(NOTHING, ask=sent))
    head, _, body = wire.sent.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /v1/topics/a/messages HTTP/1.1",
        b"Host: broker:7070",
        b"Authorization: Bearer wk_1",
        b"Accept: */*",
        b"Content-Type: text/plain",
        b"Content-Length: 5",
    ]
    assert body == b"abcde"


def test_a_connection_that_the_broker_ends_is_not_used_again():
    answer, connection, wire = asyncio.run(ask(BUSY))
    assert (answer.status, answer.ok, answer.retry_after_s) == (503, False, 3.0)
    assert wire.over
    assert not connection.free


def test_bytes_behind_an_answer_without_a_request_end_the_connection():
    answer, connection, wire = asyncio.run(ask(SHORT + SHORT))
    assert bytes(answer.body) == b"{}"
    assert wire.over
    assert not connection.free


def test_a_connection_is_not_used_again_while_a_part_of_its_request_is_not_sent():
    async def main() -> Wired:
        pool = Wired(Wire())
        pool.wire.unsent = 1
        asking = asyncio.ensure_future(pool.ask(ClientRequest("POST", "/", [b"large"], "text/plain")))
        await asyncio.sleep(0)
        feed(pool.connection, SHORT, 1 << 20)
        assert (await asking).status == 200
        return pool

    assert not asyncio.run(main()).connection.free


def test_a_connection_that_is_closed_before_its_first_request_is_unavailable():
    async def main() -> None:
        connection = Connection("the broker", BOUNDS)
        connection.connection_made(Wire())
        connection.connection_lost(None)
        await connection.ask(b"GET / HTTP/1.1\r\n\r\n", [])

    with pytest.raises(wherry.Unavailable, match="closed"):
        asyncio.run(main())


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (BOUNDS.answer_bytes + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot a length\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (200 << 10),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * BOUNDS.head_bytes + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
    ids=[
        "another protocol",
        "no length",
        "too long",
        "broken chunks",
        "endless head",
        "a head beyond the bound",
        "heads without an end",
        "a line of another protocol",
    ],
)
def test_an_answer_that_is_none_is_unavailable(data):
    with pytest.raises(wherry.Unavailable):
        asyncio.run(ask(data, step=4_096))


def test_a_connection_lost_halfway_is_unavailable():
    async def main() -> None:
        connection = Connection("the broker", BOUNDS)
        connection.connection_made(Wire())
        asking = asyncio.ensure_future(connection.ask(b"GET / HTTP/1.1\r\n\r\n", [], 5.0))
        await asyncio.sleep(0)
        feed(connection, LONG[:100], 100)
        connection.connection_lost(None)
        await asking

    with pytest.raises(wherry.Unavailable, match="closed"):
        asyncio.run(main())


def test_an_answer_that_does_not_come_is_not_waited_for():
    async def main() -> None:
        connection = Connection("the broker", BOUNDS)
        connection.connection_made(Wire())
        await connection.ask(b"GET / HTTP/1.1\r\n\r\n", [], 0.01)

    with pytest.raises(wherry.Unavailable, match="no answer"):
        asyncio.run(main())
