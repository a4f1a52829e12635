"""`/api`, as tools of RabbitMQ ask it: names and fields are theirs."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.amqp.raw import CONSUME, CONSUME_OK, QUEUE_DECLARE, QUEUE_DECLARE_OK, Raw, long, short
from wherry.model.key import Right
from wherry.node.config import AmqpSection, Config, SecuritySection, ServerSection, StorageSection
from wherry.node.node import Node
from wherry.security.keys import make


async def get(node: Node, path: str, user: str = "guest:guest", **headers: str) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    basic = base64.b64encode(user.encode()).decode()
    lines = [f"GET /api/{path} HTTP/1.1", "Host: localhost", "Connection: close", f"Authorization: Basic {basic}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body)


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
def test_tools_see_queues_exchanges_bindings_and_who_is_connected(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            assert node.amqp_url is not None
            raw = await asyncio.to_thread(with_a_queue, node.amqp_url.replace("//", "//guest:guest@") + "/")
            (queue,) = (await get(node, "queues/%2F"))[1]
            counts = ("messages", "messages_ready", "messages_unacknowledged", "consumers")
            assert [queue[name] for name in counts] == [3, 0, 3, 1]
            assert (queue["name"], queue["vhost"], queue["durable"]) == ("jobs", "/", True)
            assert queue["arguments"] == {"x-max-priority": 5}
            assert (await get(node, "queues/%2F/jobs"))[1] == queue
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


def test_with_keys_whoever_asks_sees_what_a_key_may_consume(tmp_path):
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
