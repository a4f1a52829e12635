"""Which ends of a delivery count as a failed attempt on each wire: the table in docs/semantics.md, row by row."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import wherry
from tests.amqp import raw as amqp
from tests.integration.flights import Flights, Pushed, until
from tests.integration.served import Served, served
from tests.stomp import raw as stomp

pytestmark = pytest.mark.rows("G18")

LOST, EXPIRED = "the connection was lost", "the lease expired"
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as found:
        yield found


@pytest.fixture
def topic(node: Served) -> str:
    """Make a topic with two messages; the second failure of one is its end."""
    name = f"t{next(NUMBERS)}"

    async def make() -> None:
        broker = node.node.broker
        await broker.create_topic(name)
        retry = wherry.Retry(attempts=2, first_ms=0, cap_ms=0, jitter=0)
        await broker.subscribe(name, "s", lease_ms=60_000, retry=retry)
        await broker.publish(name, [b"a", b"b"])

    node.run(make())
    return name


def state_of(node: Served, topic: str, subscription: str = "s") -> tuple[int, int, int]:
    """Return how many deliveries failed, how many messages were buried, and how many are on lease."""

    async def look() -> tuple[int, int, int]:
        found = node.node.broker.stats(topic).subscriptions
        stats = next(each for each in found if each.name == subscription)
        return stats.counters.get("failed", 0), stats.counters.get("buried", 0), stats.leased

    return node.run(look())


def comes_to(node: Served, topic: str, failed: int, buried: int = 0, subscription: str = "s") -> None:
    """Wait until nothing is on lease, and check that so many failed and were buried."""
    until(lambda: state_of(node, topic, subscription)[2] == 0)
    assert state_of(node, topic, subscription) == (failed, buried, 0)


def errors(node: Served, topic: str) -> set[str]:
    async def look() -> set[str]:
        return set((await node.node.broker.dead_letters(topic)).column("error").to_pylist())

    return node.run(look())


# ---------------------------------------------------------------------------------------------------------------- HTTP


class Web:
    """One HTTP connection by hand, which can be cut."""

    def __init__(self, node: Served, target: str, body: bytes = b"", method: str = "POST") -> None:
        host, _, port = node.node.url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def read_until(self, wanted: bytes) -> bytes:
        seen = b""
        while wanted not in seen:
            seen += self.socket.recv(1 << 16)
        return seen

    def answered(self, wanted: bytes) -> None:
        """Read to a word of the answer, and hang up."""
        self.read_until(wanted)
        self.socket.close()

    def cut(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def path(topic: str, rest: str) -> str:
    return f"/v1/topics/{topic}/subscriptions/s{rest}"


def pulled(node: Served, topic: str, query: str = "") -> list[str]:
    """Return the receipts of a pull, whose connection is then cut."""
    web = Web(node, path(topic, f"/pull?consumer=me{query}"))
    answer = web.read_until(b"]}").partition(b"\r\n\r\n")[2]
    web.cut()
    return [message["receipt"] for message in json.loads(answer)["messages"]]


def test_http_a_pull_outlives_its_connection_and_its_lease_running_out_counts(node: Served, topic: str):
    receipts = pulled(node, topic)
    assert state_of(node, topic) == (0, 0, 2), "the end of the connection settles nothing"
    Web(node, path(topic, "/renew"), json.dumps({"receipts": receipts, "lease_ms": 1}).encode()).answered(b"204")
    comes_to(node, topic, failed=2)
    node.run(_change(node, topic, lease_ms=1))
    pulled(node, topic)
    comes_to(node, topic, failed=2, buried=2)
    assert errors(node, topic) == {EXPIRED}


async def _change(node: Served, topic: str, **fields: Any) -> None:
    broker = node.node.broker
    config = broker.shard.state.subscription(topic, "s").config
    await broker.change_subscription(msgspec.structs.replace(config, **fields))


@pytest.mark.parametrize("how", ["release", "leave", "nack"])
def test_http_a_settle_counts_as_the_client_sent_it(node: Served, topic: str, how: str):
    receipts = pulled(node, topic)
    if how == "leave":
        Web(node, path(topic, "/consumers/me"), method="DELETE").answered(b"204")
    else:
        Web(node, path(topic, f"/{how}"), json.dumps({"receipts": receipts}).encode()).answered(b"204")
    comes_to(node, topic, failed=2 if how == "nack" else 0)


@pytest.mark.parametrize(("ack", "failed"), [("manual", 2), ("auto", 0)])
def test_http_events_whose_connection_ends_count_unless_they_ack_themselves(
    node: Served, topic: str, ack: str, failed: int
):
    for _ in range(2 if failed else 1):
        web = Web(node, path(topic, f"/events?ack={ack}"), method="GET")
        web.read_until(b'"payload":"b"')
        web.cut()
        until(lambda: state_of(node, topic)[2] == 0)
    comes_to(node, topic, failed=failed, buried=failed)
    assert errors(node, topic) == ({LOST} if failed else set())


# -------------------------------------------------------------------------------------------------------------- Flight


@pytest.mark.parametrize(("how", "failed"), [("cancel", 2), ("fault", 2), ("end", 0)])
def test_flight_a_push_that_breaks_off_counts_and_one_that_ends_does_not(
    node: Served, topic: str, how: str, failed: int
):
    assert node.node.flight_url is not None
    flights = Flights(node.node.flight_url)
    for _ in range(2):
        stream = Pushed(flights, topic=topic, subscription="s")
        stream.send(credit=2)
        assert len(stream.next()) == 2
        if how == "fault":
            stream._writer.write_metadata(b"no JSON")
        elif how == "cancel":
            stream.cancel()
        else:
            stream.end()
        until(lambda: state_of(node, topic)[2] == 0)
    comes_to(node, topic, failed=failed, buried=failed)
    assert errors(node, topic) == ({LOST} if failed else set())


# ---------------------------------------------------------------------------------------------------------------- AMQP


AMQP_ENDS = {
    "nack": ((60, 120), struct.pack(">QB", 1, 2), 1),
    "reject": ((60, 90), struct.pack(">QB", 1, 1), 1),
    "recover": ((60, 110), b"\x01", 1),
    "channel": (amqp.CHANNEL_CLOSE, b"\x00\xc8\x00\x00\x00\x00\x00", 1),
    "connection": (amqp.CLOSE, b"\x00\xc8\x00\x00\x00\x00\x00", 1),
    "cut": (None, b"", 1),
    "reject for good": ((60, 90), struct.pack(">QB", 1, 0), 0),
}


@pytest.mark.parametrize("how", AMQP_ENDS)
def test_amqp_every_return_counts(node: Served, how: str):
    assert node.node.amqp_url is not None
    queue = f"q{next(NUMBERS)}"
    with amqp.Raw(node.node.amqp_url).opened() as client:
        client.call(1, amqp.QUEUE_DECLARE, b"\x00\x00" + amqp.short(queue) + b"\x02" + amqp.long(b""))
        client.expect(amqp.QUEUE_DECLARE_OK)
        client.publish(queue, b"a")
        while True:
            client.call(1, amqp.GET, b"\x00\x00" + amqp.short(queue) + b"\x00")
            if client.next().method == amqp.GET_OK:
                break
        assert (client.next().kind, client.next().payload) == (amqp.CONTENT, b"a")
        method, arguments, failed = AMQP_ENDS[how]
        if method is not None:
            client.call(0 if how == "connection" else 1, method, arguments)
            comes_to(node, queue, failed, subscription="amqp")
    comes_to(node, queue, failed, subscription="amqp")


# --------------------------------------------------------------------------------------------------------------- STOMP


@pytest.mark.parametrize("how", ["NACK", "UNSUBSCRIBE", "DISCONNECT", "cut"])
def test_stomp_every_return_counts(node: Served, how: str):
    assert node.node.stomp_url is not None
    queue = f"q{next(NUMBERS)}"
    with stomp.Raw(int(node.node.stomp_url.rpartition(":")[2])) as client:
        client.connect()
        client.done("SEND", b"a", destination=f"/queue/{queue}")
        client.send("SUBSCRIBE", id="1", destination=f"/queue/{queue}", ack="client-individual", prefetch_count="1")
        frame = client.expect("MESSAGE")
        if how == "NACK":
            client.send("NACK", id=frame.headers["ack"])
            assert client.expect("MESSAGE").headers["redelivered"] == "true"
            client.send("DISCONNECT")
        elif how == "UNSUBSCRIBE":
            client.done("UNSUBSCRIBE", id="1")
        elif how == "DISCONNECT":
            client.done("DISCONNECT")
    comes_to(node, queue, failed=2 if how == "NACK" else 1, subscription="amqp")


# ------------------------------------------------------------------------------------------------------- the broker


def test_the_end_of_the_broker_counts_nothing(tmp_path: Path):
    async def main() -> None:
        for _ in range(3):
            async with wherry.open(tmp_path) as broker:
                await broker.create_topic("jobs")
                await broker.subscribe("jobs", "s")
                if not broker.stats("jobs").messages:
                    await broker.publish("jobs", [b"a"])
                consumer = await broker.consumer("jobs", "s")
                assert [message.attempt for message in await consumer.pull()] == [1]

    asyncio.run(main())
