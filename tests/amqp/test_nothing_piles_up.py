"""What is kept of exchanges and queues ends with them: to make and delete them for ever costs nothing."""

from __future__ import annotations

import asyncio

from tests.amqp.raw import EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK, QUEUE_BIND, QUEUE_BIND_OK, Raw, long, short
from tests.amqp.wires import broker_of, durable, served
from wherry.model.catalog.route import Binding, Route
from wherry.queueing.hosts.exchanges import KEPT_SLACK
from wherry.queueing.names import ROOT

EXCHANGE_DELETE, EXCHANGE_DELETE_OK, QUEUE_UNBIND, QUEUE_UNBIND_OK = (40, 20), (40, 21), (50, 50), (50, 51)
CYCLES = 3 * KEPT_SLACK


def exchange(raw: Raw, name: str) -> None:
    raw.call(1, EXCHANGE_DECLARE, b"\0\0" + short(name) + short("direct") + b"\x02" + long(b""))
    raw.expect(EXCHANGE_DECLARE_OK)


def bind(raw: Raw, name: str, key: str) -> None:
    raw.call(1, QUEUE_BIND, b"\0\0" + short("q") + short(name) + short(key) + b"\0" + long(b""))
    raw.expect(QUEUE_BIND_OK)


def unbind(raw: Raw, name: str, key: str) -> None:
    raw.call(1, QUEUE_UNBIND, b"\0\0" + short("q") + short(name) + short(key) + long(b""))
    raw.expect(QUEUE_UNBIND_OK)


def publish(raw: Raw, name: str, key: str) -> None:
    raw.call(1, (60, 40), b"\0\0" + short(name) + short(key) + b"\0")
    raw.content(1, 1)
    raw.frame(3, 1, b"x")


def test_exchanges_that_are_made_and_deleted_leave_nothing():
    def client(url: str) -> None:
        with Raw(url).opened() as raw:
            durable(raw, "q")
            exchange(raw, "stays")
            for at in range(10):
                exchange(raw, f"x{at}")
                for name in (f"x{at}", "stays"):
                    bind(raw, name, f"key{at}")
                    publish(raw, name, f"key{at}")
                    unbind(raw, name, f"key{at}")
                raw.call(1, EXCHANGE_DELETE, b"\0\0" + short(f"x{at}") + b"\0")
                raw.expect(EXCHANGE_DELETE_OK)

    async def main() -> None:
        async with served() as (server, url):
            await asyncio.to_thread(client, url)
            assert server.queueing.hosts[ROOT].exchange_index._direct == {}
            assert broker_of(server).shard.state.catalog.leading_to("q") == []
            assert broker_of(server).shard.state.catalog._leading_to == {}

    asyncio.run(main())


def test_a_queue_that_is_deleted_over_another_wire_is_forgotten_too():
    async def main() -> None:
        async with served() as (server, _):
            broker, host = broker_of(server), server.queueing.hosts[ROOT]
            for at in range(CYCLES):
                await broker.create_topic(f"t{at}")
                await broker.put_route(
                    Route(name=f"r{at}", kind="direct", bindings=(Binding(topic=f"t{at}", match="k"),))
                )
                assert host.exchange_index.topics(f"r{at}", "k", dict)[0] == (f"t{at}",)
                assert host.queue(f"t{at}").topic == f"t{at}"
                await broker.delete_route(f"r{at}")
                await broker.delete_topic(f"t{at}")
            assert len(host.exchange_index._direct) <= KEPT_SLACK + 3
            assert len(host._queues) <= KEPT_SLACK + 3

    asyncio.run(main())
