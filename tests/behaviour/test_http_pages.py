"""Listings over HTTP: a page ends at so many messages or bytes, names the place to go on at, and lets others run."""

from __future__ import annotations

import asyncio
import io
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.behaviour.web import Reply, Web, web
from wherry.wire.http.endpoints import consume, dead, messages
from wherry.wire.http.protocol.message import (
    ARROW,
    AVRO,
    JSON,
    NDJSON,
)

TOPIC = "/v1/topics/jobs"


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (consume, messages, dead):
        monkeypatch.setattr(module, "PAGE_BYTES_MAX", 10_000)


async def filled(found: Web) -> list[str]:
    """Publish 60 messages of a kilobyte, all scheduled, all dead for two subscriptions, and return their ids."""
    await found.good(f"PUT {TOPIC}", {"partitions": 3})
    for name in ("one", "two"):
        await found.good(f"PUT {TOPIC}/subscriptions/{name}", {})
    ids = []
    for partition in (2, 0, 1):
        rows = [{"payload": "x" * 1_000, "id": f"{partition}.{n}", "key": "k"} for n in range(20)]
        await found.good(f"POST {TOPIC}/messages?partition={partition}", rows)
        ids += [row["id"] for row in rows]
    return ids


async def buried(found: Web) -> None:
    for name in ("one", "two"):
        pulled = await found.good(f"POST {TOPIC}/subscriptions/{name}/pull")
        receipts = [message["receipt"] for message in pulled["messages"]]
        await found.good(f"POST {TOPIC}/subscriptions/{name}/dead-letter", {"receipts": receipts, "error": "no"})


def rows_of(reply: Reply) -> tuple[list[str], str | None]:
    if reply.kind == JSON:
        page = reply.json()
        return [row["id"] for row in page["messages"]], page.get("next")
    following = reply.headers.get("wherry-next")
    if reply.kind == ARROW:
        return pa.ipc.open_stream(reply.body).read_all().column("id").to_pylist(), following
    if reply.kind == NDJSON:
        return [msgspec.json.decode(line)["id"] for line in reply.body.splitlines()], following
    fastavro = pytest.importorskip("fastavro")
    return [row["id"] for row in fastavro.reader(io.BytesIO(reply.body))], following


async def pages(found: Web, target: str, kind: str = JSON) -> list[list[str]]:
    """Return every page of a listing, each read from where the last one ended."""
    read, after = [], ""
    while True:
        reply = await found.ask(f"GET {TOPIC}{target}{after}", accept=kind)
        assert reply.status == 200, reply.body
        ids, following = rows_of(reply)
        read.append(ids)
        if following is None:
            return read
        after = f"&after={following}"


def run(test: Callable[[Web], Any]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), web() as found:
            await test(found)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [JSON, NDJSON, ARROW, AVRO])
def test_a_listing_ends_at_its_bytes_and_continues(kind: str) -> None:
    async def test(found: Web) -> None:
        ids = await filled(found)
        browsed = await pages(found, "/messages?partition=1&limit=1000", kind)
        assert [each for page in browsed for each in page] == [f"1.{n}" for n in range(20)]
        assert all(len(page) <= 9 for page in browsed)
        searched = await pages(found, "/search?key=k&limit=1000", kind)
        assert [each for page in searched for each in page] == ids
        assert len(searched) >= 7
        await buried(found)
        listed = await pages(found, "/dead?limit=1000", kind)
        by_partition = [ids[n : n + 20] * 2 for n in (0, 20, 40)]
        assert [each for page in listed for each in page] == [each for part in by_partition for each in part]

    run(test)


def test_a_listing_ends_at_its_limit_and_continues() -> None:
    async def test(found: Web) -> None:
        ids = await filled(found)
        browsed = await pages(found, "/messages?partition=0&start=3&limit=7")
        assert [len(page) for page in browsed] == [7, 7, 3]
        searched = await pages(found, "/search?limit=8")
        assert [each for page in searched for each in page] == ids
        await buried(found)
        listed = await pages(found, "/dead?subscription=two&limit=8")
        assert [each for page in listed for each in page] == ids

    run(test)


def test_scheduled_messages_are_listed_page_by_page_soonest_first() -> None:
    async def test(found: Web) -> None:
        await filled(found)
        due = 1 << 42
        for partition in range(3):
            rows = [{"payload": "x" * 1_000, "id": f"d{partition}.{n}", "due_ms": due + n // 2} for n in range(10)]
            await found.good(f"POST {TOPIC}/messages?partition={partition}", rows)
        wanted = [f"d{p}.{n}" for two in range(5) for p in range(3) for n in (2 * two, 2 * two + 1)]
        for limit in (1_000, 4):
            read = await pages(found, f"/subscriptions/one/scheduled?limit={limit}")
            assert [each for page in read for each in page] == wanted
            assert len(read) >= 4

    run(test)


def test_a_message_that_is_larger_than_a_page_is_a_page() -> None:
    async def test(found: Web) -> None:
        await found.good(f"PUT {TOPIC}", {})
        for _ in range(3):
            await found.good(f"POST {TOPIC}/messages", b"x" * 30_000)
        assert [len(page) for page in await pages(found, "/messages?limit=10")] == [1, 1, 1]

    run(test)


@pytest.mark.parametrize("after", ["x", "1", "1-2-3-4", "-1-2", "9-1", "1-2-", "1-²", "9-1-1"])
@pytest.mark.parametrize("target", ["/messages", "/search", "/dead", "/subscriptions/one/scheduled"])
def test_a_place_that_is_none_is_refused(target: str, after: str) -> None:
    async def test(found: Web) -> None:
        await filled(found)
        reply = await found.ask(f"GET {TOPIC}{target}?after={after}")
        if after == "9-1-1" and target.endswith("scheduled"):
            assert reply.status == 200, "a time, a partition and an offset"
        elif (after, target) in (("9-1", "/messages"), ("9-1", "/search"), ("9-1-1", "/dead")):
            assert reply.status == 404, "no such partition"
        else:
            assert reply.status == 400
            assert reply.json()["field"] == "after"

    run(test)


@pytest.mark.more
def test_a_large_listing_lets_others_run_and_holds_little(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(found: Web) -> None:
        await found.good(f"PUT {TOPIC}", {})
        for _ in range(30):
            await found.good(f"POST {TOPIC}/messages", [{"payload": "x" * 60_000}] * 20)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        tracemalloc.start()
        reply = await found.ask(f"GET {TOPIC}/messages?limit=1000")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        other.cancel()
        page = reply.json()
        assert 200 < len(page["messages"]) < 300
        assert page["next"]
        assert turns > 10
        assert peak < 120 << 20

    monkeypatch.setattr(messages, "PAGE_BYTES_MAX", 16 << 20)
    run(test)
