"""`/api`, as tools of RabbitMQ change things: queues, exchanges, bindings, messages. Statuses are RabbitMQ's."""

from __future__ import annotations

import asyncio
import base64
from typing import Any
from urllib.parse import quote

import pytest

from tests.amqp.tools import admin_of, ask, config
from wherry.model.catalog.key import Right, Verb
from wherry.node.node import Node
from wherry.security.keys import make


async def status_of(node: Node, call: str, body: Any = None) -> int:
    return (await ask(node, call, body))[0]


@pytest.mark.rows("Q12")
def test_queues_are_declared_purged_and_deleted(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            queue = {"durable": True, "auto_delete": False, "arguments": {"x-max-priority": 5}, "node": None}
            assert await status_of(node, "PUT queues/%2F/jobs", queue) == 201
            assert await status_of(node, "PUT queues/%2F/jobs", queue) == 204
            status, why = await ask(node, "PUT queues/%2F/jobs", {"durable": "false"})
            assert (status, why["error"], "inequivalent arg" in why["reason"]) == (400, "bad_request", True)
            found = (await ask(node, "GET queues/%2F/jobs"))[1]
            assert (found["durable"], found["arguments"]) == (True, {"x-max-priority": 5})
            message = {"routing_key": "jobs", "payload": "x", "payload_encoding": "string", "properties": {}}
            assert (await ask(node, "POST exchanges/%2F/amq.default/publish", message)) == (200, {"routed": True})
            assert await status_of(node, "DELETE queues/%2F/jobs?if-empty=true") == 400
            assert await status_of(node, "DELETE queues/%2F/jobs/contents") == 204
            assert (await ask(node, "GET queues/%2F/jobs"))[1]["messages"] == 0
            assert await status_of(node, "DELETE queues/%2F/jobs?if-empty=true") == 204
            for missing in ("DELETE queues/%2F/jobs", "DELETE queues/%2F/jobs/contents", "PUT queues/nowhere/jobs"):
                assert await status_of(node, missing, {}) == 404, missing
            for wrong in ({"durable": "yes"}, {"arguments": {"x-expires": 0}}, {"arguments": 5}):
                assert await status_of(node, "PUT queues/%2F/jobs", wrong) == 400, wrong

    asyncio.run(main())


@pytest.mark.rows("Q12")
def test_exchanges_and_bindings_are_made_and_deleted(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            assert await status_of(node, "PUT exchanges/%2F/events", {"type": "topic", "durable": True}) == 201
            assert await status_of(node, "PUT exchanges/%2F/events", {"type": "topic", "durable": True}) == 204
            assert await status_of(node, "PUT exchanges/%2F/odd", {"type": "odd"}) == 400
            await ask(node, "PUT queues/%2F/jobs", {"durable": True})
            bind = "POST bindings/%2F/e/events/q/jobs"
            assert await status_of(node, bind, {"routing_key": "a.~/#", "arguments": None}) == 201
            assert await status_of(node, bind, {"routing_key": "", "arguments": {"x": 1}}) == 201
            assert await status_of(node, "POST bindings/%2F/e/amq.match/e/events", {"routing_key": "k"}) == 201
            rows = (await ask(node, "GET queues/%2F/jobs/bindings"))[1]
            assert [(row["source"], row["routing_key"]) for row in rows] == [
                ("", "jobs"),
                ("events", "a.~/#"),
                ("events", ""),
            ]
            assert (await ask(node, "GET exchanges/%2F/events/bindings/source"))[1] == rows[1:]
            assert (await ask(node, "GET bindings/%2F/e/events/q/jobs"))[1] == rows[1:]
            (to_exchange,) = (await ask(node, "GET exchanges/%2F/events/bindings/destination"))[1]
            assert (to_exchange["source"], to_exchange["properties_key"]) == ("amq.match", "k")
            for row in rows[1:]:
                one = f"bindings/%2F/e/events/q/jobs/{quote(row['properties_key'], safe='')}"
                assert (await ask(node, f"GET {one}"))[1] == row
                assert await status_of(node, f"DELETE {one}") == 204
                assert await status_of(node, f"DELETE {one}") == 404
            assert await status_of(node, "DELETE exchanges/%2F/events?if-unused=true") == 400
            assert await status_of(node, "DELETE exchanges/%2F/events") == 204
            assert await status_of(node, "DELETE exchanges/%2F/events") == 404
            assert await status_of(node, "DELETE exchanges/%2F/amq.topic") == 403

    asyncio.run(main())


@pytest.mark.rows("Q12")
def test_messages_are_published_and_got(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await ask(node, "PUT queues/%2F/jobs", {"durable": True})
            properties = {"delivery_mode": 2, "headers": {"a": 1, "b": "ü"}, "content_type": "text/plain"}
            publish = "POST exchanges/%2F/amq.default/publish"
            body = {"routing_key": "jobs", "payload": "hé", "payload_encoding": "string", "properties": properties}
            assert (await ask(node, publish, body))[1] == {"routed": True}
            raw = base64.b64encode(b"\xff\0").decode()
            body = {"routing_key": "jobs", "payload": raw, "payload_encoding": "base64", "properties": {}}
            assert (await ask(node, publish, body))[1] == {"routed": True}
            assert (await ask(node, publish, {**body, "routing_key": "none"}))[1] == {"routed": False}
            look = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
            first, second = (await ask(node, "POST queues/%2F/jobs/get", look))[1]
            assert (first["payload"], first["payload_encoding"], first["properties"]) == ("hé", "string", properties)
            assert (first["routing_key"], first["exchange"], first["message_count"]) == ("jobs", "", 1)
            assert (second["payload"], second["payload_encoding"], second["payload_bytes"]) == (raw, "base64", 2)
            again = (await ask(node, "POST queues/%2F/jobs/get", {"count": 1, "requeue": False, "encoding": "auto"}))[1]
            assert [(each["payload"], each["redelivered"]) for each in again] == [("hé", True)]
            last = {"count": 9, "ackmode": "ack_requeue_false", "encoding": "base64"}
            assert [each["payload"] for each in (await ask(node, "POST queues/%2F/jobs/get", last))[1]] == [raw]
            assert (await ask(node, "POST queues/%2F/jobs/get", last)) == (200, [])
            for wrong in ({"priority": "x"}, {"odd": 1}, {"user_id": "somebody"}, {"headers": 5}, {"priority": 300}):
                assert (await ask(node, publish, {**body, "properties": wrong}))[0] == 400, wrong
            assert (await ask(node, "POST queues/%2F/jobs/get", {"ackmode": "odd"}))[0] == 400

    asyncio.run(main())


def test_a_queue_that_refuses_reports_it(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await ask(node, "PUT queues/%2F/small", {"durable": True, "arguments": arguments})
            body = {"routing_key": "small", "payload": "x", "payload_encoding": "string", "properties": {}}
            publish = "POST exchanges/%2F/amq.default/publish"
            assert [(await ask(node, publish, body))[0] for _ in range(2)] == [200, 400]

    asyncio.run(main())


def test_each_change_asks_for_the_right_that_it_asks_for_over_amqp(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path, keys="on")) as node:
            admin = admin_of(node)
            assert (await ask(node, "PUT queues/%2F/jobs", {"durable": True}, admin))[0] == 201
            users = {}
            verbs: tuple[Verb, ...] = ("publish", "consume")
            for verb in verbs:
                made = make(verb, [Right(verb, "jobs")], now_ms=0)
                await node.broker.put_key(made.key)
                users[verb] = f"{verb}:{made.token}"
            body = {"routing_key": "jobs", "payload": "x", "payload_encoding": "string", "properties": {}}
            calls = {
                "POST exchanges/%2F/amq.default/publish": "publish",
                "POST queues/%2F/jobs/get": "consume",
                "DELETE queues/%2F/jobs/contents": "consume",
                "PUT queues/%2F/jobs": "",
                "PUT exchanges/%2F/events": "",
                "POST bindings/%2F/e/amq.topic/q/jobs": "",
                "PUT vhosts/more": "",
                "PUT users/ann": "",
                "PUT permissions/%2F/ann": "",
                "POST definitions": "",
                "DELETE queues/%2F/jobs": "",
            }
            for call, needed in calls.items():
                for user, credentials in users.items():
                    status = (await ask(node, call, body, credentials))[0]
                    assert (status == 403) is (user != needed), (call, user, status)
            for call in list(calls)[:2]:
                assert (await ask(node, call, body, "nobody:wrong"))[0] == 401, call

    asyncio.run(main())
