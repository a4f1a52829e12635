"""A socket that is closed gets nothing more, even before the broker has noticed the end."""

from __future__ import annotations

import asyncio

import pytest

from tests.amqp.raw import CONSUME, CONSUME_OK, Raw, short
from tests.amqp.wires import LASTING, broker_of, connection_of, counts, declared, durable, served, until

COUNT = 5_000


def consuming(url: str) -> Raw:
    """Consume "q" without acks."""
    raw = Raw(url).opened()
    durable(raw, "q")
    raw.call(1, CONSUME, b"\0\0" + short("q") + short("c") + b"\2" + bytes(4))
    raw.expect(CONSUME_OK)
    return raw


def fill(url: str) -> None:
    with Raw(url).opened() as raw:
        for _ in range(COUNT):
            raw.publish("q", b"m", LASTING)
        assert declared(raw, "q") == COUNT


@pytest.mark.rows("Q3")
def test_a_backlog_is_not_emptied_into_a_socket_that_is_closing():
    async def main() -> None:
        async with served() as (server, url):
            raw = await asyncio.to_thread(consuming, url)
            with raw:
                connection = connection_of(server, raw)
                channel = connection.session.channels[1]
                channel.flows = False
                await asyncio.to_thread(fill, url)
                channel.flows = True
                server.queueing.hosts["/"].queue("q").wake()
                connection._transport.abort()  # the connection notices that in the next turn, behind the queue
                await until(lambda: connection not in server.connected)
                await until(lambda: counts(broker_of(server), "q") == (COUNT, 0))

    asyncio.run(main())


def test_others_have_their_turn_while_a_backlog_is_dealt():
    async def main() -> None:
        async with served() as (server, url):
            raw = await asyncio.to_thread(consuming, url)
            with raw:
                channel = connection_of(server, raw).session.channels[1]
                channel.flows = False
                await asyncio.to_thread(fill, url)
                queue = server.queueing.hosts["/"].queue("q")
                seen: list[int] = []
                channel.flows = True
                queue.wake()
                while not seen or seen[-1]:
                    seen.append(counts(broker_of(server), "q")[0])
                    await asyncio.sleep(0)
                assert len(set(seen)) > 3, "it was dealt in several turns"

    asyncio.run(main())
