"""Sessions of the native wire in memory: greeting, publish and confirm, errors that name the field."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.native_client import NativeError
from tests.unit.wire.native.memory_session import NativeWorld, in_memory
from wherry.wire.native.codec import documents, publishes
from wherry.wire.native.codec.frames import Flag, Kind, encode_frame
from wherry.wire.native.codec.publishes import Confirmed, PublishTerms
from wherry.wire.native.codec.rows import RowFields
from wherry.wire.native.codec.settles import Verb

LONG_KEY = RowFields(key="k" * 2_000)
ALL_FIELDS = RowFields("k", [("a", "1")], 7, None, 1_900_000_000_000, "m-1", b"e")


def confirms(client):
    """Return the CONFIRM frames that came, each as its entries."""
    return [publishes.decode_confirm(body) for kind, _, _, body in client.frames if kind == Kind.CONFIRM]


# ------------------------------------------------------------------------------------------------------------- greeting


@in_memory()
async def test_hello_agrees_on_version_heartbeat_and_bounds(world: NativeWorld):
    client = world.connect()
    client.greet(heartbeat_ms=5_000, versions=(1, 9))
    await client.until(lambda: client.hello)
    hello = client.hello
    assert hello is not None
    assert (hello.version, hello.heartbeat_ms, hello.frame_bytes_max) == (1, 5_000, 32 << 20)
    assert hello.limits == {"rows": 1_024, "streams": 256, "calls": 1_024}
    assert "arrow" in hello.features


@pytest.mark.parametrize(("wished", "agreed"), [(0, 30_000), (1, 1_000), (10**9, 600_000)])
def test_the_heartbeat_is_brought_into_its_range(wished, agreed):
    @in_memory()
    async def run(world: NativeWorld):
        client = world.connect()
        client.greet(heartbeat_ms=wished)
        await client.until(lambda: client.hello)
        assert client.hello is not None
        assert client.hello.heartbeat_ms == agreed

    run()


@in_memory()
async def test_requests_may_follow_hello_at_once_and_byte_by_byte(world: NativeWorld):
    client = world.connect()
    client.step = 1
    client.greet()
    entry = await client.publish("jobs", b"hi")
    assert (entry.partition, entry.offset) == (0, 0)


@pytest.mark.parametrize(
    ("data", "code", "field"),
    [
        (encode_frame(Kind.PING, 1), "cut-off", None),
        (documents.encode_hello(documents.ClientHello(versions=(2,))), "invalid-input", "versions"),
        (encode_frame(Kind.HELLO, 0, b"{"), "invalid-input", "body"),
        (encode_frame(0x77, 0), "invalid-input", "kind"),
        (documents.encode_hello(documents.ClientHello()) * 2, "invalid-input", "kind"),
    ],
)
def test_a_bad_greeting_ends_the_connection_with_the_reason(data, code, field):
    @in_memory()
    async def run(world: NativeWorld):
        client = world.connect()
        client.write(data)
        await world.settle_down()
        assert client.is_closed
        assert client.fault is not None
        assert (client.fault.code, client.fault.field) == (code, field)
        assert sum(world.sessions.cut_off_counts.values()) == 1

    run()


# -------------------------------------------------------------------------------------------------- publish and confirm


@in_memory()
async def test_publishes_of_one_turn_are_confirmed_by_one_range_in_one_write(world: NativeWorld):
    client = await world.client()
    before = client.writes
    numbers = [client.begin_publish("jobs", b"%d" % each) for each in range(50)]
    entries = [await client.answer(number) for number in numbers]
    assert [entry.offset for entry in entries] == list(range(50))
    assert confirms(client) == [[(1, 50, 0, 0, Confirmed.DURABLE, 0, ())]]
    assert client.writes == before + 1


@in_memory()
async def test_batches_and_single_messages_share_a_range(world: NativeWorld):
    client = await world.client()
    client.begin_publish("jobs", b"a", b"b")
    last = client.begin_publish("jobs", b"c")
    assert (await client.answer(last)).offset == 2
    assert confirms(client) == [[(1, 2, 0, 0, Confirmed.DURABLE, 0, ())]]


@in_memory()
async def test_messages_keep_all_fields(world: NativeWorld):
    await world.broker.create_topic("wide", order="priority")
    client = await world.client()
    await client.publish("wide", b"x", fields=[ALL_FIELDS])
    stream = await client.subscribe("wide", "all", create={}, credit=10)
    await client.publish("wide", b"y", b"z", fields=[RowFields(key="k2"), RowFields(priority=1)])
    rows = await client.next_rows(stream, 3)
    found = {row.payload: row.fields for row in rows}
    assert found[b"x"] == ALL_FIELDS
    assert found[b"y"].key == "k2"
    assert [row.payload for row in rows][-2:] == [b"z", b"y"], "by priority, within a delivery"


@in_memory()
async def test_options_of_a_publish(world: NativeWorld):
    await world.broker.create_topic("wide", partitions=4)
    client = await world.client()
    terms = PublishTerms(partition=3, producer="p", sequence=1, fingerprint=5)
    first = await client.publish("wide", b"a", b"b", terms=terms)
    assert (first.partition, first.offset, first.flags) == (3, 0, Confirmed.DURABLE)
    again = await client.publish("wide", b"a", b"b", terms=terms)
    assert (again.partition, again.offset) == (3, 0)
    assert again.flags & Confirmed.REPEATED
    passing = await client.publish("wide", b"c", terms=PublishTerms(persistent=False, partition=1))
    assert not passing.flags & Confirmed.DURABLE


@in_memory()
async def test_messages_over_several_partitions_are_placed(world: NativeWorld):
    await world.broker.create_topic("wide", partitions=4)
    client = await world.client()
    payloads, fields = [b"%d" % each for each in range(20)], [RowFields(key=f"k{each}") for each in range(20)]
    entry = await client.publish("wide", *payloads, fields=fields)
    assert entry.flags & Confirmed.PLACED
    assert sum(messages for _, _, messages in entry.places) == 20
    assert entry.places[0][:2] == (entry.partition, entry.offset)
    places = [(part, start + step) for part, start, messages in entry.places for step in range(messages)]
    for payload, (partition, offset) in zip(payloads, places, strict=True):
        stored = await world.broker.get("wide", f"{partition}-{offset}")
        assert stored.column("payload").to_pylist() == [payload]


@pytest.mark.parametrize("rows", [10, 20_000])
def test_arrow_is_published_in_order_with_rows_before_and_behind(rows):
    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        batch = pa.record_batch({"payload": pa.array([b"arrow %d" % each for each in range(rows)])})
        numbers = [
            client.begin_publish("jobs", b"before"),
            client.begin_arrow("jobs", batch),
            client.begin_publish("jobs", b"behind"),
            client.begin_arrow("jobs", batch),
            client.begin_publish("jobs", b"last"),
        ]
        entries = [await client.answer(number) for number in numbers]
        assert [entry.offset for entry in entries] == [0, 1, rows + 1, rows + 2, 2 * rows + 2]
        assert client.session.unstored_bytes == world.sessions.intake.unstored_bytes == 0

    run()


@in_memory()
async def test_a_large_stream_holds_up_no_other_topic(world: NativeWorld):
    await world.broker.create_topic("other")
    client = await world.client()
    batch = pa.record_batch({"payload": pa.array([bytes(100)] * 20_000)})
    large = client.begin_arrow("jobs", batch)
    small = client.begin_publish("other", b"x")
    await client.answer(small)
    assert large not in client.answers
    assert (await client.answer(large)).offset == 0


@in_memory()
async def test_quiet_publishes_get_errors_only(world: NativeWorld):
    client = await world.client()
    client.begin_publish("jobs", b"x", quiet=True)
    bad = client.begin_publish("none", b"x", quiet=True)
    with pytest.raises(NativeError) as fault:
        await client.answer(bad)
    assert fault.value.code == "not-found"
    await client.publish("jobs", b"y")
    assert confirms(client) == [[(3, 1, 0, 1, Confirmed.DURABLE, 0, ())]]


@pytest.mark.parametrize(
    ("send", "code", "field"),
    [
        (lambda c: c.begin_publish("none", b"x"), "not-found", None),
        (lambda c: c.begin_publish("jobs", b"x" * 70_000), "invalid-input", "messages[0].payload"),
        (lambda c: c.begin_publish("jobs", b"x", fields=[LONG_KEY]), "invalid-input", "messages[0].key"),
        (lambda c: c.begin_publish("jobs", b"x", fields=[RowFields(due_ms=-5)]), "invalid-input", "messages[0].due"),
        (lambda c: c.begin_publish("jobs", b"x", terms=PublishTerms(partition=7)), "invalid-input", "partition"),
        (lambda c: c.begin_publish("jobs", b"x", terms=PublishTerms(sequence=7)), "invalid-input", "sequence"),
        (lambda c: c.begin_publish("jobs", b"x", terms=PublishTerms(callback="x")), "invalid-input", "callback"),
        (lambda c: c.begin_arrow("jobs", pa.record_batch({"payloads": ["x"]})), "invalid-input", "column"),
        (
            lambda c: c.begin_arrow("jobs", pa.record_batch({"payload": [b"x"]}), b'{"speed":1}'),
            "invalid-input",
            "speed",
        ),
        (lambda c: _raw(c, Kind.PUBLISH, b"\1"), "invalid-input", "topic"),
        (lambda c: _raw(c, Kind.PUBLISH, b"\4\0jobs\0\0not arrow", Flag.ARROW), "invalid-input", "body"),
        (lambda c: _raw(c, Kind.SETTLE, b"\1"), "invalid-input", "parts"),
        (lambda c: c.begin_settle(9, Verb.ACK, [(1, [])]), "not-found", None),
        (lambda c: _raw(c, Kind.RENEW, bytes(16)), "not-found", None),
        (lambda c: _raw(c, Kind.CALL, b"{}"), "invalid-input", "head"),
        (lambda c: c.begin_call("get", "/v1/topics"), "invalid-input", "method"),
        (lambda c: c.begin_call("GET", "v1/topics"), "invalid-input", "path"),
        (lambda c: c.begin_call("GET", "/v1/topics", headers={"Accept": "x"}), "invalid-input", "headers"),
        (lambda c: c.begin_call("GET", "/v1/topics", headers={"authorization": "x"}), "invalid-input", "headers"),
        (lambda c: c.begin_call("GET", "/v1/topics", headers={"accept": "x\r\ny"}), "invalid-input", "headers.accept"),
    ],
)
def test_a_request_that_is_refused_names_the_field_and_nothing_else_suffers(send, code, field):
    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        number = send(client)
        with pytest.raises(NativeError) as fault:
            await client.answer(number)
        assert (fault.value.code, fault.value.field) == (code, field)
        assert (await client.publish("jobs", b"after")).offset == 0
        assert client.session.unstored_bytes == world.sessions.intake.unstored_bytes == 0

    run()


def _raw(client, kind, body, flags=0):
    number = client.number()
    client.send(encode_frame(kind, number, body, flags))
    return number
