"""Consuming over HTTP: waits, streams of events, consumers by name, settling by receipt."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import wherry
from tests.behaviour.web import Web, web, with_jobs
from tests.behaviour.world import LoopClock, VirtualClock, in_virtual_time
from wherry.wire.http.api.service import CONSUMER_IDLE_S
from wherry.wire.http.endpoints.consume import HEARTBEAT_MS
from wherry.wire.http.protocol.bounds import Bounds
from wherry.wire.http.protocol.message import Stream

SUB = "/v1/topics/jobs/subscriptions/workers"


def in_time(test: Any) -> Any:
    """Run a test on the simulator's loop, where a wait of a minute takes no time."""

    @in_virtual_time
    async def run(broker: wherry.Broker, clock: LoopClock) -> None:
        found = Web(broker)
        await found.jobs()
        await found.good(f"POST {SUB}/ack", {"receipts": await found.receipts()})
        await test(found, clock)
        await found.service.consumers.close()
        assert (found.server.requests, found.server.waits) == (0, 0)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


# ---------------------------------------------------------------------------------------------------------- long polls


@in_time
async def test_a_poll_waits_and_wakes_on_a_publish(found: Web, clock: LoopClock) -> None:
    poll = asyncio.create_task(found.good(f"POST {SUB}/pull?wait_ms=60000"))
    await asyncio.sleep(5)
    assert found.server.waits == 1
    began = clock.now_ms
    await found.good("POST /v1/topics/jobs/messages", {"payload": "now"})
    (message,) = (await poll)["messages"]
    assert message["payload"] == "now"
    assert clock.now_ms - began < 100


@in_time
async def test_a_poll_comes_back_empty_when_its_time_is_over(found: Web, clock: LoopClock) -> None:
    began = clock.now_ms
    assert (await found.good(f"POST {SUB}/pull?wait_ms=20000")) == {"messages": []}
    assert 20_000 <= clock.now_ms - began < 21_000


@in_time
async def test_a_poll_that_is_given_up_takes_nothing_along(found: Web, clock: LoopClock) -> None:
    poll = asyncio.create_task(found.good(f"POST {SUB}/pull?wait_ms=60000"))
    await asyncio.sleep(1)
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    await found.good("POST /v1/topics/jobs/messages", {"payload": "now"})
    assert len(await found.receipts()) == 1


@in_time
async def test_a_poll_of_a_subscription_that_is_deleted_ends(found: Web, clock: LoopClock) -> None:
    poll = asyncio.create_task(found.ask(f"POST {SUB}/pull?wait_ms=60000"))
    await asyncio.sleep(1)
    await found.good(f"DELETE {SUB}")
    assert (await poll).json()["code"] == "cut-off"


def test_waits_are_bounded():
    async def main() -> None:
        async with web(bounds=Bounds(waits=1)) as found:
            await found.jobs()
            await found.receipts()
            poll = asyncio.create_task(found.ask(f"POST {SUB}/pull?wait_ms=200"))
            await asyncio.sleep(0.01)
            for line in (f"POST {SUB}/pull?wait_ms=200", f"GET {SUB}/events"):
                reply = await found.ask(line)
                assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            consumers = (await found.good(f"GET {SUB}/consumers"))["consumers"]
            assert [each["name"] for each in consumers] == ["http-1"], "a stream that was refused joined nothing"
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)

    asyncio.run(main())


def test_an_answer_that_no_client_got_gives_the_messages_back():
    @with_jobs
    async def test(found: Web) -> None:
        answer = await found.answer(f"POST {SUB}/pull")
        assert not isinstance(answer, Stream)
        assert answer.undo is not None
        answer.undo()
        pulled = await found.good(f"POST {SUB}/pull")
        assert [message["attempt"] for message in pulled["messages"]] == [1, 1, 1]

    test()


# -------------------------------------------------------------------------------------------------------------- events


async def opened(found: Web, query: str = "") -> Stream:
    stream = await found.answer(f"GET {SUB}/events{query}")
    assert isinstance(stream, Stream)
    assert await anext(stream.chunks) == b": wherry\n\n"
    return stream


