"""Who is connected to a server, and how a server that closes waits for its clients."""

import asyncio

import pytest

from wherry.sim.world import loop
from wherry.wire.listener import Connected


@pytest.mark.parametrize(("leaves_after_s", "cut"), [({"a": 1, "b": 4}, []), ({"a": 1, "b": 6}, ["b"]), ({}, [])])
def test_a_server_waits_for_its_clients_and_cuts_off_those_that_stay(leaves_after_s, cut):
    async def main() -> tuple[list[str], float]:
        connected = Connected[str]()
        cut_off: list[str] = []
        for name, after_s in leaves_after_s.items():
            connected.admit(name)
            asyncio.get_running_loop().call_later(after_s, connected.discard, name)
        await connected.all_gone(5, cut_off.append)
        return cut_off, asyncio.get_running_loop().time()

    assert loop.run(main()) == (cut, 5 if cut else max(leaves_after_s.values(), default=0))


def test_no_connection_is_admitted_beyond_the_bound_or_while_the_server_closes():
    async def main() -> list[bool]:
        connected = Connected[int](2)
        admitted = [connected.admit(number) for number in range(3)]
        connected.discard(2)
        connected.discard(1)
        connected.is_closing = True
        return [*admitted, connected.admit(3)]

    assert loop.run(main()) == [True, True, False, False]
