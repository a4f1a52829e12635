"""The stream of figures: true, shared by all readers, bounded, and cut to what its reader may see."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.behaviour.test_http_rights import key_of, with_keys
from tests.behaviour.web import Web, web, with_jobs
from tests.behaviour.world import VirtualClock
from wherry.broker.metrics.metrics import Metrics
from wherry.wire.http.api import sampling
from wherry.wire.http.protocol.message import Stream

EVENTS = {"accept": "text/event-stream"}


async def watch(found: Web, **headers: str) -> Stream:
    answer = await found.answer("GET /v1/figures", **EVENTS, **headers)
    assert isinstance(answer, Stream), answer
    return answer


async def next_event(stream: Stream) -> tuple[str, Any]:
    chunk = await anext(stream.chunks)
    head, _, data = chunk.decode().partition("\ndata: ")
    return head.removeprefix("event: "), msgspec.json.decode(data)


async def leave(found: Web, *streams: Stream) -> None:
    """Close streams as the connection does when its client is gone."""
    for stream in streams:
        await stream.chunks.aclose()  # type: ignore[attr-defined]
        found.server.requests -= 1
        found.server.waits -= 1


@pytest.mark.rows("A13")
@with_jobs
async def test_figures_are_those_of_the_topic_and_count_deliveries(found: Web) -> None:
    metrics = Metrics(found.broker)
    metrics.gauge("wherry_boats", "Boats", lambda: 3)
    metrics.count("wherry_cut_off", "Cut off", ("why",), lambda: {("slow",): 2, ("never",): 0})
    await found.receipts(2)
    figures = await found.good("GET /v1/figures")
    (topic,) = figures["topics"]
    (workers,) = topic["subscriptions"]
    assert (topic["name"], topic["messages"], topic["counters"]["published"]) == ("jobs", 3, 3)
    assert (workers["ready"], workers["leased"], workers["delivered"], workers["consumers"]) == (1, 2, 2, 1)
    stats = (await found.good("GET /v1/topics/jobs"))["stats"]["subscriptions"][0]
    assert {name: workers[name] for name in ("lag", "dead", "scheduled", "counters")} == {
        name: stats[name] for name in ("lag", "dead", "scheduled", "counters")
    }
    assert figures["broker"]["leases"] == 1
    assert sum(figures["broker"]["latency"]["delivery"]["counts"]) == 2
    assert figures["broker"]["gauges"] == {"wherry_boats": 3}
    assert figures["broker"]["tallies"] == [
        {"name": "wherry_cut_off", "about": "Cut off", "labels": {"why": "slow"}, "value": 2}
    ]
    assert figures["left_off"] == 0


def test_scheduled_messages_make_no_subscription_look_late():
    async def main() -> None:
        clock = VirtualClock()
        async with web(clock) as found:
            start_ms = found.broker.shard.now().wall_ms
            for order in ("fifo", "timeline", "priority"):
                await found.good(f"PUT /v1/topics/{order}", {"order": order})
                await found.good(f"PUT /v1/topics/{order}/subscriptions/s", {})
                soon = {"payload": "soon", "due_ms": start_ms + 30_000}
                later = {"payload": "later", "due_ms": start_ms + 3_600_000}
                await found.good(f"POST /v1/topics/{order}/messages", [later, soon] if order == "timeline" else [later])
            clock.advance(100_000)
            for order in ("fifo", "priority"):
                await found.good(f"POST /v1/topics/{order}/messages", [{"payload": "now"}])
            clock.advance(10_000)
            figures = {
                topic["name"]: topic["subscriptions"][0] for topic in (await found.good("GET /v1/figures"))["topics"]
            }
            assert {name: (each["ready"], each["lag_ms"]) for name, each in figures.items()} == dict.fromkeys(
                ("fifo", "timeline", "priority"), (1, 110_000)
            )
            assert {name: each["ready_ms"] for name, each in figures.items()} == {
                "fifo": 10_000,
                "timeline": 80_000,
                "priority": None,
            }

    asyncio.run(main())


@with_jobs
async def test_refused_publishes_and_cut_offs_are_shown(found: Web) -> None:
    Metrics(found.broker)
    await found.good("PUT /v1/topics/small", {"messages_max": 1})
    await found.good("PUT /v1/topics/small/subscriptions/s", {})
    await found.good("POST /v1/topics/small/messages", b"one")
    assert (await found.ask("POST /v1/topics/small/messages", b"two")).status == 429
    await found.good("PUT /v1/topics/jobs/subscriptions/slow", {"buffer_messages": 1, "start": "latest"})
    await found.good("POST /v1/topics/jobs/messages", [{"payload": "x"}] * 5)
    figures = {topic["name"]: topic for topic in (await found.good("GET /v1/figures"))["topics"]}
    assert figures["small"]["refused"] == {"limit-reached": 1}
    (removal,) = figures["jobs"]["removals"]
    assert removal["subscription"] == "slow"
    assert "buffer" in removal["why"]


@with_jobs
async def test_all_viewers_share_one_look(found: Web) -> None:
    streams = [await watch(found) for _ in range(5)]
    firsts = [await next_event(stream) for stream in streams]
    assert {kind for kind, _ in firsts} == {"figures"}
    assert found.service.sampler.taken == 1
    seconds = await asyncio.gather(*(next_event(stream) for stream in streams))
    assert len({figures["at_ms"] for _, figures in seconds}) == 1
    assert found.service.sampler.taken == 2
    await leave(found, *streams)
    assert found.service.sampler.viewers == 0
    taken = found.service.sampler.taken
    await asyncio.sleep(sampling.SAMPLE_S * 1.5)
    assert found.service.sampler.taken == taken, "no reader is left: nothing runs"


@with_jobs
async def test_one_viewer_too_many_is_refused_and_the_others_stay(found: Web) -> None:
    streams = [await watch(found) for _ in range(sampling.VIEWERS_MAX)]
    reply = await found.ask("GET /v1/figures", **EVENTS)
    assert (reply.status, reply.json()["code"]) == (503, "busy")
    assert f"{sampling.VIEWERS_MAX} watch" in reply.json()["detail"]
    await leave(found, streams.pop())
    streams.append(await watch(found))
    assert (await next_event(streams[0]))[0] == "figures"
    await leave(found, *streams)


@with_jobs
async def test_the_stream_ends_with_the_server(found: Web) -> None:
    stream = await watch(found)
    await next_event(stream)
    more = asyncio.ensure_future(next_event(stream))
    await asyncio.sleep(0)
    await found.server.close(0.1)
    assert (await more)[0] == "figures"
    assert (await next_event(stream))[1]["code"] == "closed"
    await leave(found, stream)


@pytest.mark.rows("D27")
@with_keys
async def test_figures_are_cut_to_what_the_caller_may_consume(found: Web, tokens: dict[str, str]) -> None:
    async def seen(name: str) -> tuple[list[str], bool]:
        figures = await found.good("GET /v1/figures", authorization=tokens[name])
        return [topic["name"] for topic in figures["topics"]], figures["broker"] is not None

    assert await seen("root") == (["bills", "orders.eu", "orders.us"], True)
    assert await seen("shop") == (["orders.eu", "orders.us"], False)
    assert await seen("reader") == (["orders.eu"], False)
    assert await seen("writer") == await seen("nobody") == ([], False)
    assert (await found.ask("GET /v1/figures")).status == 401
    assert (await found.ask("GET /v1/figures", **EVENTS)).status == 401


@pytest.mark.rows("D27")
@with_keys
async def test_a_stream_of_figures_ends_with_its_key(found: Web, tokens: dict[str, str]) -> None:
    stream = await watch(found, authorization=tokens["reader"])
    assert [topic["name"] for topic in (await next_event(stream))[1]["topics"]] == ["orders.eu"]
    await found.broker.delete_key(key_of(found, "reader").id)
    kind, figures = await next_event(stream)
    assert (kind, figures["code"]) == ("problem", "unauthorized")
    await leave(found, stream)


def test_a_thousand_topics_are_shown_and_the_rest_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampling, "TOPICS_MAX", 3)

    async def main() -> None:
        async with web() as found:
            for number in range(5):
                await found.good(f"PUT /v1/topics/t{number}", {})
            figures = await found.good("GET /v1/figures")
            assert ([topic["name"] for topic in figures["topics"]], figures["left_off"]) == (["t0", "t1", "t2"], 2)

    asyncio.run(main())


@with_jobs
async def test_partitions_and_reasons_are_counted(found: Web) -> None:
    figures = (await found.good("GET /v1/topics/jobs/partitions"))["partitions"]
    assert figures[0] == {"partition": 0, "first_offset": 0, "next_offset": 3, "messages": 3, "lag": {"workers": 3}}
    assert [each["partition"] for each in figures] == [0, 1]
    assert (await found.good("GET /v1/topics/jobs/partitions?first=1&limit=1"))["partitions"][0]["partition"] == 1
    sub = "/v1/topics/jobs/subscriptions/workers"
    for reason, error in (("bad", "no such user"), ("bad", "no such user"), ("worse", "")):
        (receipt,) = await found.receipts(1)
        await found.good(f"POST {sub}/dead-letter", {"receipts": [receipt], "reason": reason, "error": error})
    await found.good("PATCH /v1/topics/jobs", {"messages_max": 10})
    figures = await found.good("GET /v1/topics/jobs/dead/reasons")
    assert (figures["count"], figures["room"]) == (3, 10)
    assert [(each["reason"], each["count"], each["errors"]) for each in figures["reasons"]] == [
        ("bad", 2, {"no such user": 2}),
        ("worse", 1, {"": 1}),
    ]
    assert figures["reasons"][0]["first_ms"] <= figures["reasons"][0]["last_ms"]
    assert (await found.good("GET /v1/topics/jobs/dead/reasons?reason=wors"))["count"] == 1
    assert (await found.good("GET /v1/topics/jobs/dead/reasons?from_ms=3000000000000"))["reasons"] == []