async def closed(found: Web, stream: Stream) -> None:
    """Close a stream as the connection does it."""
    await stream.chunks.aclose()  # type: ignore[attr-defined]
    found.server.requests -= 1
    found.server.waits -= 1


def parsed(chunk: bytes) -> list[tuple[str, Any]]:
    """Return the ids and messages of a chunk."""
    events = [event.split(b"\n") for event in chunk.strip().split(b"\n\n")]
    return [(lines[0].removeprefix(b"id: ").decode(), msgspec.json.decode(lines[1][6:])) for lines in events]


@with_jobs
async def test_events_are_acked_as_they_are_written(found: Web) -> None:
    stream = await opened(found, "?ack=auto")
    events = parsed(await anext(stream.chunks))
    assert [message["payload"] for _, message in events] == ["m0", "m1", "m2"]
    assert (await found.good(f"GET {SUB}"))["stats"]["leased"] == 3
    more = asyncio.ensure_future(anext(stream.chunks))
    await asyncio.sleep(0.05)
    assert (await found.good(f"GET {SUB}"))["stats"]["lag"] == 0
    await found.good("POST /v1/topics/jobs/messages", {"payload": "later"})
    ((receipt, message),) = parsed(await more)
    assert (message["payload"], message["receipt"]) == ("later", receipt)
    await closed(found, stream)
    assert (await found.good(f"GET {SUB}/consumers"))["consumers"] == []


@with_jobs
async def test_events_wait_for_their_acks_where_they_are_given_by_hand(found: Web) -> None:
    stream = await opened(found, "?messages=2&consumer=ann")
    events = parsed(await anext(stream.chunks))
    assert [message["payload"] for _, message in events] == ["m0", "m1"]
    more = asyncio.ensure_future(anext(stream.chunks))
    await asyncio.sleep(0.05)
    assert not more.done(), "no more than two are out at a time"
    await found.good(f"POST {SUB}/ack", {"receipts": [events[0][0]]})
    assert [message["payload"] for _, message in parsed(await more)] == ["m2"]
    await closed(found, stream)
    stats = (await found.good(f"GET {SUB}"))["stats"]
    assert (stats["lag"], stats["leased"]) == (2, 0), "what was not acked waits again"


@pytest.mark.parametrize("query", ["?ack=auto&messages=1", "?ack=manual&messages=1"])
def test_a_subscription_without_acks_is_streamed_to_the_end(query: str) -> None:
    @with_jobs
    async def test(found: Web) -> None:
        await found.good("PUT /v1/topics/jobs/subscriptions/once", {"acks": False, "start": "earliest"})
        stream = await found.answer(f"GET /v1/topics/jobs/subscriptions/once/events{query}")
        assert isinstance(stream, Stream)
        assert await anext(stream.chunks) == b": wherry\n\n"
        came = [parsed(await anext(stream.chunks))[0][1]["payload"] for _ in range(3)]
        assert came == ["m0", "m1", "m2"]
        await closed(found, stream)

    test()


@in_time
async def test_a_quiet_stream_sends_heartbeats(found: Web, clock: LoopClock) -> None:
    stream = await opened(found)
    began = clock.now_ms
    assert await anext(stream.chunks) == b": still here\n\n"
    assert clock.now_ms - began >= HEARTBEAT_MS
    await closed(found, stream)


@with_jobs
async def test_a_stream_whose_subscription_is_deleted_reports_why_it_ends(found: Web) -> None:
    stream = await opened(found)
    await anext(stream.chunks)
    last = asyncio.ensure_future(anext(stream.chunks))
    await asyncio.sleep(0.05)
    await found.good(f"DELETE {SUB}")
    chunk = await last
    assert chunk.startswith(b"event: problem\ndata: ")
    assert msgspec.json.decode(chunk.strip()[21:])["code"] == "cut-off"
    with pytest.raises(StopAsyncIteration):
        await anext(stream.chunks)
    await closed(found, stream)


