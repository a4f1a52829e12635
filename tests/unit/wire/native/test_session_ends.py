"""Sessions of the native wire in memory: drains, heartbeats, broken rules, and what is left afterwards."""

from __future__ import annotations

import asyncio
from unittest import mock

import msgspec
import pytest

from tests.native_client import NativeError
from tests.unit.wire.native.memory_session import NativeWorld, in_memory
from wherry.model.errors import StorageError
from wherry.node.native.views import seen
from wherry.wire.native.codec import documents, publishes
from wherry.wire.native.codec.frames import Kind, encode_frame
from wherry.wire.native.codec.settles import Verb

# ----------------------------------------------------------------------------------------------------------------- ends


@in_memory()
async def test_a_drain_is_announced_and_what_crossed_it_is_answered(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=100)
    await client.publish("jobs", b"x")
    (row,) = await client.next_rows(stream)
    client.session.drain("the broker is closing")
    number = client.begin_publish("jobs", b"crossed")
    await client.until(lambda: client.goodbye)
    await client.answer(number)
    await client.settle(stream, Verb.ACK, row)
    world.later(1)
    assert not client.is_closed
    await world.settle_down()
    assert not client.rows[stream], "nothing is delivered any more"
    await client.leave()
    assert client.fault is None
    await world.sessions.finished()
    assert world.broker.subscription_stats("jobs", "workers").lag == 1


@in_memory()
async def test_a_client_that_does_not_answer_a_goodbye_is_closed_and_no_attempt_is_counted(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=100)
    await client.publish("jobs", b"x")
    await client.next_rows(stream)
    client.session.drain("the broker is closing")
    waits = client.begin_call("POST", "/v1/topics/jobs/subscriptions/workers/pull?wait_ms=1")
    await world.settle_down()
    world.later(3)
    world.clock.advance(5)
    world.broker.clock_moved()
    await client.until(lambda: waits in client.answers)
    world.later(1)
    await client.until(lambda: client.is_closed)
    await world.sessions.finished()
    batch = (await (await world.broker.consumer("jobs", "workers")).pull()).batch
    assert batch.column("attempt").to_pylist() == [1]


@in_memory()
async def test_nothing_is_delivered_behind_the_answer_to_a_goodbye(world: NativeWorld):
    client = await world.client()
    await client.subscribe("jobs", "workers", credit=100)
    await world.settle_down()
    sent: list[bytes] = []
    with mock.patch.object(client, "write", sent.append):
        client.begin_publish("jobs", b"x")
    client.write(b"".join([*sent, documents.encode_goodbye("done")]))
    await client.until(lambda: client.is_closed)
    await world.sessions.finished()
    kinds = [kind for kind, *_ in client.frames]
    assert Kind.CONFIRM in kinds
    assert Kind.DELIVER not in kinds


@pytest.mark.parametrize("how", ["cut off", "fault"])
def test_a_session_that_is_over_takes_no_messages_while_the_client_reads_its_last_bytes(how):
    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        stream = await client.subscribe("jobs", "workers", credit=100)
        close, client.close = client.abort, lambda: None  # type: ignore[method-assign]
        if how == "cut off":
            client.session.cut_off("no heartbeat", "nothing for 60 s")
        else:
            terms = documents.SubscribeTerms(topic="jobs", subscription="workers")
            client.write(documents.encode_subscribe(stream, terms))  # the number of this stream is in use
        await world.broker.publish("jobs", [b"x"])
        await world.settle_down()
        consumer = await world.broker.consumer("jobs", "workers")
        taken = await consumer.pull()
        close()
        await world.sessions.finished()
        assert [(each.payload, each.attempt) for each in taken] == [(b"x", 1)]

    run()


@in_memory()
async def test_a_journal_that_failed_refuses_publishes(world: NativeWorld):
    client = await world.client()
    committer = world.broker.shard.committer
    committer.failure = StorageError("the disk is gone")
    with pytest.raises(NativeError) as fault:
        await client.publish("jobs", b"x")
    assert fault.value.code in ("storage", "closed")
    committer.failure = None


@in_memory()
async def test_pings_are_answered_and_silence_is_cut_off(world: NativeWorld):
    client = world.connect()
    client.greet(heartbeat_ms=2_000)
    client.send(encode_frame(Kind.PING, 7))
    await client.until(lambda: client.pongs == [7])
    world.later(1.0)
    await client.until(lambda: client.pings == 1)
    client.send(encode_frame(Kind.PONG, 0))
    world.later(3.9)
    assert not client.is_closed
    world.later(0.2)
    await client.until(lambda: client.is_closed)
    assert world.sessions.cut_off_counts["no heartbeat"] == 1


@in_memory()
async def test_a_header_that_breaks_a_rule_ends_the_connection_after_what_came_before(world: NativeWorld):
    client = await world.client()
    number = client.number()
    client._rows_of[number] = 1
    client.write(publishes.encode_publish(number, "jobs", [b"x"]) + encode_frame(0x99, 1))
    await world.settle_down()
    assert client.is_closed
    assert client.fault is not None
    assert client.fault.field == "kind"
    assert world.broker.stats("jobs").messages == 1


@in_memory()
async def test_the_number_of_a_stream_or_call_is_not_used_twice(world: NativeWorld):
    client = await world.client()
    await client.subscribe("jobs", "workers")
    client.send(documents.encode_subscribe(1, documents.SubscribeTerms(topic="jobs", subscription="workers")))
    await client.until(lambda: client.is_closed)
    assert client.fault is not None
    assert client.fault.field == "id"
    other = await world.client()
    number = other.begin_call("POST", "/v1/topics/jobs/subscriptions/workers/pull?wait_ms=60000")
    other._number = number - 1
    other.begin_call("GET", "/healthz")
    await other.until(lambda: other.is_closed)
    assert other.fault is not None
    assert other.fault.field == "id"


@in_memory()
async def test_nothing_is_left_of_a_closed_session(world: NativeWorld):
    client = await world.client()
    await client.subscribe("jobs", "workers", credit=1)
    await client.publish("jobs", b"x")
    client.begin_call("POST", "/v1/topics/jobs/subscriptions/workers/pull?wait_ms=60000")
    client.send(encode_frame(Kind.CALL, 99, b"x" * 50)[:30])
    client.abort()
    await world.sessions.finished()
    await asyncio.sleep(0)
    assert not world.sessions.open
    assert world.sessions.partial_bytes == world.sessions.intake.unstored_bytes == 0
    assert [each.name for each in world.broker.consumers("jobs", "workers") if each.name.startswith("consumer")] == []
    assert world.app.server.requests == 0


def test_the_view_of_a_session_is_json():
    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        await client.subscribe("jobs", "workers", credit=1)
        await client.publish("jobs", b"x")
        await client.next_rows(1)
        view = msgspec.json.decode(msgspec.json.encode(seen(world.sessions)))
        (session,) = view["sessions"]
        assert (session["peer"], session["client"], session["state"]) == ("10.0.0.1:5", "test", "open")
        (stream,) = session["streams"]
        assert (stream["topic"], stream["held_messages"], stream["delivered"]) == ("jobs", 1, 1)
        client.session.cut_off("protocol", "a test")
        assert msgspec.to_builtins(seen(world.sessions))["cut_offs"][0]["why"] == "protocol"

    run()
