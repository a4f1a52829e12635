"""`/api`: virtual hosts, users and permissions that are made while the node runs, hold, and outlive it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.amqp.raw import CHANNEL_CLOSE, CLOSE, OPEN, OPEN_OK, QUEUE_DECLARE, QUEUE_DECLARE_OK, Raw, long, short
from tests.amqp.tools import admin_of, ask, config
from tests.amqp.wires import url_of
from wherry.model.catalog.key import Right
from wherry.node.node import Node
from wherry.security.keys import make

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
NONE = {"configure": "", "write": "", "read": ".*"}


async def opens(node: Node, name: str, password: str, vhost: str = "/") -> int:
    """Return 0 if a client is let into a virtual host, else the code that the server closes with."""

    def tried() -> int:
        with Raw(url_of(node, name, password)) as raw:
            raw.begin()
            raw.start_ok("PLAIN", raw.plain(), short("capabilities") + b"F" + long(_CAPABLE))
            tune = raw.next()
            if tune.method == CLOSE:
                return tune.code
            raw.call(0, (10, 31), tune.arguments)
            raw.call(0, OPEN, short(vhost) + short("") + b"\0")
            found = raw.next()
            return 0 if found.method == OPEN_OK else found.code

    return await asyncio.to_thread(tried)


_CAPABLE = short("authentication_failure_close") + b"t\x01"


async def status_of(node: Node, call: str, body: Any = None, user: str = "guest:guest") -> int:
    return (await ask(node, call, body, user))[0]


@pytest.mark.rows("Q12")
def test_a_virtual_host_is_made_and_outlives_the_node_until_it_is_deleted(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            assert await opens(node, "guest", "guest", "team/one") == 530
            assert await status_of(node, "PUT vhosts/team%2Fone", {"description": "ours", "tags": "a,b"}) == 201
            assert await status_of(node, "PUT vhosts/team%2Fone", {"description": "ours", "tags": ["a", "b"]}) == 204
            assert await status_of(node, "PUT queues/team%2Fone/jobs", {"durable": True}) == 201
            assert await opens(node, "guest", "guest", "team/one") == 0
        async with Node(config(tmp_path)) as node:
            shown = (await ask(node, "GET vhosts/team%2Fone"))[1]
            assert (shown["name"], shown["description"], shown["tags"]) == ("team/one", "ours", ["a", "b"])
            assert [each["name"] for each in (await ask(node, "GET queues/team%2Fone"))[1]] == ["jobs"]
            assert "" in [each["name"] for each in (await ask(node, "GET exchanges/team%2Fone"))[1]]
            raw = await asyncio.to_thread(lambda: opened_in(node, "team/one"))
            with raw:
                assert await status_of(node, "DELETE vhosts/team%2Fone") == 204
                assert (await asyncio.to_thread(raw.expect, CLOSE)).code == 320
            assert (
                await status_of(node, "DELETE vhosts/team%2Fone"),
                await status_of(node, "GET queues/team%2Fone"),
            ) == (
                404,
                404,
            )
            assert [topic.name for topic in node.broker.topics()] == []
            assert [route.name for route in node.broker.routes()] == []
            assert await status_of(node, "DELETE vhosts/staging") == 400  # the host is named in the configuration
        async with Node(config(tmp_path)) as node:
            assert await opens(node, "guest", "guest", "team/one") == 530

    asyncio.run(main())


def opened_in(node: Node, vhost: str) -> Raw:
    raw = Raw(url_of(node))
    raw.tuned()
    raw.call(0, OPEN, short(vhost) + short("") + b"\0")
    raw.expect(OPEN_OK)
    raw.open_channel(1)
    return raw


def declares(node: Node, name: str, password: str, queue: str) -> int:
    """Return 0 if a user may declare a queue, else the code that the channel ends with."""
    with Raw(url_of(node, name, password)).opened() as raw:
        raw.call(1, QUEUE_DECLARE, b"\0\0" + short(queue) + b"\x02" + long(b""))
        found = raw.next()
        assert found.method in (QUEUE_DECLARE_OK, CHANNEL_CLOSE)
        return 0 if found.method == QUEUE_DECLARE_OK else found.code


@pytest.mark.rows("Q12")
@pytest.mark.parametrize("keys", ["off", "on"])
def test_a_user_logs_in_with_its_password_and_may_do_what_was_granted(tmp_path, keys):
    async def main() -> None:
        async with Node(config(tmp_path, keys=keys)) as node:
            boss = admin_of(node) if keys == "on" else "guest:guest"
            assert await opens(node, "ann", "secret") == 403
            assert await status_of(node, "PUT users/ann", {"password": "secret", "tags": "management"}, boss) == 201
            assert await opens(node, "ann", "secret") == 530  # ann was granted nothing yet
            own = {"configure": "^mine-", "write": ".*", "read": "^mine-|^seen$"}
            assert await status_of(node, "PUT permissions/%2F/ann", own, boss) == 201
            assert await status_of(node, "PUT permissions/%2F/ann", own, boss) == 204
            assert (await ask(node, "GET permissions/%2F/ann", None, boss))[1] == {"user": "ann", "vhost": "/", **own}
            assert (await opens(node, "ann", "secret"), await opens(node, "ann", "wrong")) == (0, 403)
            assert await opens(node, "ann", "secret", "staging") == 530
            assert await asyncio.to_thread(declares, node, "ann", "secret", "mine-1") == 0
            assert await asyncio.to_thread(declares, node, "ann", "secret", "other") == 403
            await node.broker.create_topic("seen")
            await node.broker.create_topic("hidden")
            assert [each["name"] for each in (await ask(node, "GET queues", None, "ann:secret"))[1]] == [
                "mine-1",
                "seen",
            ]
            assert (await ask(node, "GET whoami", None, "ann:secret"))[1] == {"name": "ann", "tags": ["management"]}
            assert await status_of(node, "PUT users/bob", {"password": "x", "tags": ""}, "ann:secret") == 403
            assert await status_of(node, "GET whoami", None, "ann:wrong") == 401
        async with Node(config(tmp_path, keys=keys)) as node:
            assert await opens(node, "ann", "secret") == 0  # a user outlives the node
            if keys == "off":  # users alone do not make a broker ask for keys
                assert await opens(node, "guest", "guest") == 0

    asyncio.run(main())


def connected(node: Node, name: str) -> Raw:
    return Raw(url_of(node, name, "secret")).opened()


@pytest.mark.rows("Q12")
def test_a_user_that_is_deleted_or_gets_another_password_is_cut_off(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            for name in ("ann", "bob"):
                await ask(node, f"PUT users/{name}", {"password": "secret", "tags": ""})
                await ask(node, f"PUT permissions/%2F/{name}", ALL)
            raws = [await asyncio.to_thread(connected, node, name) for name in ("ann", "bob")]
            assert await status_of(node, "DELETE users/ann") == 204
            assert await status_of(node, "PUT users/bob", {"password": "other", "tags": ""}) == 204
            for raw in raws:
                with raw:
                    assert await asyncio.to_thread(raw.is_hung_up)
            assert (await opens(node, "bob", "other"), await opens(node, "ann", "secret")) == (0, 403)
            shown = (await ask(node, "GET users/bob"))[1]
            moved = {"password_hash": shown["password_hash"], "tags": "administrator"}
            assert await status_of(node, "PUT users/carl", moved) == 201  # as the hash comes from another broker
            assert (await ask(node, "GET whoami", None, "carl:other"))[1]["tags"] == ["administrator"]
            assert await status_of(node, "PUT users/dora", {"password": "x", "tags": ""}, "carl:other") == 201
            assert await status_of(node, "POST users/bulk-delete", {"users": ["carl", "dora", "nobody"]}) == 204
            assert [each["name"] for each in (await ask(node, "GET users"))[1]] == ["guest", "bob"]
            for wrong in ({"password_hash": "odd"}, {"password": 5}, {"hashing_algorithm": "md5", "password_hash": ""}):
                assert await status_of(node, "PUT users/eve", {"tags": "", **wrong}) == 400, wrong

    asyncio.run(main())


WRONG = [
    {"configure": ".*", "write": "^a$", "read": ".*"},  # here a user that may configure may write
    {"configure": "", "write": "a.b", "read": ""},  # a dot that is any character
    {"configure": "", "write": "[ab]", "read": ""},
    {"configure": "", "write": "a|", "read": ""},
    {"configure": "", "write": ""},
]


def test_what_cannot_be_granted_as_it_is_asked_for_is_refused(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await ask(node, "PUT users/ann", {"password": "secret", "tags": ""})
            for grant in WRONG:
                status, why = await ask(node, "PUT permissions/%2F/ann", grant)
                assert (status, "allowed" in why["reason"]) == (400, True), grant
            assert (await ask(node, "GET users/ann/permissions"))[1] == []
            assert await status_of(node, "PUT permissions/%2F/guest", NONE) == 400
            assert await status_of(node, "PUT permissions/%2F/guest", ALL) == 204
            assert await status_of(node, "DELETE permissions/%2F/guest") == 400
            for missing in ("PUT permissions/none/ann", "PUT permissions/%2F/none", "DELETE permissions/%2F/ann"):
                assert await status_of(node, missing, ALL) == 404, missing
            await ask(node, "PUT vhosts/shut")
            assert await status_of(node, "DELETE permissions/shut/guest") == 204
            assert await opens(node, "guest", "guest", "shut") == 530
            assert await status_of(node, "PUT permissions/shut/guest", ALL) == 201
            assert await opens(node, "guest", "guest", "shut") == 0

    asyncio.run(main())


@pytest.mark.rows("Q12")
def test_each_user_can_read_its_own_name(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path, keys="on")) as node:
            made = make("reader", [Right("consume", "seen")], now_ms=0)
            await node.broker.put_key(made.key)
            assert (await ask(node, "GET whoami", None, admin_of(node)))[1] == {
                "name": "admin",
                "tags": ["administrator"],
            }
            shown = (await ask(node, "GET whoami", None, f"anything:{made.token}"))[1]
            assert shown == {"name": "reader", "tags": ["management"]}
            assert (await ask(node, "GET whoami"))[0] == 401
            assert (await ask(node, "GET users", None, f"me:{made.token}"))[0] == 403

    asyncio.run(main())


def test_declarations_are_exported_and_imported_elsewhere(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path / "one")) as node:
            await ask(node, "PUT vhosts/v", {})
            await ask(node, "PUT users/ann", {"password": "secret", "tags": "management"})
            await ask(node, "PUT permissions/v/ann", ALL)
            await ask(node, "PUT exchanges/v/events", {"type": "topic", "durable": True})
            await ask(node, "PUT queues/v/jobs", {"durable": True, "arguments": {"x-max-length": 5}})
            await ask(node, "POST bindings/v/e/events/q/jobs", {"routing_key": "a.#", "arguments": {}})
            written = (await ask(node, "GET definitions"))[1]
        async with Node(config(tmp_path / "two")) as node:
            assert await status_of(node, "POST definitions", written) == 204
            assert (await ask(node, "GET definitions"))[1] == written
            assert await opens(node, "ann", "secret", "v") == 0
            assert await status_of(node, "POST definitions", {"queues": [{"name": "q"}]}) == 400

    asyncio.run(main())


def test_a_password_opens_no_other_wire(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path, keys="on")) as node:
            await ask(node, "PUT users/ann", {"password": "secret", "tags": "administrator"}, admin_of(node))
            keys = node.broker.keys()
            (ann,) = [key for key in keys if key.user is not None]
            for secret in ("secret", f"wk_{ann.id}_" + "secret".ljust(43, "a")):
                assert await opens(node, "somebody", secret) == 403

    asyncio.run(main())


def test_names_of_other_hosts_are_not_covered_by_a_grant_of_everything(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await ask(node, "PUT users/ann", {"password": "secret", "tags": "management"})
            await ask(node, "PUT permissions/%2F/ann", ALL)
            await ask(node, "PUT queues/staging/theirs", {"durable": True})
            await ask(node, "PUT queues/%2F/ours", {"durable": True})
            assert [each["name"] for each in (await ask(node, "GET queues", None, "ann:secret"))[1]] == ["ours"]
            assert await status_of(node, "DELETE queues/staging/theirs", None, "ann:secret") == 403
            assert await status_of(node, "PUT users/bob", {"password": "x", "tags": ""}, "ann:secret") == 403

    asyncio.run(main())