@with_jobs
async def test_two_streams_cannot_have_one_name(found: Web) -> None:
    stream = await opened(found, "?consumer=ann")
    assert (await found.ask(f"GET {SUB}/events?consumer=ann")).json()["code"] == "already-exists"
    assert (await found.ask(f"POST {SUB}/pull?consumer=ann")).json()["code"] == "already-exists"
    await closed(found, stream)


# ----------------------------------------------------------------------------------------------------------- consumers


async def names(found: Web, subscription: str = SUB) -> list[str]:
    return [each["name"] for each in (await found.good(f"GET {subscription}/consumers"))["consumers"]]


@pytest.mark.rows("D20")
@with_jobs
async def test_consumers_with_names_share_the_partitions(found: Web) -> None:
    await found.good("POST /v1/topics/jobs/messages?partition=1", [{"payload": f"n{number}"} for number in range(3)])
    await found.receipts(1, consumer="ann")
    await found.receipts(1, consumer="bob")
    views = (await found.good(f"GET {SUB}/consumers"))["consumers"]
    assert {each["name"]: each["partitions"] for each in views} in ({"ann": [0], "bob": [1]}, {"ann": [1], "bob": [0]})
    assert {each["name"]: each["out_messages"] for each in views} == {"ann": 1, "bob": 1}


@with_jobs
async def test_a_client_that_comes_back_without_a_name_is_the_same_consumer(found: Web) -> None:
    first, second = await found.receipts(1), await found.receipts(1)
    assert first != second
    assert await names(found) == ["http-1"]


@with_jobs
async def test_a_consumer_that_leaves_gives_back_what_it_held(found: Web) -> None:
    held = await found.receipts(consumer="ann")
    await found.good(f"DELETE {SUB}/consumers/ann")
    assert await names(found) == []
    assert (await found.ask(f"POST {SUB}/ack", {"receipts": held})).json()["code"] == "stale-lease"
    assert len(await found.receipts(consumer="bob")) == 3
    assert (await found.ask(f"DELETE {SUB}/consumers/ann")).status == 404


@with_jobs
async def test_one_name_in_two_subscriptions_is_two_consumers(found: Web) -> None:
    other = "/v1/topics/jobs/subscriptions/others"
    await found.good(f"PUT {other}", {})
    await found.receipts(consumer="ann")
    assert len((await found.good(f"POST {other}/pull?consumer=ann"))["messages"]) == 3
    await found.good(f"DELETE {SUB}/consumers/ann")
    assert (await names(found), await names(found, other)) == ([], ["ann"])


@with_jobs
async def test_a_subscription_that_is_made_again_is_another_one(found: Web) -> None:
    held = await found.receipts(consumer="ann")
    await found.good(f"DELETE {SUB}")
    assert (await found.ask(f"POST {SUB}/pull?consumer=ann")).status == 404
    await found.good(f"PUT {SUB}", {})
    assert await names(found) == []
    assert (await found.ask(f"POST {SUB}/ack", {"receipts": held})).json()["code"] == "stale-lease"
    await found.good("POST /v1/topics/jobs/messages", {"payload": "new"})
    assert await found.receipts(consumer="ann")
    assert await names(found) == ["ann"]


@with_jobs
async def test_silent_consumers_are_removed_unless_they_hold_something(found: Web) -> None:
    now = 1_000.0
    consumers = found.service.consumers
    consumers.clock = lambda: now
    held = await found.receipts(1, consumer="holds")
    await found.receipts(1, consumer="silent")
    await found.good(f"POST {SUB}/ack", {"receipts": await found.receipts(consumer="silent")})
    views = (await found.good(f"GET {SUB}/consumers"))["consumers"]
    for view in views:
        if view["name"] == "silent" and view["out_messages"]:
            await found.good(f"POST {SUB}/release", {"receipts": held})
    now += CONSUMER_IDLE_S
    await consumers.close_idle()
    assert len(await names(found)) == 2, "at the edge they are still there"
    await found.receipts(1, consumer="silent")
    now += 1
    await consumers.close_idle()
    assert "silent" in await names(found), "the consumer was active"
    now += CONSUMER_IDLE_S
    await consumers.close_idle()
    left = (await found.good(f"GET {SUB}/consumers"))["consumers"]
    assert all(view["out_messages"] for view in left)


