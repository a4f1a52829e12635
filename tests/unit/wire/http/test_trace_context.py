"""The trace context of a request is stored with its messages."""

import pyarrow as pa
import pytest

from wherry.model.errors import TooLarge
from wherry.model.schema import MESSAGE, compact
from wherry.wire.http.api.trace_context import STATE_BYTES_MAX, carried
from wherry.wire.http.formats import read_messages
from wherry.wire.http.protocol.message import JSON, Request

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = MESSAGE.field("headers").type


def batch(*rows: dict[str, str] | None) -> pa.RecordBatch:
    headers = pa.array([None if row is None else list(row.items()) for row in rows], HEADERS)
    return pa.record_batch({"payload": pa.array([b"m"] * len(rows)), "headers": headers})


def headers_of(batch: pa.RecordBatch) -> list[dict[str, str]]:
    return [dict(row) for row in compact(batch).column("headers").to_pylist()]


def test_messages_without_headers_get_the_trace_context():
    plain = pa.record_batch({"payload": pa.array([b"a", b"b"])})
    assert headers_of(carried(plain, {"traceparent": PARENT})) == [{"traceparent": PARENT}] * 2


def test_messages_with_a_context_of_their_own_keep_it():
    mine = {"a": "1", "traceparent": "mine"}
    given = batch({"zero": "0"}, None, mine, {}, {"b": "2", "c": "3"}).slice(1)
    new = {"traceparent": PARENT, "tracestate": "x=1"}
    assert headers_of(carried(given, new)) == [new, mine, new, {"b": "2", "c": "3", **new}]


@pytest.mark.parametrize("parent", ["", "nonsense", PARENT.upper(), PARENT + "-more", "ff" + PARENT[2:]])
def test_a_broken_context_is_passed_over(parent: str):
    given = batch(None)
    assert carried(given, {"traceparent": parent}) is given
    assert carried(given, {}) is given


def test_every_format_takes_the_trace_context():
    body = b'{"payload": "m", "headers": {"a": "1"}}'
    request = Request("POST", "/", "", {"content-type": JSON, "traceparent": PARENT}, body)
    assert headers_of(read_messages(request)) == [{"a": "1", "traceparent": PARENT}]
    request = Request("POST", "/", "", {"traceparent": PARENT}, b"bytes")
    assert headers_of(read_messages(request)) == [{"traceparent": PARENT}]


def test_a_state_that_is_longer_than_it_may_be_is_dropped():
    """Send a state above the bound, which the messages of the call would multiply."""
    longest = {"traceparent": PARENT, "tracestate": "a=" + "b" * (STATE_BYTES_MAX - 2)}
    for given in (batch(None), pa.record_batch({"payload": pa.array([b"a"])})):
        assert headers_of(carried(given, longest)) == [longest]
        too_long = {**longest, "tracestate": longest["tracestate"] + "b"}
        assert headers_of(carried(given, too_long)) == [{"traceparent": PARENT}]


def test_the_bytes_of_a_trace_context_are_known_before_the_headers_are_built():
    many = pa.record_batch({"payload": pa.nulls(1_000_000, pa.binary())})
    before = pa.total_allocated_bytes()
    with pytest.raises(TooLarge):
        carried(many, {"traceparent": PARENT, "tracestate": "a=" + "b" * 500})
    assert pa.total_allocated_bytes() - before < 1 << 20
