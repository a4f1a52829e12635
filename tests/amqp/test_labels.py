"""Labels that another client wrote where this wire keeps its own: they are ignored, and no connection ends for them."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.amqp.tools import ask, config
from wherry.model.catalog.route import Binding, Route
from wherry.node.node import Node

BROKEN = ("broken", "5", "{}", '{"name": "/"}', '{"name": "elsewhere"}', '{"name": 7}', '{"type": "odd"}', "[" * 2_000)
ARGUMENTS = ('{"arguments": {"x-expires": "soon"}}', '{"durable": true, "arguments": {"x-overflow": 5}}')


@pytest.mark.rows("Q12")
@pytest.mark.parametrize("label", ["amqp-vhost", "amqp"])
def test_no_label_keeps_the_node_from_starting(tmp_path, label):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await node.broker.create_topic("plain")
            for number, text in enumerate((*BROKEN, *ARGUMENTS)):
                await node.broker.create_topic(f"t{number}", labels={label: text})
                bound = Binding(topic="plain", match="k", labels={label: text})
                await node.broker.put_route(
                    Route(name=f"r{number}", kind="direct", bindings=(bound,), labels={label: text})
                )
        async with Node(config(tmp_path)) as node:
            assert [row["name"] for row in (await ask(node, "GET vhosts"))[1]] == ["/", "staging"]
            for what in ("queues", "exchanges", "bindings"):
                assert (await ask(node, f"GET {what}"))[0] == 200, what
            message = {"routing_key": "k", "payload": "x", "payload_encoding": "string", "properties": {}}
            known = {row["name"] for row in (await ask(node, "GET exchanges/%2F"))[1]}
            routed = [
                await ask(node, f"POST exchanges/%2F/r{n}/publish", message) for n in range(8) if f"r{n}" in known
            ]
            assert routed
            assert all(answer == (200, {"routed": True}) for answer in routed)

    asyncio.run(main())


def test_a_host_is_known_by_its_own_route_only(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            note = json.dumps({"name": "v"})
            await node.broker.put_route(Route(name="x", kind="direct", labels={"amqp-vhost": note}))
            await ask(node, "PUT vhosts/w", {"description": "made"})
        async with Node(config(tmp_path)) as node:
            assert [row["name"] for row in (await ask(node, "GET vhosts"))[1]] == ["/", "staging", "w"]

    asyncio.run(main())