def test_a_million_waits_later_no_waiter_is_left():
    async def main() -> None:
        clock = VirtualClock()
        async with web(clock) as found:
            await found.jobs()
            for number in range(50):
                await found.receipts(1, consumer=f"c{number}")
            await found.service.consumers.close()
            assert await names(found) == []

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------------------ settling


@with_jobs
async def test_a_settling_call_does_all_or_nothing(found: Web) -> None:
    held = await found.receipts()
    reply = await found.ask(f"POST {SUB}/ack", {"receipts": [held[0], "77:1"]})
    assert reply.json()["code"] == "stale-lease"
    assert (await found.good(f"GET {SUB}"))["stats"]["leased"] == 3
    lease = held[0].partition(":")[0]
    await found.good(f"POST {SUB}/ack", {"receipts": [f"{lease}:0-1"]})
    await found.good(f"POST {SUB}/nack", {"receipts": [held[2]], "delay_ms": 0, "error": "broken"})
    (message,) = (await found.good(f"POST {SUB}/pull"))["messages"]
    assert (message["id"], message["attempt"]) == ("m2", 2)


@with_jobs
async def test_a_rejected_message_is_a_dead_letter_with_its_story(found: Web) -> None:
    held = await found.receipts(1)
    await found.good(f"POST {SUB}/dead-letter", {"receipts": held, "reason": "odd", "error": "no such thing"})
    (dead,) = (await found.good("GET /v1/topics/jobs/dead?reason=odd"))["messages"]
    assert (dead["id"], dead["reason"], dead["error"], dead["subscription"]) == (
        "m0",
        "odd",
        "no such thing",
        "workers",
    )
    assert (await found.good("POST /v1/topics/jobs/dead/redrive", {"by": "ann"})) == {"count": 1}
    (action,) = (await found.good("GET /v1/topics/jobs/dead/audit"))["records"]
    assert (action["by"], action["messages"]) == ("ann", 1)


def test_a_lease_that_is_extended_holds_longer():
    async def main() -> None:
        clock = VirtualClock()
        async with web(clock) as found:
            await found.jobs()
            held = await found.receipts()
            clock.advance(50_000)
            await found.good(f"POST {SUB}/renew", {"receipts": held[:1], "lease_ms": 100_000})
            clock.advance(50_000)
            await found.good(f"POST {SUB}/ack", {"receipts": held})
            held = await found.receipts()
            assert held == []

    asyncio.run(main())


@with_jobs
async def test_a_changed_subscription_leases_by_its_new_terms(found: Web) -> None:
    view = await found.good(f"PATCH {SUB}", {"lease_ms": 5_000, "retry": {"attempts": 1}, "buffer_messages": 100})
    assert (view["config"]["lease_ms"], view["config"]["retry"]["attempts"]) == (5_000, 1)
    assert view["config"]["retry"]["cap_ms"] == 600_000
    await found.good(f"POST {SUB}/nack", {"receipts": await found.receipts(1)})
    assert len((await found.good("GET /v1/topics/jobs/dead"))["messages"]) == 1


@with_jobs
async def test_a_redrive_with_a_rate_ends_with_the_broker_and_reports_the_end(jobs):
    await jobs.good("POST /v1/topics/jobs/subscriptions/workers/dead-letter", {"receipts": await jobs.receipts()})
    asking = asyncio.create_task(jobs.ask("POST /v1/topics/jobs/dead/redrive", {"rate": 1}))
    async with asyncio.timeout(5):
        while jobs.broker.stats("jobs").dead != 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await jobs.server.close()
        reply = await asking
    assert (reply.status, reply.json()["code"]) == (503, "closed")
    assert jobs.broker.stats("jobs").dead == 2
