"""The client through proxies: those that refuse upgrades, and those that cut connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import wherry
from tests.integration.proxies import UPGRADE, proxied
from tests.integration.worlds import in_process


def without_headers(head: bytes) -> bytes:
    """Remove headers as most proxies do: `Connection` and `Upgrade` are for the next hop only."""
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"upgrade:"))]
    return b"\r\n".join(lines)


def page(status: str, body: bytes = b"<html>no</html>") -> Callable[[bytes], bytes]:
    return lambda _: (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )


REFUSALS = {
    "drops the headers": without_headers,
    "does not know the path": lambda head: head.replace(UPGRADE, b"GET /v1/wire/none ").replace(b"Upgrade", b"X"),
    "forbids": page("403 Forbidden"),
    "not implemented": page("501 Not Implemented"),
    "bad gateway": page("502 Bad Gateway"),
    "unavailable": page("503 Service Unavailable"),
    "a page of its own": page("200 OK"),
    "HTTP/1.0": page("HTTP/1.0 400 Bad Request"),
    "another protocol": lambda _: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
    "closes": lambda _: b"",
    "no HTTP": lambda _: b"\x15\x03\x01\x00\x02\x02\x16",
}


async def everything(client: wherry.Client) -> None:
    """Do a little of all that a client does."""
    await client.create_topic("jobs")
    await client.subscribe("jobs", "workers")
    assert (await client.publish("jobs", [b"a"])).ids() == ["0-0"]
    async with client.producer("jobs") as producer:
        await producer.publish(b"b")
    async with client.consumer("jobs", "workers") as consumer:
        messages = aiter(consumer)
        for payload in (b"a", b"b"):
            message = await anext(messages)
            assert message.payload == payload
            await message.ack()
    assert (await client.stats("jobs")).subscriptions[0].lag == 0


@pytest.mark.parametrize("refuse", REFUSALS.values(), ids=REFUSALS)
def test_a_client_uses_http_where_the_upgrade_is_refused_and_asks_once(tmp_path: Path, refuse):
    async def main() -> None:
        async with in_process(tmp_path) as node, proxied(node.url, refuse) as (url, proxy):
            async with wherry.connect(url) as client:
                await everything(client)
                assert client.native is not None
                assert client.native.is_refused
            assert proxy.upgrades == 1
            async with wherry.connect(url, wire="native") as strict:
                with pytest.raises(wherry.Unavailable, match="native wire"):
                    await strict.topics()
            async with wherry.connect(url, wire="http") as plain:
                await plain.topics()
            assert proxy.upgrades == 2

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_proxy_that_passes_upgrades_on_is_no_hindrance(tmp_path: Path):
    async def main() -> None:
        async with in_process(tmp_path) as node, proxied(node.url) as (url, proxy), wherry.connect(url) as client:
            await everything(client)
            assert client.native is not None
            assert not client.native.is_refused
            assert proxy.connections == proxy.upgrades == 1

    asyncio.run(asyncio.wait_for(main(), 30))


def test_connections_that_are_cut_when_idle_are_made_again_without_an_error(tmp_path: Path):
    async def main() -> None:
        async with in_process(tmp_path) as node, proxied(node.url, idle_s=1.0) as (url, proxy):
            async with wherry.connect(url, wire="native") as client:
                await client.create_topic("jobs")
                await client.subscribe("jobs", "workers", retry=wherry.Retry(first_ms=1, cap_ms=1))
                async with client.consumer("jobs", "workers") as consumer:
                    messages = aiter(consumer)
                    for number in range(3):
                        await client.publish("jobs", [b"%d" % number])
                        message = await anext(messages)
                        assert message.payload == b"%d" % number
                        await message.ack()
                        await asyncio.sleep(1.5)
                        assert (await client.stats("jobs")).subscriptions[0].lag == 0
            assert proxy.upgrades >= 3

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.rows("A6")
def test_what_was_held_when_a_connection_was_cut_comes_again(tmp_path: Path):
    async def main() -> None:
        async with (
            in_process(tmp_path) as node,
            proxied(node.url) as (url, proxy),
            wherry.connect(url, wire="native") as client,
        ):
            await client.create_topic("jobs")
            await client.subscribe("jobs", "workers", retry=wherry.Retry(first_ms=1, cap_ms=1))
            await client.publish("jobs", [b"a", b"b"])
            async with client.consumer("jobs", "workers") as consumer:
                messages = aiter(consumer)
                held = await anext(messages)
                proxy.cut()
                while held.batch.lost is None:  # noqa: ASYNC110  no event to wait for
                    await asyncio.sleep(0.005)
                again = [await anext(messages) for _ in range(2)]
                assert sorted(message.payload for message in again) == [b"a", b"b"]
                assert {message.attempt for message in again} == {2}
                with pytest.raises(wherry.StaleLease):
                    await held.ack()
                for message in again:
                    await message.ack()
            assert (await client.stats("jobs")).subscriptions[0].lag == 0

    asyncio.run(asyncio.wait_for(main(), 30))


def test_connections_that_are_cut_at_work_lose_nothing_and_store_nothing_twice(tmp_path: Path):
    messages, cuts = 3_000, 5

    async def main() -> None:
        seen: set[int] = set()
        async with in_process(tmp_path) as node, proxied(node.url) as (url, proxy):
            async with wherry.connect(url, wire="native") as client, asyncio.TaskGroup() as tasks:
                await client.create_topic("jobs")
                await client.subscribe("jobs", "workers", retry=wherry.Retry(first_ms=1, cap_ms=1))
                published = tasks.create_task(_produce(client, messages))
                consumed = tasks.create_task(_consume(client, messages, seen))
                for number in range(cuts):
                    while len(seen) < number * messages // cuts:  # noqa: ASYNC110  a counter has no event
                        await asyncio.sleep(0.005)
                    proxy.cut()
                await published
                await consumed
            stats = await _stats(node.url)
        assert seen == set(range(messages))
        assert stats.counters["published"] == messages

    asyncio.run(asyncio.wait_for(main(), 60))


async def _produce(client: wherry.Client, messages: int) -> None:
    async with client.producer("jobs", batch_messages=50, buffer_messages=200) as producer:
        for number in range(messages):
            await producer.publish(b"%d" % number)


async def _consume(client: wherry.Client, messages: int, seen: set[int]) -> None:
    async with client.consumer("jobs", "workers") as consumer:
        async for message in consumer:
            seen.add(int(message.payload))
            message.ack_later()
            if len(seen) == messages:
                return


async def _stats(url: str) -> wherry.TopicStats:
    async with wherry.connect(url) as client:
        return await client.stats("jobs")
