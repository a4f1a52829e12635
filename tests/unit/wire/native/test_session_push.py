"""Sessions of the native wire in memory: push by credit, settles, renewals, the ends of streams."""

from __future__ import annotations

from typing import Any

import pytest

from tests.native_client import NativeError
from tests.unit.wire.native.memory_session import NativeWorld, in_memory
from wherry.wire.native.codec import documents, settles
from wherry.wire.native.codec.frames import Kind, encode_frame
from wherry.wire.native.codec.rows import RowFields
from wherry.wire.native.codec.settles import Verb

# ------------------------------------------------------------------------------------------------------ push and settle


@pytest.mark.rows("D26")
@in_memory()
async def test_messages_are_pushed_by_credit_and_no_more(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers")
    await client.publish("jobs", *(b"%d" % each for each in range(10)))
    await world.settle_down()
    assert stream not in client.rows, "no credit, no message"
    client.credit(stream, 3)
    assert [row.payload for row in await client.next_rows(stream, 3)] == [b"0", b"1", b"2"]
    await world.settle_down()
    assert not client.rows[stream]
    client.credit(stream, 1)
    client.credit(stream, 1)
    assert [row.payload for row in await client.next_rows(stream, 2)] == [b"3", b"4"]
    await world.settle_down()
    assert not client.rows[stream]


@in_memory()
async def test_the_terms_of_a_stream(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", consumer="ann", credit=1)
    assert client.subscribed[stream] == documents.StreamTerms(consumer="ann", lease_ms=10_000, acks=True)
    await client.publish("jobs", b"x")
    (row,) = await client.next_rows(stream)
    assert (row.partition, row.offset, row.attempt, row.payload) == (0, 0, 1, b"x")
    assert row.published_us == world.clock.wall_us()


@pytest.mark.rows("D26")
@in_memory()
async def test_a_message_is_pushed_as_soon_as_it_is_published(world: NativeWorld):
    consumer, producer = await world.client(), await world.client()
    stream = await consumer.subscribe("jobs", "workers", credit=100)
    for each in range(5):
        await producer.publish("jobs", b"%d" % each)
        (row,) = await consumer.next_rows(stream)
        await consumer.settle(stream, Verb.ACK, row)
    assert world.broker.subscription_stats("jobs", "workers").lag == 0


@in_memory()
async def test_acks_of_one_turn_are_one_answer(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=100)
    await client.publish("jobs", *(b"%d" % each for each in range(6)))
    rows = await client.next_rows(stream, 6)
    data = b"".join(
        settles.encode_settle(client.number(), stream, Verb.ACK, [(row.token, [(row.offset, 1)])]) for row in rows[:4]
    )
    before = client.writes
    client.write(data)
    for number in range(2, 6):
        await client.answer(number)
    assert client.writes == before + 1
    settled = [settles.decode_settled(body) for kind, _, _, body in client.frames if kind == Kind.SETTLED]
    assert settled == [[(2, 4)]]
    assert world.broker.subscription_stats("jobs", "workers").lag == 2


@in_memory()
async def test_acks_that_are_refused_together_are_answered_alone(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=100)
    await client.publish("jobs", b"a", b"b")
    first, second = await client.next_rows(stream, 2)
    numbers = [client.number() for _ in range(3)]
    parts = [(first.token, [(first.offset, 1)]), (first.token, [(99, 1)]), (second.token, [(second.offset, 1)])]
    frames = [settles.encode_settle(each, stream, Verb.ACK, [part]) for each, part in zip(numbers, parts, strict=True)]
    client.write(b"".join(frames))
    await client.answer(numbers[0])
    with pytest.raises(NativeError, match="99"):
        await client.answer(numbers[1])
    await client.answer(numbers[2])
    assert world.broker.subscription_stats("jobs", "workers").lag == 0


@in_memory()
async def test_nack_dead_letter_and_release(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=100)
    await client.publish("jobs", b"nack", b"bury", b"back")
    rows = {row.payload: row for row in await client.next_rows(stream, 3)}
    await client.settle(stream, Verb.NACK, rows[b"nack"], delay_ms=0, error="no")
    (again,) = await client.next_rows(stream)
    assert (again.payload, again.attempt) == (b"nack", 2)
    await client.settle(stream, Verb.DEAD_LETTER, rows[b"bury"], reason="bad", error="why")
    assert world.broker.subscription_stats("jobs", "workers").dead == 1
    await client.settle(stream, Verb.RELEASE, rows[b"back"])
    (back,) = await client.next_rows(stream)
    assert (back.payload, back.attempt) == (b"back", 1)


@in_memory()
async def test_a_whole_lease_by_its_token_and_ranges_in_parts(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=100)
    await client.publish("jobs", *(b"%d" % each for each in range(10)))
    rows = await client.next_rows(stream, 10)
    token = rows[0].token
    await client.answer(client.begin_settle(stream, Verb.ACK, [(token, [(0, 2), (5, 1)])]))
    assert world.broker.subscription_stats("jobs", "workers").lag == 7
    await client.answer(client.begin_settle(stream, Verb.ACK, [(token, [])]))
    assert world.broker.subscription_stats("jobs", "workers").lag == 0
    with pytest.raises(NativeError) as fault:
        await client.answer(client.begin_settle(stream, Verb.ACK, [(token, [])]))
    assert fault.value.code == "stale-lease"


@in_memory()
async def test_renew_keeps_a_lease(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=100)
    await client.publish("jobs", b"x")
    (row,) = await client.next_rows(stream)
    world.clock.advance(9_000)
    await client.renew(stream, row.token)
    world.clock.advance(9_000)
    await client.renew(stream, row.token, lease_ms=50_000)
    world.clock.advance(40_000)
    await client.settle(stream, Verb.ACK, row)
    with pytest.raises(NativeError) as fault:
        await client.renew(stream, row.token)
    assert fault.value.code == "stale-lease"


@in_memory()
async def test_ranges_may_overlap_and_come_in_any_order(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=10)
    await client.publish("jobs", *[b"x"] * 10)
    rows = await client.next_rows(stream, 10)
    ranges = [(7, 2), (1, 2), (2, 2), (7, 1), (1, 3)]
    await client.answer(client.begin_settle(stream, Verb.ACK, [(rows[0].token, ranges)]))
    left = [(0, 1), (4, 3), (9, 1)]
    with pytest.raises(NativeError) as fault:
        await client.answer(client.begin_settle(stream, Verb.ACK, [(rows[0].token, [*left, (8, 1)])]))
    assert fault.value.code == "stale-lease"
    await client.answer(client.begin_settle(stream, Verb.ACK, [(rows[0].token, left)]))
    assert world.broker.subscription_stats("jobs", "workers").lag == 0


@in_memory()
async def test_a_stream_settles_only_leases_of_its_own_subscription(world: NativeWorld):
    await world.broker.subscribe("jobs", "others")
    client = await world.client()
    mine = await client.subscribe("jobs", "workers", credit=1)
    other = await client.subscribe("jobs", "others", credit=1)
    await client.publish("jobs", b"x")
    (row,) = await client.next_rows(mine)
    with pytest.raises(NativeError) as fault:
        await client.settle(other, Verb.ACK, row)
    assert fault.value.code == "stale-lease"


@in_memory()
async def test_many_messages_come_as_arrow_if_the_client_reads_it(world: NativeWorld):
    await world.broker.subscribe("jobs", "plain")
    client = await world.client(features=("arrow",))
    stream = await client.subscribe("jobs", "workers", credit=1_000)
    await client.publish("jobs", *(b"%d" % each for each in range(200)), fields=[RowFields(key="k")] * 200)
    await client.until(lambda: stream in client.tables)
    (batch,) = client.tables[stream]
    assert batch.column("payload").to_pylist() == [b"%d" % each for each in range(200)]
    assert set(batch.column("key").to_pylist()) == {"k"}
    token = batch.column("lease")[0].as_py()
    await client.answer(client.begin_settle(stream, Verb.ACK, [(token, [(0, 200)])]))
    assert world.broker.subscription_stats("jobs", "workers").lag == 0
    plain = await world.client()
    other = await plain.subscribe("jobs", "plain", credit=1_000)
    assert len(await plain.next_rows(other, 200)) == 200


@in_memory()
async def test_create_makes_the_subscription_and_refusals_name_the_field(world: NativeWorld):
    client = await world.client()
    await client.subscribe("jobs", "new", create={"lease_ms": 7_000})
    assert world.broker.subscription("jobs", "new").lease_ms == 7_000
    refused: list[tuple[dict[str, Any], str, str | None]] = [
        ({"create": {"lease_ms": 0}}, "invalid-input", "lease_ms"),
        ({"create": {"colour": 1}}, "invalid-input", "colour"),
        ({}, "not-found", None),
        ({"credit": -1}, "invalid-input", "credit"),
    ]
    for terms, code, field in refused:
        with pytest.raises(NativeError) as fault:
            await client.subscribe("jobs", "newer", **terms)
        assert (fault.value.code, fault.value.field) == (code, field)
    with pytest.raises(NativeError) as fault:
        await client.subscribe("jobs", "workers", buffer_messages=0)
    assert fault.value.field == "buffer_messages"


@in_memory()
async def test_cancel_gives_back_what_is_held_without_an_attempt(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=100)
    await client.publish("jobs", b"x")
    (row,) = await client.next_rows(stream)
    client.cancel(stream)
    await client.until(lambda: stream in client.ended)
    assert client.ended[stream] is None
    with pytest.raises(NativeError) as fault:
        await client.settle(stream, Verb.ACK, row)
    assert fault.value.code == "not-found"
    again = await client.subscribe("jobs", "workers", credit=1)
    assert [(each.payload, each.attempt) for each in await client.next_rows(again)] == [(b"x", 1)]
    client.cancel(77)
    client.cancel(again)
    client.cancel(again)
    await client.until(lambda: again in client.ended)
    await world.settle_down()
    cancels = [number for kind, _, number, _ in client.frames if kind == Kind.CANCEL]
    assert cancels == [stream, again], "one answer for each stream that ends"


@pytest.mark.parametrize("how", ["cancel", "goodbye", "fault"])
def test_settles_before_the_end_of_a_stream_count(how):
    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        stream = await client.subscribe("jobs", "workers", credit=100)
        await client.publish("jobs", b"x")
        (row,) = await client.next_rows(stream)
        ack = settles.encode_settle(client.number(), stream, Verb.ACK, [(row.token, [(row.offset, 1)])])
        cancel, goodbye = documents.encode_cancel(stream, stream=True), documents.encode_goodbye("done")
        again = documents.encode_subscribe(stream, documents.SubscribeTerms(topic="jobs", subscription="workers"))
        client.write(ack + {"cancel": cancel, "goodbye": goodbye, "fault": again}[how])
        await client.until(lambda: client.is_closed or stream in client.ended)
        await world.sessions.finished()
        assert world.broker.subscription_stats("jobs", "workers").lag == 0

    run()


@in_memory()
async def test_a_lost_connection_counts_an_attempt_and_a_goodbye_does_not(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=100)
    await client.publish("jobs", b"x")
    await client.next_rows(stream)
    await client.leave()
    assert client.goodbye == "goodbye"
    second = await world.client()
    stream = await second.subscribe("jobs", "workers", credit=100)
    (row,) = await second.next_rows(stream)
    assert row.attempt == 1
    second.abort()
    await world.sessions.finished()
    world.clock.advance(60_000)
    third = await world.client()
    stream = await third.subscribe("jobs", "workers", credit=100)
    (row,) = await third.next_rows(stream)
    assert row.attempt == 2


@in_memory()
async def test_a_stream_ends_with_its_subscription(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=100)
    await world.broker.unsubscribe("jobs", "workers")
    await client.until(lambda: stream in client.ended)
    fault = client.ended[stream]
    assert fault is not None
    assert fault.code == "cut-off"
    assert not client.is_closed


@in_memory()
async def test_bad_credit_ends_its_stream_alone(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=1)
    client.send(encode_frame(Kind.CREDIT, stream, bytes(4)))
    await client.until(lambda: stream in client.ended)
    fault = client.ended[stream]
    assert fault is not None
    assert fault.field == "messages"
    assert world.broker.consumers("jobs", "workers") == []
    client.credit(stream, 5)
    assert (await client.publish("jobs", b"x")).offset == 0
