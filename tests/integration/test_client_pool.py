"""Connections are bounded, and those that wait for messages take none from the rest."""

from __future__ import annotations

import asyncio
import time

import wherry


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
