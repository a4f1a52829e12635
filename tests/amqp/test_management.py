"""`/api`, as tools of RabbitMQ ask it: names and fields are theirs."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.amqp.raw import (
    CLOSE,
    CONSUME,
    CONSUME_OK,
    OPEN,
    OPEN_OK,
    QUEUE_BIND,
    QUEUE_BIND_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    TUNE,
    TUNE_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import durable, nested, url_of
from wherry.model.catalog.key import Right
from wherry.node.config import AmqpSection, Config, SecuritySection, ServerSection, StorageSection
from wherry.node.node import Node
from wherry.security.keys import make


async def get(node: Node, path: str, user: str = "guest:guest", method: str = "GET", **headers: str) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    basic = base64.b64encode(user.encode()).decode()
    lines = [f"{method} /api/{path} HTTP/1.1", "Host: localhost", "Connection: close", f"Authorization: Basic {basic}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body or b"null")


def config(tmp_path: Path, **security: Any) -> Config:
    return Config(
        server=ServerSection(port=0),
        storage=StorageSection(path=str(tmp_path / "data")),
        security=SecuritySection(**security),
        amqp=AmqpSection(hosts=("/", "staging")),
    )


def with_a_queue(url: str) -> Raw:
    raw = Raw(url).opened()
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short("jobs") + b"\x02" + long(short("x-max-priority") + b"b\x05"))
    raw.expect(QUEUE_DECLARE_OK)
    for _ in range(3):
        raw.publish("jobs", b"x")
    raw.call(1, CONSUME, b"\0\0" + short("jobs") + short("me") + b"\0" + long(b""))
    raw.expect(CONSUME_OK)
    for _ in range(9):
        raw.next()
    return raw


@pytest.mark.rows("Q12")
def test_tools_see_queues_exchanges_bindings_and_connections(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            raw = await asyncio.to_thread(with_a_queue, url_of(node))
            (queue,) = (await get(node, "queues/%2F"))[1]
            counts = ("messages", "messages_ready", "messages_unacknowledged", "consumers")
            assert [queue[name] for name in counts] == [3, 0, 3, 1]
            assert (queue["name"], queue["vhost"], queue["durable"]) == ("jobs", "/", True)
            assert queue["arguments"] == {"x-max-priority": 5}
            one = (await get(node, "queues/%2F/jobs"))[1]
            assert [each["consumer_tag"] for each in one.pop("consumer_details")] == ["me"]
            assert one == queue
            assert (await get(node, "queues/staging"))[1] == []
            names = {each["name"] for each in (await get(node, "exchanges/%2F"))[1]}
            assert {"", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"} <= names
            assert [each["destination"] for each in (await get(node, "bindings/%2F"))[1]] == ["jobs"]
            (connection,) = (await get(node, "connections"))[1]
            assert (connection["user"], connection["channels"], connection["state"]) == ("guest", 1, "running")
            (consumer,) = (await get(node, "consumers"))[1]
            assert (consumer["consumer_tag"], consumer["queue"]["name"]) == ("me", "jobs")
            assert (await get(node, "channels"))[1][0]["messages_unacknowledged"] == 3
            overview = (await get(node, "overview"))[1]
            assert (overview["object_totals"]["queues"], overview["queue_totals"]["messages"]) == (1, 3)
            assert [each["name"] for each in (await get(node, "vhosts"))[1]] == ["/", "staging"]
            assert (await get(node, "vhosts/staging"))[1]["name"] == "staging"
            assert (await get(node, "whoami"))[1]["name"] == "guest"
            assert (await get(node, "aliveness-test/%2F"))[1] == {"status": "ok"}
            for missing in ("nothing", "queues/%2F/none", "aliveness-test/none"):
                assert (await get(node, missing))[0] == 404, missing
            assert (await get(node, "queues", Origin="http://elsewhere"))[0] == 403
            raw.__exit__(None, None, None)

    asyncio.run(main())


@pytest.mark.rows("Q12")
def test_a_connection_is_closed_by_an_administrator_with_a_reason(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path, keys="on")) as node:
            assert node.first_key is not None
            admin = node.first_key.read_text().strip()
            reader = make("reader", [Right("consume", "*")], now_ms=0)
            await node.broker.put_key(reader.key)
            raw = await asyncio.to_thread(lambda: Raw(url_of(node, "me", admin)).opened())
            with raw:
                (shown,) = (await get(node, "connections", f"me:{admin}"))[1]
                assert (shown["peer_host"], shown["peer_port"]) == raw.place
                path = "connections/" + quote(shown["name"], safe="")
                assert (await get(node, path, "me:wrong", "DELETE"))[0] == 401
                assert (await get(node, path, f"me:{reader.token}", "DELETE"))[0] == 403
                assert (await get(node, "nodes/wherry", f"me:{admin}", "DELETE"))[0] == 405
                assert (await get(node, "connections/none", f"me:{admin}", "DELETE"))[0] == 404
                assert (await get(node, path, f"me:{admin}", "DELETE", **{"X-Reason": "enough"})) == (204, None)
                found = await asyncio.to_thread(raw.expect, CLOSE)
                assert (found.code, b"enough" in found.arguments) == (320, True)

    asyncio.run(main())


def test_with_keys_a_client_sees_what_its_key_may_consume(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path, keys="on")) as node:
            assert node.first_key is not None
            admin = node.first_key.read_text().strip()
            await node.broker.create_topic("seen")
            await node.broker.create_topic("hidden")

            made = make("reader", [Right("consume", "seen")], now_ms=0)
            await node.broker.put_key(made.key)
            assert (await get(node, "overview"))[0] == 401
            assert (await get(node, "queues"))[0] == 401
            names = {
                user: [each["name"] for each in (await get(node, "queues", f"{user}:{token}"))[1]]
                for user, token in (("admin", admin), ("reader", made.token))
            }
            assert names == {"admin": ["hidden", "seen"], "reader": ["seen"]}

    asyncio.run(main())


NO_TEXT = b"\xff\xfe"
"""No UTF-8, wherever it stands."""

ODD = {
    "product": b"I" + struct.pack(">i", 5),
    "version": b"A" + long(b"t\x01V"),
    "platform": b"S" + long(NO_TEXT),
    "deep": b"F" + nested(40),
    "raw": b"x" + long(b"\x00" + NO_TEXT),
    "nan": b"d" + struct.pack(">d", float("nan")),
    "list": b"A" + long(b"S" + long(NO_TEXT) + b"d" + struct.pack(">d", float("inf"))),
    "when": b"T" + struct.pack(">Q", (1 << 64) - 1),
    "price": b"D" + struct.pack(">Bi", 2, -314),
    "long": b"S" + long(b"x" * 2_500),
    "capabilities": b"I" + struct.pack(">i", 1),
}
"""Client properties of any kind, whatever they should be; with the login 4,096 bytes at most."""


def oddly_opened(url: str) -> Raw:
    """Connect with odd properties and an odd name, and bind and consume under odd names too."""
    raw = Raw(url)
    raw.begin()
    properties = b"".join(short(name) + value for name, value in ODD.items())
    properties += bytes([len(NO_TEXT)]) + NO_TEXT + b"S" + long(b"under a name that is no text")
    properties += short("table") + b"F" + long(bytes([len(NO_TEXT)]) + NO_TEXT + b"t\x01")
    login = short("LOGIN") + b"S" + long(NO_TEXT) + short("PASSWORD") + b"S" + long(b"x")
    raw.start_ok("AMQPLAIN", login, properties)
    raw.call(0, TUNE_OK, raw.expect(TUNE).arguments)
    raw.call(0, OPEN, short("/") + short("") + b"\0")
    raw.expect(OPEN_OK)
    raw.open_channel(1)
    durable(raw, "q")
    argument = bytes([2 + len(NO_TEXT)]) + b"x-" + NO_TEXT + b"t\x01"
    raw.call(1, QUEUE_BIND, b"\0\0" + short("q") + short("amq.headers") + short("") + b"\0" + long(argument))
    raw.expect(QUEUE_BIND_OK)
    raw.call(1, CONSUME, b"\0\0" + short("q") + bytes([len(NO_TEXT)]) + NO_TEXT + b"\0" + long(b""))
    raw.expect(CONSUME_OK)
    return raw


@pytest.mark.rows("Q12")
def test_tools_get_json_whatever_properties_clients_have(tmp_path):
    async def main() -> None:
        served = msgspec.structs.replace(config(tmp_path), amqp=AmqpSection(any_user=True))
        async with Node(served) as node:
            plain = await asyncio.to_thread(lambda: Raw(url_of(node)).opened())
            with plain, await asyncio.to_thread(oddly_opened, url_of(node)):
                found = {
                    table: await get(node, table)
                    for table in ("connections", "channels", "consumers", "bindings", "queues", "exchanges", "overview")
                }
                assert {table: status for table, (status, _) in found.items()} == dict.fromkeys(found, 200)
                shown = {each["user"]: each["client_properties"] for each in found["connections"][1]}
                assert sorted(shown) == ["??", "guest"]
                check_properties(shown["??"])
                assert [each["consumer_tag"] for each in found["consumers"][1]] == ["??"]
                bound = [each["arguments"] for each in found["bindings"][1] if each["source"] == "amq.headers"]
                assert bound == [{"x-??": True}]

    asyncio.run(main())


def check_properties(properties: dict[str, Any]) -> None:
    """Check that values which JSON has are as they came, and the rest is text."""
    plain = ("product", "version", "when", "long")
    assert [properties[name] for name in plain] == [5, [True, None], (1 << 64) - 1, "x" * 2_500]
    assert [properties[name] for name in ("platform", "nan", "list", "price")] == ["??", "nan", ["??", "inf"], "-3.14"]
    assert properties["??"] == "under a name that is no text"
    assert properties["table"] == {"??": True}
    assert isinstance(properties["raw"], str)
    depth, inner = 0, properties["deep"]
    while inner:
        depth, inner = depth + 1, inner["t"]
    assert depth == 40


def test_a_client_with_too_many_properties_is_not_let_in_and_not_shown(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:

            def talker() -> int:
                with Raw(url_of(node)) as raw:
                    raw.begin()
                    raw.start_ok("PLAIN", raw.plain(), short("product") + b"S" + long(b"x" * 100_000))
                    return raw.expect(CLOSE).code

            with await asyncio.to_thread(lambda: Raw(url_of(node)).opened()):
                assert await asyncio.to_thread(talker) == 501
                assert [each["user"] for each in (await get(node, "connections"))[1]] == ["guest"]

    asyncio.run(main())
