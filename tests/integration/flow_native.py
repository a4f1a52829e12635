"""Checks of what the native wire does with messages, over a real socket, and plants that they fail with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

from tests.integration.served import Served
from tests.native_client import SocketClient, upgraded
from wherry.broker.calls.consumer import Consumer
from wherry.sim.patch import patched
from wherry.wire.native import delivering, settling, streams
from wherry.wire.native.codec.settles import Verb
from wherry.wire.native.outgoing import Outgoing
from wherry.wire.native.session import Session
from wherry.wire.native.streams import PushStream

CALM_S = 0.2
"""How long something that must not come is waited for."""


def over(node: Served, name: str, work: Callable[[SocketClient], Coroutine[Any, Any, None]], **hello: Any) -> None:
    """Do something over a connection, with a topic and its subscription `s`."""
    node.run(node.node.broker.create_topic(name))
    node.run(node.node.broker.subscribe(name, "s", lease_ms=60_000))

    async def main() -> None:
        client = await upgraded(("127.0.0.1", node.node.port), **hello)
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(main())


def check_native_credit(node: Served, name: str, patience_s: float) -> None:
    """Check that a stream gets as many messages as it granted credit for."""

    async def work(client: SocketClient) -> None:
        await client.publish(name, b"1", b"2", b"3", b"4")
        stream = await client.subscribe(name, "s", credit=2)
        await client.next_rows(stream, 2)
        await asyncio.sleep(CALM_S)
        assert not client.rows[stream], "more was pushed"

    over(node, name, work)


def one_more_credit() -> Any:
    return patched(Consumer, "grant", lambda grant: lambda self, messages: grant(self, messages + 1))


def check_native_range(node: Served, name: str, patience_s: float) -> None:
    """Check that an ack of a range settles this range."""

    async def work(client: SocketClient) -> None:
        await client.publish(name, b"1", b"2", b"3", b"4")
        stream = await client.subscribe(name, "s", credit=10)
        rows = await client.next_rows(stream, 4)
        await client.answer(client.begin_settle(stream, Verb.ACK, [(rows[0].token, [(0, 2), (3, 1)])]))
        assert node.node.broker.subscription_stats(name, "s").lag == 1, "one too many was settled, or one too few"

    over(node, name, work)


def longer_ranges() -> Any:
    def make(part: Any) -> Any:
        return lambda given: part((given[0], [(first, count + (count > 1)) for first, count in given[1]]))

    return patched(settling, "_part", make)


def check_native_confirm(node: Served, name: str, patience_s: float) -> None:
    """Check that the messages of a request are where its confirm places them."""

    async def work(client: SocketClient) -> None:
        sent = {client.begin_publish(name, b"%d" % each): b"%d" % each for each in range(5)}
        for number, payload in sent.items():
            entry = await client.answer(number)
            stored = node.run(node.node.broker.browse_page(name, entry.partition, entry.offset, 1)).batch
            assert stored.column("payload").to_pylist() == [payload], "it is stored elsewhere"

    over(node, name, work)


def next_offset() -> Any:
    def make(confirm: Any) -> Any:
        return lambda self, number, partition, offset, *more: confirm(self, number, partition, offset ^ 1, *more)

    return patched(Outgoing, "confirm", make)


def check_native_again(node: Served, name: str, patience_s: float) -> None:
    """Check that a message that comes again has a higher attempt."""

    async def work(client: SocketClient) -> None:
        await client.publish(name, b"it")
        stream = await client.subscribe(name, "s", credit=10)
        (row,) = await client.next_rows(stream)
        await client.settle(stream, Verb.NACK, row, delay_ms=0)
        (again,) = await client.next_rows(stream)
        assert again.attempt == 2, "it was not marked as redelivered"

    over(node, name, work)


def always_first() -> Any:
    def make(rows_of: Any) -> Any:
        return lambda delivery: [row._replace(attempt=1) for row in rows_of(delivery)]

    return patched(delivering, "rows_of", make)


def check_native_beat(node: Served, name: str, patience_s: float) -> None:
    """Check that a server which has nothing to send sends a PING."""

    async def work(client: SocketClient) -> None:
        for _ in range(int(min(patience_s, 5.0) / CALM_S)):
            if client.pings:
                return
            await asyncio.sleep(CALM_S)
        raise AssertionError("no heartbeat came")

    over(node, name, work, heartbeat_ms=1_000)


def no_native_beat() -> Any:
    return patched(Session, "tick", lambda _: lambda self, now: None)


def check_native_goodbye(node: Served, name: str, patience_s: float) -> None:
    """Check that a client which leaves gives its messages back as they were."""

    async def work(client: SocketClient) -> None:
        await client.publish(name, b"it")
        stream = await client.subscribe(name, "s", credit=10)
        await client.next_rows(stream)
        await client.leave()
        other = await upgraded(("127.0.0.1", node.node.port))
        stream = await other.subscribe(name, "s", credit=10)
        (row,) = await other.next_rows(stream)
        await other.close()
        assert row.attempt == 1, "an attempt was counted"

    over(node, name, work)


def a_bad_end() -> Any:
    """Count a leave as a failure; the message comes again at once, so that the check need not wait."""

    def make(close: Any) -> Any:
        async def nacked(self: PushStream, error: str = "") -> None:
            await self._broker.settler.nack([(token, None) for token in tokens], 0, "gone")
            await close(self)

        return nacked

    tokens: list[int] = []

    def note(frames_of: Any) -> Any:
        def noted(stream: int, delivery: Any, **more: Any) -> Any:
            tokens[:] = delivery.tokens
            return frames_of(stream, delivery, **more)

        return noted

    stack = ExitStack()
    stack.enter_context(patched(streams, "frames_of", note))
    stack.enter_context(patched(PushStream, "close", make))
    return stack
