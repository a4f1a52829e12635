"""Pulling without a name: every connection has a buffer of its own, all of them together one place among others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.behaviour.web import Web, web, with_jobs
from tests.behaviour.world import VirtualClock
from tests.unit.wire.http.memory import Client, post
from wherry.broker.opening import start
from wherry.core.decide import leasing
from wherry.journal.memory import MemoryEngine
from wherry.sim.world import loop
from wherry.wire.http.api import service
from wherry.wire.http.app import App, serve

SUB = "/v1/topics/jobs/subscriptions/workers"


async def views(found: Web, subscription: str = SUB) -> dict[str, Any]:
    return {each["name"]: each for each in (await found.good(f"GET {subscription}/consumers"))["consumers"]}


async def over(found: Web, connection: int, count: int = 1_000) -> list[str]:
    """What a pull over a connection gives."""
    found.connection = connection
    return await found.receipts(count)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "BUFFER_MESSAGES_DEFAULT", 2)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.rows("Q2", "Q3")
@with_jobs
async def test_a_client_that_never_settles_keeps_nothing_from_the_others(found: Web) -> None:
    assert len(await over(found, 1)) == 2
    assert await over(found, 1) == []
    other = await over(found, 2)
    assert len(other) == 1
    assert {name: each["out_messages"] for name, each in (await views(found)).items()} == {"http-1": 2, "http-2": 1}


@pytest.mark.usefixtures("small_buffers")
@with_jobs
async def test_a_client_that_is_full_waits_for_room_of_its_own(found: Web) -> None:
    held = await over(found, 1)
    waiting = asyncio.create_task(found.receipts(wait_ms="20000"))
    await asyncio.sleep(0)
    found.connection = 2  # settled over another connection
    await found.good(f"POST {SUB}/ack", {"receipts": held[:1]})
    assert len(await waiting) == 1


@with_jobs
async def test_what_was_pulled_is_settled_after_its_connection_is_gone(found: Web) -> None:
    held = await over(found, 1)
    found.service.consumers.forget(1)
    await found.service.consumers.close_idle()
    assert list(await views(found)) == ["http-1"], "it holds something"
    found.connection = 2
    await found.good(f"POST {SUB}/ack", {"receipts": held})
    await found.service.consumers.close_idle()
    assert await views(found) == {}
    assert (await found.good(f"GET {SUB}"))["stats"]["leased"] == 0


@pytest.mark.rows("D20")
@with_jobs
async def test_many_without_a_name_share_partitions_as_one(found: Web) -> None:
    await found.good("PUT /v1/topics/jobs/subscriptions/workers-in-order", {"assignment": "ordered"})
    ordered = SUB + "-in-order"
    await found.good(f"POST {ordered}/pull?consumer=ann")
    for found.connection in range(1, 20):
        await found.good(f"POST {ordered}/pull?messages=1")
    seen = await views(found, ordered)
    assert len(seen) == 20
    assert len(seen["ann"]["partitions"]) == 1
    assert len({tuple(each["partitions"]) for each in seen.values()}) == 2
    found.connection = 0
    held = [f"{lease.token}" for lease in found.broker.shard.state.leases.all() if lease.consumer != "ann"]
    if held:
        await found.good(f"POST {ordered}/ack", {"receipts": held})
    for connection in range(1, 20):
        found.service.consumers.forget(connection)
    await found.service.consumers.close_idle()
    (ann,) = (await views(found, ordered)).values()
    assert sorted(ann["partitions"]) == [0, 1]


@pytest.mark.rows("D20")
@with_jobs
async def test_one_of_the_clients_that_wait_without_a_name_is_woken(found: Web) -> None:
    ordered = SUB + "-in-order"
    await found.good(f"PUT {ordered}", {"assignment": "ordered", "start": "latest"})
    waiting = []
    for found.connection in (1, 2, 3):
        waiting.append(asyncio.create_task(found.good(f"POST {ordered}/pull?wait_ms=20000&messages=1")))
        await asyncio.sleep(0)
    for number in range(3):
        await found.good(f"POST /v1/topics/jobs/messages?partition={number % 2}", {"payload": f"{number}"})
    pulled = [each["messages"][0]["payload"] for each in await asyncio.gather(*waiting)]
    assert sorted(pulled) == ["0", "1", "2"]


@with_jobs
async def test_an_ephemeral_subscription_outlives_the_connection_of_a_pull(found: Web) -> None:
    passing = "/v1/topics/jobs/subscriptions/passing"
    await found.good(f"PUT {passing}", {"durable": False})
    found.connection = 1
    await found.good(f"POST {passing}/pull")
    found.service.consumers.forget(1)
    await found.service.consumers.close_idle()
    await found.good(f"GET {passing}")
    later = found.service.consumers.clock() + service.CONSUMER_IDLE_S + 1
    found.service.consumers.clock = lambda: later
    await found.service.consumers.close_idle()
    assert (await found.ask(f"GET {passing}")).status == 404


@with_jobs
async def test_more_partitions_are_shared_out_by_seat(found: Web) -> None:
    await over(found, 1, 1)
    await over(found, 2, 1)
    await found.receipts(1, consumer="ann")
    await found.good("PATCH /v1/topics/jobs", {"partitions": 8})
    seen = await views(found)
    assert seen["http-1"]["partitions"] == seen["http-2"]["partitions"]
    assert sorted(seen["http-1"]["partitions"] + seen["ann"]["partitions"]) == list(range(8))


def test_beyond_so_many_they_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "KNOWN_MAX", 2)

    async def main() -> None:
        async with web() as found:
            await found.jobs()
            for connection in range(1, 6):
                await over(found, connection, 1)
            assert list(await views(found)) == ["http-1", "http-2", "http-3"]

    asyncio.run(main())


def test_a_pull_and_its_ack_come_over_connections_of_their_own():
    async def main() -> None:
        broker = await start(MemoryEngine(), None, VirtualClock())
        await broker.create_topic("jobs")
        await broker.subscribe("jobs", "workers")
        await broker.publish("jobs", [b"one", b"two"])
        async with serve(App(broker)) as server:
            client = Client(server)
            said = await client.send(post(b"", f"{SUB}/pull?messages=1").replace(b"here", b"localhost", 1))
            receipt = said.partition(b'"receipt":"')[2].partition(b'"')[0]
            body = b'{"receipts": ["%b"]}' % receipt
            json = "Content-Type: application/json"
            assert (await client.send(post(body, f"{SUB}/ack", json).replace(b"here", b"localhost", 1)))[9:12] == b"204"
            state = broker.shard.state.subscription("jobs", "workers")
            assert [each.unsettled_messages for each in state.consumers.values()] == [0]
        await broker.close()

    loop.run(main())
