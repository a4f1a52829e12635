"""What a user sees over `/api`, and may do in a virtual host: as on RabbitMQ, tags and permissions decide."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from tests.amqp.raw import Raw
from tests.amqp.tools import admin_of, ask, config
from tests.amqp.wires import url_of
from wherry.model.catalog.key import Right
from wherry.node.node import Node
from wherry.security.keys import make

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


async def user(node: Node, name: str, tags: str, host: str = "", boss: str = "guest:guest") -> str:
    """Make a user that may do everything in a virtual host, or nothing anywhere; return name and password."""
    assert (await ask(node, f"PUT users/{name}", {"password": "secret", "tags": tags}, boss))[0] == 201
    if host:
        assert (await ask(node, f"PUT permissions/{host}/{name}", ALL, boss))[0] == 201
    return f"{name}:secret"


async def names(node: Node, what: str, login: str) -> list[Any]:
    status, rows = await ask(node, f"GET {what}", None, login)
    assert status == 200, rows
    return sorted(row["name"] for row in rows)


@pytest.mark.rows("Q12")
def test_a_user_without_a_tag_sees_nothing(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            ann = await user(node, "ann", "", "%2F")
            odd = await user(node, "odd", "impersonator", "%2F")
            for login in (ann, odd):
                for call in ("GET whoami", "GET overview", "GET vhosts", "GET queues", "PUT queues/%2F/q"):
                    assert (await ask(node, call, None, login))[0] == 401, (call, login)

    asyncio.run(main())


@pytest.mark.rows("Q12")
@pytest.mark.parametrize("keys", ["off", "on"])
def test_each_user_sees_its_own_and_some_see_all(tmp_path, keys):
    async def main() -> None:
        async with Node(config(tmp_path, keys=keys)) as node:
            boss = admin_of(node) if keys == "on" else "guest:guest"
            ann = await user(node, "ann", "management", "%2F", boss)
            bob = await user(node, "bob", "management", "", boss)
            eve = await user(node, "eve", "monitoring", "", boss)
            await ask(node, "PUT queues/%2F/ours", {"durable": True}, boss)
            await ask(node, "PUT queues/staging/theirs", {"durable": True}, boss)
            raws = [await asyncio.to_thread(Raw(url_of(node, *login.split(":", 1))).opened) for login in (ann, boss)]
            seen = {"vhosts": 2, "connections": 2, "channels": 2, "queues": 2, "exchanges": 14}
            own = {"vhosts": 1, "connections": 1, "channels": 1, "queues": 1, "exchanges": 7}
            for login, counts in ((boss, seen), (eve, seen), (ann, own), (bob, dict.fromkeys(seen, 0))):
                assert {what: len(await names(node, what, login)) for what in seen} == counts, login
                totals = (await ask(node, "GET overview", None, login))[1]["object_totals"]
                assert [totals[what] for what in list(seen)[1:]] == list(counts.values())[1:], login
            (theirs,) = set(await names(node, "connections", eve)) - set(await names(node, "connections", ann))
            others = ("vhosts/staging", "exchanges/staging/amq.topic", "queues/staging/theirs")
            for one in (f"connections/{quote(theirs)}", *others):
                assert (await ask(node, f"GET {one}", None, ann))[0] == 404, one
                assert (await ask(node, f"GET {one}", None, eve))[0] == 200, one
            for raw in raws:
                raw.__exit__(None, None, None)

    asyncio.run(main())


def test_a_key_sees_the_hosts_that_its_rights_reach(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path, keys="on")) as node:
            hosts = {"jobs": ["/"], "@staging/*": ["staging"], "*": ["/", "staging"], "@other/*": []}
            for pattern, expected in hosts.items():
                made = make("it", [Right("consume", pattern)], now_ms=0)
                await node.broker.put_key(made.key)
                assert await names(node, "vhosts", f"it:{made.token}") == expected, pattern

    asyncio.run(main())


PUBLISH = {"routing_key": "none", "payload": "x", "payload_encoding": "string", "properties": {}}


@pytest.mark.rows("Q12")
def test_a_user_that_is_not_let_into_a_host_does_nothing_in_it(tmp_path):
    """Try also what reaches no queue, and also as `guest`, which was shut out."""
    calls = (
        "POST exchanges/{}/amq.topic/publish",
        "PUT queues/{}/q",
        "DELETE queues/{}/there",
        "POST queues/{}/there/get",
    )

    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            assert (await ask(node, "PUT vhosts/shut", {}))[0] == 201
            assert (await ask(node, "PUT queues/shut/there", {"durable": True}))[0] == 201
            assert (await ask(node, "DELETE permissions/shut/guest"))[0] == 204
            ann = await user(node, "ann", "management", "%2F")
            boss = await user(node, "boss", "administrator")
            for login in ("guest:guest", ann, boss):
                for call in calls:
                    assert (await ask(node, call.format("shut"), PUBLISH, login))[0] == 403, (call, login)
            assert (await ask(node, "PUT permissions/shut/ann", ALL, boss))[0] == 201  # granting asks for no grant
            assert (await ask(node, calls[0].format("shut"), PUBLISH, ann)) == (200, {"routed": False})

    asyncio.run(main())


@pytest.mark.rows("Q12")
def test_publishing_asks_for_the_right_even_if_nothing_is_reached(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            reader = await user(node, "reader", "management")
            read = {"configure": "", "write": "", "read": ".*"}
            assert (await ask(node, "PUT permissions/%2F/reader", read))[0] == 201
            call = "POST exchanges/%2F/amq.topic/publish"
            assert (await ask(node, call, PUBLISH, reader))[0] == 403
            assert (await ask(node, "PUT permissions/%2F/reader", {**read, "write": "^q$"}))[0] == 204
            assert (await ask(node, call, PUBLISH, reader)) == (200, {"routed": False})

    asyncio.run(main())
