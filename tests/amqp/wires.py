"""A server over a broker of its own, in process, and what several tests send to it by hand."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import wherry
from tests.amqp.raw import (
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CONFIRM_SELECT,
    CONFIRM_SELECT_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Raw,
    long,
    short,
)
from wherry.broker.broker import Broker
from wherry.node.node import Node
from wherry.security.access import Access
from wherry.wire.amqp.server import Bounds, Connection, Server, serve

PATIENCE_S = 20
"""For what must happen. Nothing is asserted about it: it only ends what would hang."""

LASTING = b"\x10\x00\x02"
"""The properties of a persistent message, and no more."""

PASSIVE, DURABLE, EXCLUSIVE, AUTO_DELETE = 1, 2, 4, 8
"""Flags of a declare."""


# ------------------------------------------------------------------------------------------------------------- servers


@asynccontextmanager
async def served(path: Path | None = None, *, keys: bool = False, **bounds: Any) -> AsyncIterator[tuple[Server, str]]:
    """Serve a broker in memory or on a directory; yield server and URL. With `keys` the server requires them."""
    async with wherry.open(path) as broker:
        access = Access(keys, broker)
        async with serve(broker, access=access, bounds=Bounds(**bounds)) as server:
            port = await server.listen("127.0.0.1", 0)
            yield server, f"amqp://guest:guest@127.0.0.1:{port}/"


def broker_of(server: Server) -> Broker:
    """Return the broker behind a server: tests look further into it than its port lets a wire."""
    broker = server.queueing.broker
    assert isinstance(broker, Broker)
    return broker


def over(story: Callable[[Broker, str, Any], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a broker, its URL, and a way to do something in a thread."""

    async def main() -> None:
        async with served() as (server, url):
            await story(broker_of(server), url, asyncio.to_thread)

    asyncio.run(main())


def url_of(node: Node, name: str = "guest", secret: str = "guest") -> str:
    """Return the URL of a node for this user."""
    assert node.amqp_url is not None
    return node.amqp_url.replace("//", f"//{name}:{secret}@") + "/"


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that must come true."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110  what it looks at has no event
            await asyncio.sleep(0.02)


def connection_of(server: Server, raw: Raw) -> Connection:
    """Return the server's end of a client's socket."""
    (found,) = [each for each in server.connected if each.peer == raw.place]
    return found


def counts(broker: Broker, topic: str) -> tuple[int, int]:
    """Return how many messages are ready, and how many are on lease."""
    (found,) = [each for each in broker.stats(topic).subscriptions if each.name == "amqp"]
    return found.ready, found.leased


# -------------------------------------------------------------------------------------------------------------- tables


def text(name: str, value: str) -> bytes:
    return short(name) + b"S" + long(value.encode())


def number(name: str, value: int) -> bytes:
    return short(name) + b"I" + struct.pack(">i", value)


def nested(depth: int) -> bytes:
    """Return a table in a table in a table, with its length before it."""
    table = long(b"")
    for _ in range(depth):
        table = long(short("t") + b"F" + table)
    return table


# --------------------------------------------------------------------------------------------------------------- calls


def declared(raw: Raw, name: str, *arguments: bytes, flags: int = DURABLE) -> int:
    """Declare a queue, and return how many messages are in it."""
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short(name) + bytes([flags]) + long(b"".join(arguments)))
    answer = raw.expect(QUEUE_DECLARE_OK).arguments
    return int(struct.unpack_from(">I", answer, 1 + answer[0])[0])


def durable(raw: Raw, name: str) -> None:
    declared(raw, name)


def confirming(raw: Raw) -> Raw:
    raw.call(1, CONFIRM_SELECT, b"\0")
    raw.expect(CONFIRM_SELECT_OK)
    return raw


def refused(raw: Raw, call: Callable[[], Any]) -> int:
    """Return the code of a channel's end; the channel is open again afterwards."""
    found = call()
    assert found.method == CHANNEL_CLOSE, found
    raw.call(1, CHANNEL_CLOSE_OK)
    raw.open_channel(1)
    code: int = found.code
    return code
