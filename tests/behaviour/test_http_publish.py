"""Publishing and pulling over HTTP, in every content type; repeats of a publish."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pytest

from tests.behaviour.web import Web, with_jobs
from wherry.wire.http.formats import MESSAGE_AVRO_SCHEMA
from wherry.wire.http.protocol.message import (
    ARROW,
    AVRO,
    AVRO_SINGLE,
    JSON,
    NDJSON,
    OCTETS,
)

PULL = "POST /v1/topics/jobs/subscriptions/workers/pull"
PUBLISH = "POST /v1/topics/jobs/messages?partition=1"


def arrow(**columns: Any) -> bytes:
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def avro(*records: dict[str, Any], single: bool = False) -> bytes:
    out = io.BytesIO()
    if not single:
        fastavro.writer(out, fastavro.parse_schema(MESSAGE_AVRO_SCHEMA), records)
        return out.getvalue()
    canonical = fastavro.schema.to_parsing_canonical_form(MESSAGE_AVRO_SCHEMA)
    out.write(b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")))
    fastavro.schemaless_writer(out, fastavro.parse_schema(MESSAGE_AVRO_SCHEMA), records[0])
    return out.getvalue()


ONE = {"payload": "hello", "id": "a", "key": "k", "priority": 7, "headers": {"x": "y"}}
AS_AVRO = {**ONE, "payload": b"hello"}
BODIES = {
    JSON: msgspec.json.encode(ONE),
    NDJSON: msgspec.json.encode(ONE) + b"\n",
    ARROW: arrow(
        payload=pa.array([b"hello"]),
        id=pa.array(["a"]),
        key=pa.array(["k"]),
        priority=pa.array([7], pa.uint16()),
        headers=pa.array([[("x", "y")]], pa.map_(pa.string(), pa.string())),
    ),
    AVRO: avro(AS_AVRO),
    AVRO_SINGLE: avro(AS_AVRO, single=True),
}


async def drained(found: Web) -> None:
    """Ack the three messages that are there."""
    await found.good("POST /v1/topics/jobs/subscriptions/workers/ack", {"receipts": await found.receipts()})


@pytest.mark.rows("Q8", "Q11")
@pytest.mark.rows("D10", "G4")
@pytest.mark.parametrize("kind", [*BODIES, OCTETS])
def test_the_same_message_comes_in_by_every_content_type(kind: str):
    @with_jobs
    async def test(found: Web) -> None:
        await drained(found)
        if kind == OCTETS:
            headers = {"Wherry-Id": "a", "Wherry-Key": "k", "Wherry-Priority": "7", "Wherry-Header-X": "y"}
            named = {name.lower().replace("-", "_"): value for name, value in headers.items()}
            await found.good(PUBLISH, b"hello", content_type=kind, **named)
        else:
            await found.good(PUBLISH, BODIES[kind], content_type=kind)
        (message,) = (await found.good(PULL))["messages"]
        assert {name: message[name] for name in ONE} == ONE
        assert (message["partition"], message["offset"], message["attempt"]) == (1, 0, 1)

    test()


@with_jobs
async def test_any_other_type_is_a_payload_that_keeps_its_type(found: Web) -> None:
    await drained(found)
    await found.good(PUBLISH, b"<a/>", content_type="text/xml; charset=utf-8")
    (message,) = (await found.good(PULL))["messages"]
    assert (message["payload"], message["headers"]) == ("<a/>", {"content-type": "text/xml; charset=utf-8"})


@pytest.mark.rows("Q8", "Q11")
@pytest.mark.rows("D10", "G4")
@pytest.mark.parametrize("kind", [JSON, NDJSON, ARROW, AVRO, OCTETS])
def test_messages_are_returned_in_every_content_type(kind: str):
    @with_jobs
    async def test(found: Web) -> None:
        reply = await found.ask(PULL, accept=kind)
        assert (reply.status, reply.kind) == (200, kind)
        if kind == OCTETS:
            assert reply.body == b"m0"
            assert reply.headers["wherry-id"] == "m0"
            receipts = [reply.headers["wherry-receipt"]]
        elif kind == ARROW:
            rows = pa.ipc.open_stream(reply.body).read_all().to_pylist()
            assert [row["payload"] for row in rows] == [b"m0", b"m1", b"m2"]
            receipts = [f"{row['lease']}:{row['offset']}" for row in rows]
        elif kind == AVRO:
            records: list[Any] = list(fastavro.reader(io.BytesIO(reply.body)))
            assert [record["payload"] for record in records] == [b"m0", b"m1", b"m2"]
            receipts = [record["receipt"] for record in records]
        else:
            lines = reply.json()["messages"] if kind == JSON else map(msgspec.json.decode, reply.body.splitlines())
            messages: list[Any] = list(lines)
            assert [message["payload"] for message in messages] == ["m0", "m1", "m2"]
            receipts = [message["receipt"] for message in messages]
        await found.good("POST /v1/topics/jobs/subscriptions/workers/ack", {"receipts": receipts})

    test()


@with_jobs
async def test_octets_of_nothing_are_no_content(found: Web) -> None:
    await drained(found)
    assert (await found.ask(PULL, accept=OCTETS)).status == 204


@with_jobs
async def test_columns_without_values_can_be_left_out(found: Web) -> None:
    reply = await found.ask(PULL + "?columns=present&messages=1", accept=ARROW)
    names = pa.ipc.open_stream(reply.body).read_all().schema.names
    assert "due" not in names
    assert {"payload", "lease", "offset"} <= set(names)


@with_jobs
async def test_all_of_a_call_is_stored_or_nothing_of_it(found: Web) -> None:
    bad = [{"payload": "new"}, {"payload": "again", "id": "m0"}]
    assert (await found.ask(PUBLISH, bad)).status == 409
    assert (await found.good("GET /v1/topics/jobs"))["stats"]["messages"] == 3


@with_jobs
async def test_ids_are_left_out_where_no_client_asks_for_them(found: Web) -> None:
    assert (await found.good(PUBLISH, {"payload": "x"}))["ids"] == ["1-0"]
    assert "ids" not in await found.good(PUBLISH + "&ids=false", {"payload": "x"})
    stream = arrow(payload=pa.array([b"x"]))
    assert "ids" not in await found.good(PUBLISH, stream, content_type=ARROW)
    assert (await found.good(PUBLISH + "&ids=true", stream, content_type=ARROW))["ids"] == ["1-3"]


@with_jobs
async def test_places_are_returned_in_runs(found: Web) -> None:
    messages = [{"payload": "x", "key": key} for key in "aaabbbaaa"]
    placed = (await found.good("POST /v1/topics/jobs/messages", messages))["placed"]
    assert sum(count for _, _, count in placed) == 9


@with_jobs
async def test_a_repeat_by_idempotency_key_stores_nothing(found: Web) -> None:
    first = await found.good(PUBLISH, {"payload": "x"}, idempotency_key="order-7")
    again = await found.good(PUBLISH, {"payload": "x"}, idempotency_key="order-7")
    other = await found.good(PUBLISH, {"payload": "x"}, idempotency_key="order-8")
    assert (first["repeated"], again["repeated"], other["repeated"]) == (False, True, False)
    assert first["placed"] == again["placed"] != other["placed"]


@with_jobs
async def test_an_idempotency_key_with_other_messages_is_refused_and_named(found: Web) -> None:
    first = await found.good(PUBLISH, b"x", idempotency_key="order-7", content_type=OCTETS, wherry_key="k")
    for body, headers in (
        (b"y", {"wherry_key": "k"}),
        (b"x", {"wherry_key": "other"}),
        (b"x", {}),
        (b"x", {"wherry_key": "k", "content_type": "text/plain"}),
        (b'[{"payload": "x"}, {"payload": "x"}]', {"content_type": JSON}),
    ):
        reply = await found.ask(PUBLISH, body, idempotency_key="order-7", **{"content_type": OCTETS, **headers})
        answer = reply.json()
        assert (reply.status, answer["code"], answer["field"]) == (409, "out-of-sequence", "Idempotency-Key")
        assert answer["detail"].startswith("Idempotency-Key: 'order-7' was used before with ")
    parent = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"  # each attempt may have a span of its own
    same = {"content_type": OCTETS, "wherry_key": "k", "traceparent": parent}
    again = await found.good(PUBLISH, b"x", idempotency_key="order-7", **same)
    assert (again["repeated"], again["placed"]) == (True, first["placed"])
    assert found.broker.stats("jobs").messages == 4


@with_jobs
async def test_a_producer_over_http_may_give_a_fingerprint_of_its_own(found: Web) -> None:
    as_producer = PUBLISH + "&producer=p&sequence=0"
    first = await found.good(as_producer + "&fingerprint=7", b"x")
    assert (await found.good(as_producer + "&fingerprint=7", b"x"))["placed"] == first["placed"]
    assert (await found.good(as_producer, b"y"))["repeated"], "nothing to compare"
    reply = await found.ask(as_producer + "&fingerprint=8", b"x")
    assert (reply.status, reply.json()["code"], "field" in reply.json()) == (409, "out-of-sequence", False)
    for query in ("&fingerprint=7", "&producer=p&sequence=0&fingerprint=0"):
        assert (await found.ask(PUBLISH + query, b"x")).json()["field"] == "fingerprint"


@with_jobs
async def test_calls_that_know_no_repeats_refuse_an_idempotency_key(found: Web) -> None:
    await found.good("PUT /v1/routes/all", {"kind": "fanout", "bindings": [{"topic": "jobs"}]})
    for target in ("/v1/routes/all/messages", "/v1/transactions/t/topics/jobs/messages"):
        reply = await found.ask(f"POST {target}", {"payload": "x"}, idempotency_key="k")
        assert (reply.status, reply.json()["field"]) == (400, "Idempotency-Key")


@with_jobs
async def test_a_repeat_by_producer_and_sequence_stores_nothing(found: Web) -> None:
    for sequence in (0, 2, 0, 2):
        two = [{"payload": "a"}, {"payload": "b"}]
        answer = await found.good(f"{PUBLISH}&producer=p&sequence={sequence}", two)
        assert answer["placed"] == [[1, sequence, 2]]
    assert answer["repeated"]
    reply = await found.ask(PUBLISH + "&producer=p&sequence=1", {"payload": "x"})
    assert (reply.status, reply.json()["code"]) == (409, "out-of-sequence")


@pytest.mark.parametrize(
    ("key", "query", "field"),
    [
        ("k", "&producer=p&sequence=1", "Idempotency-Key"),
        ("", "", "Idempotency-Key"),
        ("a b", "", "Idempotency-Key"),
        ("x" * 257, "", "Idempotency-Key"),
    ],
)
def test_an_idempotency_key_that_cannot_be_one_is_named(key: str, query: str, field: str):
    @with_jobs
    async def test(found: Web) -> None:
        reply = await found.ask(PUBLISH + query, {"payload": "x"}, idempotency_key=key)
        assert (reply.status, reply.json()["field"]) == (400, field)

    test()
