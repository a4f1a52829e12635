"""The client over the native wire: drains, kills, bounds, and the end of its work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.integration.worlds import Node, in_process
from wherry.node.config import SecuritySection, ServerSection

AT_ONCE = wherry.Retry(first_ms=1, cap_ms=1)


async def ready(client: wherry.Client) -> None:
    await client.create_topic("jobs", payload_bytes_max=20 << 20)
    await client.subscribe("jobs", "workers", retry=AT_ONCE)


def test_a_node_that_is_stopped_and_started_again_is_no_error_for_those_at_work(tmp_path: Path):
    async def main() -> None:
        seen: set[bytes] = set()
        async with Node(tmp_path / "home") as node, wherry.connect(node.url, wire="native") as client:
            await ready(client)
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                published = tasks.create_task(_publish(client, stop))
                consuming = tasks.create_task(_consume(client, seen))
                for _ in range(2):
                    await asyncio.sleep(0.3)
                    await node.stop()
                    await node.start()
                await asyncio.sleep(0.3)
                stop.set()
                count = await published
                while len(seen) < count:  # noqa: ASYNC110  no event to wait for
                    await asyncio.sleep(0.01)
                consuming.cancel()
            stats = await client.stats("jobs")
            assert seen == {b"%d" % number for number in range(count)}
            assert stats.counters["published"] == count, "a publish was repeated though it had been stored"

    asyncio.run(asyncio.wait_for(main(), 60))


async def _publish(client: wherry.Client, stop: asyncio.Event) -> int:
    """Publish one by one; every call must succeed."""
    count = 0
    while not stop.is_set():
        await client.publish("jobs", b"%d" % count)
        count += 1
    return count


async def _consume(client: wherry.Client, seen: set[bytes]) -> None:
    async with client.consumer("jobs", "workers") as consumer:
        async for message in consumer:
            seen.add(message.payload)
            await message.ack()


def test_a_drain_lets_the_reader_settle_what_it_holds(tmp_path: Path):
    async def main() -> None:
        async with Node(tmp_path / "home") as node, wherry.connect(node.url, wire="native") as client:
            await ready(client)
            await client.publish("jobs", [b"a", b"b", b"c"])
            async with client.consumer("jobs", "workers") as consumer:
                messages = aiter(consumer)
                held = await anext(messages)
                stopping = asyncio.create_task(node.stop())
                await asyncio.sleep(0.3)
                await held.ack()
                await stopping
                await node.start()
                rest = [await anext(messages) for _ in range(2)]
                assert [(message.payload, message.attempt) for message in rest] == [(b"b", 1), (b"c", 1)]
                for message in rest:
                    await message.ack()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.rows("A2")
def test_a_node_that_is_killed_has_stored_what_it_confirmed_and_the_rest_raises(tmp_path: Path):
    async def main() -> None:
        async with Node(tmp_path / "home") as node, wherry.connect(node.url, wire="native") as client:
            await ready(client)
            sent = [asyncio.create_task(client.publish("jobs", b"%d" % number)) for number in range(3_000)]
            while not sent[200].done():  # noqa: ASYNC110  no event to wait for
                await asyncio.sleep(0.001)
            await node.kill()
            answers = await asyncio.gather(*sent, return_exceptions=True)
            assert {type(answer) for answer in answers} <= {wherry.Published, wherry.Unavailable}
            await node.start()
            stored = set((await client.browse("jobs", limit=10_000)).column("payload").to_pylist())
            confirmed = {b"%d" % n for n, answer in enumerate(answers) if isinstance(answer, wherry.Published)}
            assert len(confirmed) > 200
            assert confirmed <= stored

    asyncio.run(asyncio.wait_for(main(), 60))


def test_confirms_of_many_callers_are_their_own_and_in_order(tmp_path: Path):
    async def main() -> None:
        async with in_process(tmp_path) as node, wherry.connect(node.url, wire="native") as client:
            await ready(client)
            sizes = [1 + number * 7 % 5 for number in range(400)]
            batches = [[b"%d" % number] * size for number, size in enumerate(sizes)]
            places = await asyncio.gather(*(client.publish("jobs", batch) for batch in batches))
            assert [offset for place in places for offset in place.offset.tolist()] == list(range(sum(sizes)))
            stored = (await client.browse("jobs", limit=10_000)).column("payload").to_pylist()
            assert stored == [payload for batch in batches for payload in batch]

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.rows("D26", "Q2", "Q5")
def test_a_reader_never_holds_more_than_its_buffer_and_others_are_not_held_up(tmp_path: Path):
    async def main() -> None:
        async with in_process(tmp_path) as node, wherry.connect(node.url, wire="native") as client:
            await ready(client)
            await client.publish_batch("jobs", [b"x" * 10_000] * 5_000)
            async with client.consumer("jobs", "workers", buffer_messages=100) as consumer:
                held = []
                async for message in consumer:
                    held.append(message)
                    if len(held) == 100:
                        break
                for _ in range(20):
                    began = time.monotonic()
                    stats = (await client.stats("jobs")).subscriptions[0]
                    await client.publish("jobs", b"beside")
                    assert time.monotonic() - began < 2
                    assert stats.leased <= 100
                for message in held[:50]:
                    await message.ack()
                await asyncio.sleep(0.1)
                assert 50 <= (await client.stats("jobs")).subscriptions[0].leased <= 100

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.rows("Q2")
def test_a_reader_that_does_not_read_holds_one_step(tmp_path: Path):
    async def main() -> None:
        async with in_process(tmp_path) as node, wherry.connect(node.url, wire="native") as client:
            await ready(client)
            async with client.consumer("jobs", "workers") as consumer:
                await client.publish_batch("jobs", [b"x" * 10_000] * 5_000)
                await asyncio.sleep(0.3)
                assert 0 < consumer.ahead <= consumer.step == 16

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_publish_that_is_given_up_is_stored_and_harms_no_other(tmp_path: Path):
    async def main() -> None:
        async with in_process(tmp_path) as node, wherry.connect(node.url, wire="native") as client:
            await ready(client)
            given_up = [asyncio.create_task(client.publish("jobs", b"a")) for _ in range(20)]
            await asyncio.sleep(0)
            for task in given_up:
                task.cancel()
            assert (await client.publish("jobs", b"b")).ids() == ["0-20"]
            waiting = asyncio.create_task(client.pull("jobs", "workers", 100, wait_ms=20_000))
            assert len(await waiting) == 21
            waiting = asyncio.create_task(client.pull("jobs", "workers", 100, wait_ms=20_000))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await client.publish("jobs", b"c")
            assert (await client.pull("jobs", "workers", wait_ms=1_000)).payloads() == [b"c"]

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_client_that_is_closed_gets_the_answers_that_are_under_way(tmp_path: Path):
    async def main() -> None:
        async with in_process(tmp_path) as node:
            client = wherry.connect(node.url, wire="native")
            await ready(client)
            consumer = await client.consumer("jobs", "workers").__aenter__()
            reading = asyncio.ensure_future(anext(aiter(consumer)))
            sent = [asyncio.create_task(client.publish("jobs", b"a")) for _ in range(50)]
            await asyncio.sleep(0)
            await client.close()
            assert [answer.ids() for answer in await asyncio.gather(*sent)] == [[f"0-{n}"] for n in range(50)]
            for call in (client.topics(), client.publish("jobs", b"a")):
                with pytest.raises(wherry.Unavailable, match="closed"):
                    await call
            with pytest.raises((wherry.Unavailable, wherry.StaleLease)):
                while True:
                    await (await reading).ack()
                    reading = asyncio.ensure_future(anext(aiter(consumer)))
            await consumer.close()
            await client.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def calls(client: wherry.Client) -> list[Callable[[], Awaitable[Any]]]:
    """Calls that some keys may make, and some that no key may."""
    return [
        lambda: client.create_topic("mine"),
        lambda: client.publish("jobs", b"a"),
        lambda: client.publish("nowhere", b"a"),
        lambda: client.publish("", b"a"),
        lambda: client.publish("jobs", b"a", wherry.PublishOptions(partition=9)),
        lambda: client.publish("jobs", wherry.Message(payload=b"a", key="k" * 2_000)),
        lambda: client.publish("jobs", [b"a"] * 100, wherry.PublishOptions(sequence=1)),
        lambda: client.consumer("jobs", "workers").__aenter__(),
        lambda: client.consumer("jobs", "none").__aenter__(),
        lambda: client.pull("jobs", "workers"),
        client.keys,
    ]


async def refusals(url: str, key: str | None, wire: Any) -> list[tuple[object, ...]]:
    """Return what each of these calls returns or raises."""
    found: list[tuple[object, ...]] = []
    async with wherry.connect(url, key=key, wire=wire) as client:
        for call in calls(client):
            try:
                done = await call()
            except wherry.WherryError as fault:
                found.append((type(fault), fault.code, getattr(fault, "field", None), str(fault)))
            else:
                found.append((type(done),))
                if hasattr(done, "close"):
                    await done.close()
    return found


def test_keys_and_rights_are_refused_as_over_http(tmp_path: Path):
    async def main() -> None:
        async with in_process(tmp_path, security=SecuritySection(keys="on")) as node:
            admin = (tmp_path / "admin.key").read_text()
            async with wherry.connect(node.url, key=admin) as client:
                await ready(client)
                rights = ("publish:jobs", "consume:jobs", "admin")
                tokens = [(await client.make_key(right, [right])).token for right in rights]
            for key in (None, "wk_wrong", admin, *tokens):
                assert await refusals(node.url, key, "native") == await refusals(node.url, key, "http")

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("wire", ["native", "http"])
def test_a_unix_socket_is_an_address(tmp_path: Path, wire):
    async def main() -> None:
        path = tmp_path / "wherry.sock"
        server = ServerSection(port=0, drain_s=2.0, unix_socket=str(path))
        async with in_process(tmp_path / "home", server=server), wherry.connect(f"unix://{path}", wire=wire) as client:
            await ready(client)
            assert (await client.publish("jobs", b"a")).ids() == ["0-0"]
        with pytest.raises(wherry.Unavailable, match=r"wherry\.sock"):
            await wherry.connect(f"unix://{path}", wire=wire).topics()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_message_larger_than_a_frame_is_sent_by_http(tmp_path: Path):
    async def main() -> None:
        async with in_process(tmp_path) as node, wherry.connect(node.url) as client:
            await ready(client)
            payloads = [bytes([number]) * (12 << 20) for number in range(3)]
            for payload in payloads:
                await client.publish("jobs", payload)
            assert (await client.pull("jobs", "workers", bytes_max=60 << 20)).payloads() == payloads
            assert client.native is not None
            assert client.native.session is not None

    asyncio.run(asyncio.wait_for(main(), 30))


def test_callers_without_a_loop_use_the_native_wire_too(tmp_path: Path):
    async def main() -> None:
        async with in_process(tmp_path) as node:
            await asyncio.to_thread(_blocking, node.url)

    asyncio.run(asyncio.wait_for(main(), 30))


def _blocking(url: str) -> None:
    with wherry.connect_sync(url, wire="native") as client:
        client.create_topic("jobs")
        client.subscribe("jobs", "workers")
        assert client.publish("jobs", b"a").ids() == ["0-0"]
        with client.producer("jobs") as producer:
            producer.publish(b"b")
        got = []
        with client.consumer("jobs", "workers") as consumer:
            for message in consumer:
                got.append(message.payload)
                message.ack()
                if len(got) == 2:
                    break
        assert got == [b"a", b"b"]
        assert client.stats("jobs").subscriptions[0].lag == 0
