"""`/api` under bodies that are too large, come too early, or are made to hurt: refused, and never with a 500."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from typing import Any

import pytest

from tests.amqp.tools import GUEST, admin_of, ask, config
from wherry.model.catalog.key import Right
from wherry.node.node import Node
from wherry.security.keys import make
from wherry.wire.amqp.management import asking, definitions, messages


async def begun(node: Node, call: str, user: str | None = GUEST, length: int | None = 100) -> tuple[int, bytes]:
    """Return the status of a call whose body does not come, and the answer; 100 if the body is asked for."""
    method, _, path = call.partition(" ")
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    lines = [f"{method} /api/{path} HTTP/1.1", "Host: localhost", "Expect: 100-continue"]
    lines += [f"Content-Length: {length}" if length is not None else "Transfer-Encoding: chunked"]
    if user is not None:
        lines.append(f"Authorization: Basic {base64.b64encode(user.encode()).decode()}")
    writer.write("\r\n".join([*lines, "", ""]).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), head


LOOKS = ("GET overview", "HEAD queues", "GET definitions")
CHANGES = ("PUT queues/%2F/q", "DELETE queues/%2F/q", "POST exchanges/%2F/amq.default/publish", "POST definitions")


@pytest.mark.parametrize("length", [100, 50 << 20, None])
def test_no_body_is_waited_for_before_a_login_nor_with_a_look(tmp_path, length):
    async def main() -> None:
        async with Node(config(tmp_path, keys="on")) as node:
            for call in LOOKS:
                for user in (None, admin_of(node)):
                    assert (await begun(node, call, user, length))[0] == 413, (call, user)
            for call in CHANGES:
                assert (await begun(node, call, None, length))[0] == 401, call
            for call in ("PATCH queues/%2F/q", "OPTIONS overview", "POST nothing", "TRACE overview"):
                assert (await begun(node, call, None, length))[0] in (400, 405), call
            assert node.server.bodies_bytes == 0

    asyncio.run(main())


def test_a_call_has_a_bound_of_its_own_for_its_body(tmp_path):
    bounds = {
        "PUT queues/%2F/q": asking.BODY_BYTES_MAX,
        "POST queues/%2F/q/get": asking.BODY_BYTES_MAX,
        "PUT users/ann": asking.BODY_BYTES_MAX,
        "POST exchanges/%2F/amq.default/publish": messages.PUBLISH_BYTES_MAX,
        "POST definitions": definitions.DEFINITIONS_BYTES_MAX,
    }

    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            for call, bound in bounds.items():
                assert (await begun(node, call, length=bound))[0] == 100, call
                assert (await begun(node, call, length=bound + 1))[0] == 413, call

    asyncio.run(main())


def test_a_body_is_decoded_only_for_users_that_have_the_right(tmp_path, monkeypatch):
    calls = (
        *("PUT queues/%2F/q", "DELETE queues/%2F/q", "DELETE queues/%2F/q/contents", "POST queues/%2F/q/get"),
        *("PUT exchanges/%2F/e", "DELETE exchanges/%2F/e", "POST exchanges/%2F/e/publish"),
        *("POST bindings/%2F/e/e/q/q", "PUT vhosts/v", "DELETE vhosts/staging", "PUT users/u", "DELETE users/u"),
        *("POST users/bulk-delete", "PUT permissions/%2F/u", "DELETE permissions/%2F/u", "POST definitions"),
    )

    async def main() -> None:
        async with Node(config(tmp_path, keys="on")) as node:
            admin = admin_of(node)
            assert (await ask(node, "PUT queues/%2F/q", {"durable": True}, admin))[0] == 201
            assert (await ask(node, "PUT exchanges/%2F/e", {}, admin))[0] == 201
            made = make("nobody", [Right("consume", "@none/*")], now_ms=0)
            await node.broker.put_key(made.key)

            def never(raw: bytes) -> Any:
                raise AssertionError("decoded")

            monkeypatch.setattr(asking, "decoded", never)
            monkeypatch.setattr(messages, "_message", never)
            for call in calls:
                assert (await ask(node, call, {"a": 1}, f"me:{made.token}"))[0] == 403, call

    asyncio.run(main())


def test_of_a_publish_only_what_it_needs_is_decoded(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await ask(node, "PUT queues/%2F/q", {"durable": True})
            publish = "POST exchanges/%2F/amq.default/publish"
            body = {"routing_key": "q", "payload": "x" * (2 << 20), "payload_encoding": "string", "properties": {}}
            assert await ask(node, publish, {**body, "odd": [{}] * 9}) == (200, {"routed": True})
            assert (await ask(node, publish, {**body, "properties": {"headers": {"a": "x" * (1 << 20)}}}))[0] == 413
            wrongs: list[dict[str, Any]] = [
                {"payload": 5},
                {"routing_key": None},
                {"payload_encoding": []},
                {"properties": 7},
            ]
            for wrong in wrongs:
                assert (await ask(node, publish, {**body, **wrong}))[0] == 400, wrong
            assert (await ask(node, publish, {}))[0] == 400

    asyncio.run(main())


def test_numbers_with_many_digits_and_tables_that_are_deep_are_refused(tmp_path):
    digits = "9" * 5_000

    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await ask(node, "PUT queues/%2F/q", {"durable": True})
            assert (await ask(node, "POST queues/%2F/q/get", {"count": digits}))[0] == 400
            assert (await ask(node, f"GET queues?page={digits}"))[0] == 400
            assert (await ask(node, f"GET queues?page=1&page_size={digits}"))[0] == 400
            for depth, status in ((60, 200), (70, 400), (700, 400)):
                headers = nested_object(depth)
                message = {"routing_key": "q", "payload": "x", "properties": {"headers": headers}}
                assert (await ask(node, "POST exchanges/%2F/amq.default/publish", message))[0] == status, depth
            for depth, status in ((60, 201), (70, 400), (700, 400)):
                queue = {"durable": True, "arguments": {"deep": nested_object(depth)}}
                assert (await ask(node, f"PUT queues/%2F/q{depth}", queue))[0] == status, depth
            assert (await ask(node, "PUT users/ann", {"password": nested_object(700), "tags": ""}))[0] == 400

    asyncio.run(main())


def nested_object(depth: int) -> Any:
    found: Any = {}
    for _ in range(depth):
        found = {"a": found}
    return found


CALLS = (
    *("PUT queues/%2F/q", "PUT queues/{}/{}", "DELETE queues/{}/{}", "DELETE queues/%2F/q/contents"),
    *("POST queues/%2F/q/get", "PUT exchanges/{}/{}", "DELETE exchanges/{}/{}", "POST exchanges/%2F/{}/publish"),
    *("POST exchanges/%2F/amq.default/publish", "POST bindings/{}/e/{}/{}/{}", "DELETE bindings/{}/e/{}/q/q/{}"),
    *("PUT vhosts/{}", "DELETE vhosts/{}", "PUT users/{}", "DELETE users/{}", "POST users/bulk-delete"),
    *("PUT permissions/{}/{}", "DELETE permissions/{}/{}", "DELETE connections/{}", "POST definitions", "{} {}/{}"),
    *("GET queues/{}", "GET exchanges/{}", "GET queues", "GET {}", "GET {}/{}", "HEAD {}/{}/{}", "GET {}/{}/{}/{}"),
)
WORDS = (
    *("%2F", "%2F", "staging", "q", "q", "amq.topic", "amq.default", "e", "get", "contents", "publish", "%ff%fe"),
    *("%00", "*", "ann", "guest", "bulk-delete", "x" * 300, "~", "%C3%BC", "", "overview", "whoami", "consumers"),
    *("queues", "exchanges", "bindings", "vhosts", "users", "permissions", "connections", "definitions", "nodes"),
)
MESSAGE = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {"headers": {"a": 1}}}
BODIES: tuple[dict[str, Any], ...] = (
    {**MESSAGE, "count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 5, "requeue": True},
    {"durable": True, "auto_delete": False, "arguments": {"x-expires": 9_999}, "type": "topic", "internal": False},
    {"password": "x", "tags": "", "password_hash": "", "configure": ".*", "write": ".*", "read": ".*", "users": ["u"]},
    {"vhosts": [{"name": "v"}], "queues": [{"name": "q", "vhost": "/"}], "bindings": [{}], "permissions": [{}]},
)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1 << 62, 1 << 70, 1e300, "", "q", ".*", "9" * 5_000, "\ud800", "ü\0", "base64", [], {}),
    *([[]], {"": None}, nested_object(66), nested_object(700), "x" * 300, ["q", 5]),
)
QUERIES = ("page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns", "if-empty", "if-unused")
SOUGHT = ("1", "1", "-1", "true", "9" * 5_000, "a.b", "%ff", "(", "name")


def _changed(chance: random.Random, value: Any) -> Any:
    """Return the same with something else in one place."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        return {**value, name: _changed(chance, value[name])}
    return chance.choice(VALUES)


def _call(chance: random.Random) -> tuple[str, Any]:
    template = chance.choice(CALLS)
    call = template.format(*(chance.choice(WORDS) for _ in range(6)))
    method = call.partition(" ")[0]
    query = "&".join(f"{chance.choice(QUERIES)}={chance.choice(SOUGHT)}" for _ in range(chance.randrange(4)))
    body = _changed(chance, chance.choice(BODIES))
    return f"{call}?{query}", None if method in ("GET", "HEAD") else body


@pytest.mark.parametrize("seed", range(3))
def test_no_call_ends_in_a_fault_of_the_broker(tmp_path, seed, caplog):
    chance = random.Random(seed)

    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await ask(node, "PUT queues/%2F/q", {"durable": True})
            await ask(node, "PUT users/ann", {"password": "x", "tags": ""})
            for _ in range(300):
                call, body = _call(chance)
                status, answer = await ask(node, call, body)
                assert status < 500, (call, body, answer)
        async with Node(config(tmp_path)) as node:  # what these calls left can be read
            assert (await ask(node, "GET overview"))[0] == 200

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
