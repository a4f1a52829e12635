"""A node that is killed under its clients: they come back by themselves, and nothing is lost or stored twice."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from pathlib import Path

import pytest

import wherry
from tests.integration.worlds import Node
from wherry.client.consumer import Consumer

MESSAGES = 6_000
KILLS = 3


async def _produce(client: wherry.Client) -> None:
    async with client.producer("jobs", batch_messages=100, buffer_messages=400) as producer:
        for number in range(MESSAGES):
            await producer.publish(b"%d" % number)
            if number % 20 == 0:
                await asyncio.sleep(0.001)


async def _consume(consumer: Consumer, seen: Counter[int]) -> None:
    async for message in consumer:
        seen[int(message.payload)] += 1
        message.ack_later()
        if len(seen) == MESSAGES:
            return


async def _reached(seen: Counter[int], count: int) -> None:
    """Wait until so many have come: all are at work then."""
    while len(seen) < count:  # noqa: ASYNC110  a counter has no event
        await asyncio.sleep(0.005)


def test_producers_and_consumers_outlive_a_node_that_is_killed(tmp_path: Path):
    async def main() -> None:
        seen: Counter[int] = Counter()
        async with asyncio.timeout(60), Node(tmp_path / "home") as node, wherry.connect(node.url) as client:
            await client.create_topic("jobs")
            await client.subscribe("jobs", "workers", lease_ms=2_000, retry=wherry.Retry(first_ms=1, cap_ms=1))
            async with client.consumer("jobs", "workers") as consumer, asyncio.TaskGroup() as tasks:
                tasks.create_task(_produce(client))
                tasks.create_task(_consume(consumer, seen))
                for number in range(KILLS):
                    await _reached(seen, (number + 1) * MESSAGES // (KILLS + 1))
                    await node.kill()
                    await node.start()
            stats = await client.stats("jobs")
        assert set(seen) == set(range(MESSAGES)), "a message that was published never came"
        assert stats.counters["published"] == MESSAGES, "a message is stored twice"

    asyncio.run(main())


def test_a_broker_that_is_not_there_is_unavailable(tmp_path: Path):
    async def main() -> None:
        async with Node(tmp_path / "home") as node, wherry.connect(node.url) as client:
            await client.create_topic("jobs")
            await node.kill()
            for _ in range(2):  # the connection that was kept, then a new one
                with pytest.raises(wherry.Unavailable):
                    await client.publish("jobs", [b"a"])
            producer = client.producer("jobs", patience_s=0.1)
            with pytest.raises(wherry.Unavailable):
                async with producer:
                    await producer.publish(b"a")

    asyncio.run(main())


def test_a_node_behind_tls_is_reached_by_clients_that_trust_it(tmp_path: Path):
    certificates = Path(__file__).parents[1] / "unit/security/certificates"
    trust = ssl.create_default_context(cafile=certificates / "authority.pem")

    async def main() -> None:
        flags = ("--tls-certificate", str(certificates / "first.pem"), "--tls-key", str(certificates / "first.key"))
        payloads = [bytes([number]) * 60_000 for number in range(100)]  # more than any buffer on the way holds
        async with Node(tmp_path / "home", *flags) as node:
            assert node.url.startswith("https://")
            async with wherry.connect(node.url, tls=trust) as client:
                await client.create_topic("jobs")
                await client.subscribe("jobs", "workers")
                await client.publish("jobs", payloads)
                assert (await client.pull("jobs", "workers", bytes_max=64 << 20)).payloads() == payloads
            async with wherry.connect(node.url) as stranger:
                with pytest.raises(wherry.Unavailable, match="certificate"):
                    await stranger.topics()

    asyncio.run(main())
