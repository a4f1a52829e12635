"""Virtual hosts over STOMP: a user that is not let into one over AMQP is not let into it here."""

from __future__ import annotations

import asyncio

import pytest

from tests.amqp.tools import ask, config
from tests.stomp.raw import Raw
from wherry.node.node import Node

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def connected(node: Node, name: str, secret: str, host: str) -> str:
    """Return the answer to CONNECT."""
    assert node.stomp_port is not None
    with Raw(node.stomp_port) as raw:
        raw.send("CONNECT", accept_version="1.2", host=host, login=name, passcode=secret)
        answer = raw.next()
        return answer.command if answer.command == "CONNECTED" else answer.why


@pytest.mark.rows("Q12")
def test_a_user_is_let_into_the_hosts_that_it_was_granted_something_in(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await ask(node, "PUT users/ann", {"password": "secret", "tags": ""})
            for host in ("/", "staging", "127.0.0.1"):
                answer = await asyncio.to_thread(connected, node, "ann", "secret", host)
                assert "access denied" in answer, host
            await ask(node, "PUT permissions/staging/ann", ALL)
            assert await asyncio.to_thread(connected, node, "ann", "secret", "staging") == "CONNECTED"
            assert "access denied" in await asyncio.to_thread(connected, node, "ann", "secret", "/")
            assert "access denied" in await asyncio.to_thread(connected, node, "ann", "secret", "none")

    asyncio.run(main())


@pytest.mark.rows("Q12")
def test_guest_is_not_let_into_a_host_that_it_was_shut_out_of(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            await ask(node, "PUT vhosts/shut", {})
            assert await asyncio.to_thread(connected, node, "guest", "guest", "shut") == "CONNECTED"
            assert (await ask(node, "DELETE permissions/shut/guest"))[0] == 204
            assert "access denied" in await asyncio.to_thread(connected, node, "guest", "guest", "shut")

    asyncio.run(main())
