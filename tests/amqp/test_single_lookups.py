"""`/api` about one thing looks at that one: tools ask for one queue after the other, and there may be a million."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

import pytest

from tests.amqp.raw import Raw
from tests.amqp.wires import broker_of, durable, served
from wherry.model.catalog.key import Right
from wherry.queueing.hosts.virtual_host import VirtualHost
from wherry.queueing.login import Login
from wherry.queueing.queueing import Queueing
from wherry.security.keys import make
from wherry.wire.amqp.management import reads
from wherry.wire.amqp.management.asking import ManagementCall


def everything(*_: object) -> Any:
    raise AssertionError("looked at everything")


def asked(queueing: Queueing, login: Login | None = None) -> Callable[[str], Any]:
    known = login or Login(None, None)
    return lambda path: reads.answer(ManagementCall(queueing, known, [unquote(part) for part in path.split("/")]))


@pytest.mark.rows("Q12")
def test_one_queue_exchange_connection_or_channel_is_found_by_its_name(monkeypatch):
    async def main() -> None:
        async with served() as (server, url):
            raw = await asyncio.to_thread(lambda: Raw(url).opened())
            with raw:
                await asyncio.to_thread(durable, raw, "jobs")
                ask = asked(server.queueing)
                rows = {each["name"]: each for each in ask("queues/%2F")}
                others = {what: ask(what) for what in ("connections", "channels", "vhosts", "nodes")}
                for name in ("queues", "exchanges", "bindings"):
                    monkeypatch.setattr(VirtualHost, name, everything)
                assert ask("queues/%2F/jobs") == {**rows["jobs"], "consumer_details": []}
                assert ask("exchanges/%2F/amq.topic")["type"] == "topic"
                for what, (row,) in others.items():
                    assert ask(f"{what}/{quote(row['name'], safe='')}") == row, what
                missing = ("queues/%2F/none", "queues/none/jobs", "queues/%2F/jobs/more", "exchanges/%2F/none")
                others_missing = ("connections/none", "channels/none", "vhosts/none", "nodes/none", "bindings/%2F/jobs")
                assert [path for path in missing + others_missing if ask(path) is not None] == []

    asyncio.run(main())


def test_a_queue_that_a_user_may_not_see_is_not_found():
    async def main() -> None:
        async with served(keys=True) as (server, _):
            broker = broker_of(server)
            await broker.create_topic("hidden")
            made = make("blind", [Right("consume", "others")], now_ms=0)
            await broker.put_key(made.key)
            blind = Login(server.access, None)
            blind.enter("PLAIN", "blind", made.token)
            assert asked(server.queueing)("queues/%2F/hidden")["name"] == "hidden"
            assert asked(server.queueing, blind)("queues/%2F/hidden") is None

    asyncio.run(main())
