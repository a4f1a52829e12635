"""Users while others change them: a deleted one stays deleted, a name is one user's, and grants end with their host."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from tests.amqp.tools import ask, config
from wherry.model.catalog.key import RIGHTS_MAX
from wherry.node.node import Node

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


async def made(node: Node, *names: str) -> None:
    for name in names:
        assert (await ask(node, f"PUT users/{name}", {"password": "x", "tags": ""}))[0] == 201


def test_a_user_that_is_deleted_while_a_host_is_deleted_does_not_come_back(tmp_path, monkeypatch):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await ask(node, "PUT vhosts/v", {})
            users = [f"u{number}" for number in range(8)]
            await made(node, *users)
            for name in users:
                await ask(node, f"PUT permissions/v/{name}", ALL)
            writes = {
                name: getattr(node.broker, name) for name in ("put_key", "alter_key") if hasattr(node.broker, name)
            }

            async def slowly(name: str, *given: Any) -> Any:
                while users:  # delete each user that is left, while the first is written
                    await ask(node, f"DELETE users/{users.pop()}")
                return await writes[name](*given)

            for name in writes:
                monkeypatch.setattr(node.broker, name, partial(slowly, name))
            assert (await ask(node, "DELETE vhosts/v"))[0] == 204
            assert users == []
            assert [row["name"] for row in (await ask(node, "GET users"))[1]] == ["guest"]

    asyncio.run(main())


def test_grants_in_a_host_are_deleted_before_the_host(tmp_path, monkeypatch):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await ask(node, "PUT vhosts/v", {})
            await made(node, "ann")
            await ask(node, "PUT permissions/v/ann", ALL)
            assert (await ask(node, "DELETE vhosts/staging"))[0] == 400
            found = []
            delete_route = node.broker.delete_route

            async def watched(name: str) -> None:
                found.append((await ask(node, "GET users/ann/permissions"))[1])
                await delete_route(name)

            monkeypatch.setattr(node.broker, "delete_route", watched)
            assert (await ask(node, "DELETE vhosts/v"))[0] == 204
            assert found
            assert all(rows == [] for rows in found)

    asyncio.run(main())


def test_a_name_is_of_one_user_though_two_make_it_at_the_same_time(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            tries = [ask(node, "PUT users/ann", {"password": str(number), "tags": ""}) for number in range(8)]
            statuses = sorted(status for status, _ in await asyncio.gather(*tries))
            assert statuses == [201, *[204] * 7]
            assert len(node.broker.keys()) == 1
            wishes = [ask(node, f"PUT permissions/{host}/ann", ALL) for host in ("%2F", "staging")]
            await asyncio.gather(*wishes, ask(node, "PUT users/ann", {"password": "x", "tags": "monitoring"}))
            assert {row["vhost"] for row in (await ask(node, "GET users/ann/permissions"))[1]} == {"/", "staging"}
            assert (await ask(node, "GET users/ann"))[1]["tags"] == ["monitoring"]

    asyncio.run(main())


def test_a_user_has_everything_in_as_many_hosts_as_a_key_has_rights(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await made(node, "ann")
            for number in range(RIGHTS_MAX + 1):
                assert (await ask(node, f"PUT vhosts/v{number}", {}))[0] == 201
                status = (await ask(node, f"PUT permissions/v{number}/ann", ALL))[0]
                assert status == (201 if number < RIGHTS_MAX else 400), number

    asyncio.run(main())
