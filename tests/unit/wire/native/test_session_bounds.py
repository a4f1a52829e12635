"""Bounds of a session of the native wire: each has its answer, and the client that meets it is the one that waits."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from tests.native_client import NativeError
from tests.unit.wire.native.memory_session import NativeWorld, in_memory
from wherry import Message, PublishOptions
from wherry.wire.native import intake, settling, streams
from wherry.wire.native.codec.frames import HEADER, Kind
from wherry.wire.native.codec.rows import ROWS_MAX
from wherry.wire.native.codec.settles import Verb, encode_settle
from wherry.wire.native.sessions import Bounds
from wherry.wire.partial_body import FIRST_BYTES


@in_memory()
async def test_a_client_that_publishes_faster_than_the_disk_is_not_read(world: NativeWorld):
    client = await world.client()
    client.most_unstored = 1_000
    assert not client.session.is_full
    number = client.begin_publish("jobs", bytes(2_000))
    assert client.session.is_full
    looks = client.looks
    await client.answer(number)
    assert not client.session.is_full
    assert client.looks > looks, "it is read again"


@in_memory()
async def test_one_publish_is_taken_however_small_the_bound(world: NativeWorld):
    client = await world.client()
    client.most_unstored = 0
    for each in range(3):
        assert not client.session.is_full
        assert (await client.publish("jobs", b"x")).offset == each


def test_all_clients_wait_when_together_they_have_published_too_much(monkeypatch):
    monkeypatch.setattr(intake, "UNSTORED_BYTES_MAX", 1_000)

    @in_memory()
    async def run(world: NativeWorld):
        one, other = await world.client(), await world.client()
        number = one.begin_publish("jobs", bytes(2_000))
        assert one.session.is_full
        assert other.session.is_full
        looks = other.looks
        await one.answer(number)
        assert other.looks > looks
        assert not other.session.is_full

    run()


def test_a_client_whose_settles_pile_up_is_not_read(monkeypatch):
    monkeypatch.setattr("wherry.wire.native.session.SETTLES_MAX", 3)

    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        stream = await client.subscribe("jobs", "workers", credit=100)
        await client.publish("jobs", *(b"%d" % each for each in range(10)))
        rows = await client.next_rows(stream, 10)
        numbers = [client.begin_settle(stream, Verb.ACK, [(row.token, [(row.offset, 1)])]) for row in rows]
        assert client.session.is_full
        for number in numbers:
            await client.answer(number)
        assert not client.session.is_full

    assert settling.SETTLES_MAX == 10_000
    run()


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("named", ["no lease", "a lease", "a lease of many"])
def test_settles_take_memory_by_what_leases_hold_and_not_by_what_clients_name(named):
    """Send frames of 32 bytes that name a million messages each."""

    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        stream = await client.subscribe("jobs", "workers")
        token, most = 77, 1_000_000
        if named != "no lease":
            await world.broker.publish("jobs", [b"x"] * 20_000)
            other = await world.broker.consumer("jobs", "workers", "other")
            pulled = await other.pull(1 if named == "a lease" else 20_000)
            token, most = pulled.tokens[0], most if named == "a lease" else len(pulled)
        frames = [encode_settle(1_000 + each, stream, Verb.ACK, [(token, [(0, most)])]) for each in range(300)]
        tracemalloc.start()
        try:
            client.write(b"".join(frames))
            await client.until(lambda: all(1_000 + each in client.answers for each in range(300)))
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
        codes = [getattr(client.answers[1_000 + each], "code", "settled") for each in range(300)]
        assert set(codes[1:]) == {"stale-lease"}

    run()


@pytest.mark.rows("Q2")
@in_memory()
async def test_a_client_that_does_not_read_gets_no_more_messages_and_is_not_read(world: NativeWorld):
    client = await world.client()
    stream = await client.subscribe("jobs", "workers", credit=1_000)
    client.is_write_paused, client.waiting = True, 2 << 20
    await world.broker.publish("jobs", [b"%d" % each for each in range(5)])
    await world.settle_down()
    held = len(client.rows.get(stream, ()))
    await world.broker.publish("jobs", [b"more"] * 5)
    await world.settle_down()
    assert len(client.rows.get(stream, ())) == held, "at most the pull that had begun is written"
    assert client.session.is_full
    client.read_all()
    assert len(await client.next_rows(stream, 10)) == 10


@pytest.mark.rows("Q2")
def test_a_client_that_does_not_read_gets_one_push_however_many_partitions_have_messages(monkeypatch):
    monkeypatch.setattr(streams, "PUSH_ROWS", 1)

    @in_memory()
    async def run(world: NativeWorld):
        await world.broker.create_topic("wide", partitions=16)
        await world.broker.subscribe("wide", "workers")
        client = await world.client()
        stream = await client.subscribe("wide", "workers", credit=1_000)
        await world.settle_down()
        take = client.take

        def full(data: bytes) -> None:
            take(data)
            client.is_write_paused = True

        monkeypatch.setattr(client, "take", full)
        messages = [Message(payload=b"x", key=str(each)) for each in range(64)]
        await world.broker.publish("wide", messages, PublishOptions(persistent=False))
        await world.settle_down()
        assert len(client.rows[stream]) <= 2, "one, and the pull that had begun"

    run()


@pytest.mark.rows("Q3")
@in_memory(bounds=Bounds(write_s=30, heartbeat_ms=600_000))
async def test_a_client_that_reads_nothing_for_too_long_is_cut_off(world: NativeWorld):
    client = await world.client()
    client.is_write_paused, client.waiting = True, 5 << 20
    for _ in range(6):
        world.later(10)
        client.waiting -= 1_000  # the client reads a little
    assert not client.is_closed
    world.later(1)
    world.later(29)
    assert not client.is_closed
    world.later(2)
    await client.until(lambda: client.is_closed)
    assert world.sessions.cut_off_counts["nothing read"] == 1
    assert "bytes" in world.sessions.cut_offs[-1].detail


@in_memory(bounds=Bounds(streams=2))
async def test_a_stream_beyond_the_bound_is_refused(world: NativeWorld):
    client = await world.client()
    await client.subscribe("jobs", "workers")
    await client.subscribe("jobs", "workers")
    with pytest.raises(NativeError) as fault:
        await client.subscribe("jobs", "workers")
    assert fault.value.code == "limit-reached"
    client.cancel(1)
    await client.until(lambda: 1 in client.ended)
    await client.subscribe("jobs", "workers")


def test_a_call_beyond_the_bound_is_refused(monkeypatch):
    monkeypatch.setattr("wherry.wire.native.running_calls.CALLS_MAX", 2)

    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        path = "/v1/topics/jobs/subscriptions/workers/pull?wait_ms=60000"
        for _ in range(2):
            client.begin_call("POST", path)
        with pytest.raises(NativeError) as fault:
            await client.answer(client.begin_call("GET", "/healthz"))
        assert fault.value.code == "limit-reached"
        assert (await client.publish("jobs", b"x")).offset == 0, "publishes go on"

    run()


@pytest.mark.rows("Q4", "Q5")
@pytest.mark.parametrize("terms", [{"buffer_messages": 2}, {"buffer_bytes": 1_000}])
def test_a_consumer_holds_no_more_than_the_buffer_that_it_declared(terms):
    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        await client.publish("jobs", *[bytes(400)] * 10)
        stream = await client.subscribe("jobs", "workers", credit=100, **terms)
        rows = await client.next_rows(stream, 2)
        await world.settle_down()
        assert not client.rows[stream]
        await client.settle(stream, Verb.ACK, *rows)
        await client.next_rows(stream, 2)

    run()


@in_memory()
async def test_too_many_rows_are_refused_and_too_long_a_frame_ends_the_connection(world: NativeWorld):
    client = await world.client()
    assert (await client.publish("jobs", *[b"x"] * ROWS_MAX)).offset == 0
    client.write(HEADER.pack((32 << 20) + 1, Kind.PUBLISH, 0, 0, 7))
    await client.until(lambda: client.is_closed)
    assert client.fault is not None
    assert client.fault.field == "length"


@in_memory(bounds=Bounds(held_bytes=50_000))
async def test_the_client_with_the_most_of_an_incomplete_frame_is_cut_off(world: NativeWorld):
    small, large = await world.client(), await world.client()
    head = HEADER.pack(1 << 20, Kind.PUBLISH, 0, 0, 7)
    large.write(head + bytes(24_000))  # has room for twice as much
    assert not large.is_closed
    small.write(head + bytes(10))
    await large.until(lambda: large.is_closed)
    assert not small.is_closed
    assert world.sessions.partial_bytes == small.session.partial_bytes == FIRST_BYTES


@in_memory(bounds=Bounds(held_bytes=1_000_000))
async def test_clients_with_large_frames_take_smaller_steps_where_memory_is_short(world: NativeWorld):
    clients = [await world.client() for _ in range(10)]
    for client in clients:
        client.write(HEADER.pack(1 << 20, Kind.PUBLISH, 0, 0, 7) + bytes(20_000))
    assert not any(client.is_closed for client in clients), "200,000 bytes came, eight times as much would be too much"
    assert 200_000 <= world.sessions.partial_bytes < 1_000_000


@in_memory(bounds=Bounds(hello_s=10))
async def test_a_client_without_hello_is_cut_off(world: NativeWorld):
    client = world.connect()
    world.later(9)
    assert not client.is_closed
    world.later(2)
    await client.until(lambda: client.is_closed)
    assert world.sessions.cut_off_counts["no hello"] == 1


@in_memory()
async def test_answers_that_the_client_does_not_read_are_bounded(world: NativeWorld):
    client = await world.client()
    await client.publish("jobs", *[bytes(1_000)] * 100)
    server = world.app.server
    room = server.bounds.bodies_bytes
    server.answers_bytes = room - 10
    status, problem = await client.call("POST", "/v1/topics/jobs/subscriptions/workers/pull")
    assert (status, problem) == (503, problem)
    server.answers_bytes = 0
    status, pulled = await client.call("POST", "/v1/topics/jobs/subscriptions/workers/pull")
    assert (status, len(pulled["messages"])) == (200, 100), "what could not be answered waits again"


@pytest.mark.rows("Q2")
def test_answers_that_one_client_does_not_read_leave_room_for_others(monkeypatch):
    monkeypatch.setattr("wherry.wire.native.running_calls.KEPT_BYTES_MAX", 300_000)

    @in_memory()
    async def run(world: NativeWorld):
        client, other = await world.client(), await world.client()
        await client.publish("jobs", *[bytes(1_000)] * 100)
        path = "/v1/topics/jobs/messages?limit=100"
        client.is_write_paused = True
        numbers = [client.begin_call("GET", path) for _ in range(3)]
        await world.settle_down()
        assert not any(number in client.answers for number in numbers), "no call is begun before the client reads"
        client.read_all()
        assert {(await client.answer(number))[0].status for number in numbers} == {200}
        numbers = [client.begin_call("GET", path) for _ in range(3)]
        await asyncio.sleep(0)  # the calls have begun
        client.is_write_paused = True
        assert [(await client.answer(number))[0].status for number in numbers] == [200, 503, 503]
        client.read_all()
        assert (await other.call("GET", path))[0] == 200
        assert (await client.call("GET", path))[0] == 200
        assert world.app.server.answers_bytes == 0

    run()


@in_memory()
async def test_bodies_beyond_the_memory_for_them_are_refused(world: NativeWorld):
    client = await world.client()
    server = world.app.server
    server.bodies_bytes = server.bounds.bodies_bytes - 10
    with pytest.raises(NativeError) as fault:
        await client.answer(client.begin_call("POST", "/v1/topics/jobs/messages", bytes(100_000)))
    assert fault.value.code == "busy"
    server.bodies_bytes = 0
    assert (await client.call("POST", "/v1/topics/jobs/messages", bytes(60_000)))[0] == 201
    assert server.bodies_bytes == 0


def test_a_delivery_has_a_bound_in_bytes(monkeypatch):
    monkeypatch.setattr(streams, "PUSH_BYTES", 1_000)

    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        await client.publish("jobs", *[bytes(400)] * 10)
        stream = await client.subscribe("jobs", "workers", credit=100)
        await client.next_rows(stream, 10)
        sizes = [len(body) for kind, _, _, body in client.frames if kind == Kind.DELIVER]
        assert len(sizes) == 5
        assert max(sizes) < 1_100

    run()
