"""Connections are bounded, and those that wait for messages take none from the rest."""

from __future__ import annotations

import asyncio
import time

import pytest

import wherry
from wherry.client.link.address import Address
from wherry.client.link.pool import Pool


def test_consumers_that_wait_leave_a_connection_for_everything_else():
    async def main() -> None:
        async with wherry.embedded() as here, wherry.connect(await here.listen(), connections=2, wire="http") as client:
            await client.create_topic("jobs")
            await client.subscribe("jobs", "workers", assignment="shared")
            async with client.consumer("jobs", "workers"), client.consumer("jobs", "workers"):
                await asyncio.sleep(0.1)  # both are waiting for messages now
                async with asyncio.timeout(2):
                    await client.publish("jobs", [b"a"])
                    assert (await client.stats("jobs")).messages == 1

    asyncio.run(main())


def test_waiting_calls_are_bounded_too():
    async def main() -> float:
        async with wherry.embedded() as here, wherry.connect(await here.listen(), waits=1, wire="http") as client:
            await client.create_topic("jobs")
            await client.subscribe("jobs", "workers")
            began = time.monotonic()
            await asyncio.gather(*(client.pull("jobs", "workers", wait_ms=200) for _ in range(2)))
            return time.monotonic() - began

    assert asyncio.run(main()) >= 0.4


@pytest.mark.parametrize("key", ["wk_a\nb", "wk_a\r\nX-Evil: 1", "wk_secré", "wk_a b", "wk_\x00", b"wk_secret", 7])
def test_a_key_that_cannot_stand_in_a_head_is_refused_and_not_shown(key):
    for connect in (wherry.connect, wherry.connect_sync):
        with pytest.raises(wherry.InvalidInput, match=r"^api_key: got ") as caught:
            connect("http://127.0.0.1:1", key=key)
        assert "wk_a" not in f"{caught.value} {caught.value.given}"
        assert "secr" not in f"{caught.value} {caught.value.given}"


@pytest.mark.parametrize(("key", "sent"), [(" wk_a\n", "Bearer wk_a"), ("", ""), (" \n", ""), (None, "")])
def test_white_space_around_a_key_is_no_part_of_it(key, sent):
    head = Pool(Address("broker"), key)._common
    assert head == "Host: broker:7070\r\n" + (f"Authorization: {sent}\r\n" if sent else "")
