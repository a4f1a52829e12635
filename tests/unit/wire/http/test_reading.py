"""Bodies that are wrong cost little more than their bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

from wherry.model.calls.receipts import SETTLED_MAX
from wherry.model.errors import InvalidInput
from wherry.model.limits import BATCH_MESSAGES_MAX
from wherry.wire.http.api.reading import NAMED_BYTES_MAX, TOO_LARGE_TO_NAME, decode_body
from wherry.wire.http.endpoints.consume import ReceiptsToSettle
from wherry.wire.http.formats import read_messages
from wherry.wire.http.protocol.message import JSON, NDJSON, Request


class Fields(msgspec.Struct):
    """A body."""

    count: int = 0


def refusal(call: Callable[[], object]) -> tuple[InvalidInput, int]:
    """Return the refusal, and the memory that it took."""
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput) as raised:
            call()
        return raised.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def request(body: bytes) -> Request:
    return Request("POST", "/", "", {"content-type": JSON}, pa.py_buffer(body))


def test_a_refused_small_body_is_reported_with_what_was_given() -> None:
    fault, _ = refusal(lambda: decode_body(Fields, request(b'{"count": "x"}')))
    assert (fault.field, fault.given) == ("count", "x")
    fault, _ = refusal(lambda: read_messages(request(b'[{"payload": "x", "priority": "high"}]')))
    assert (fault.field, fault.given) == ("messages[0].priority", "high")


@pytest.mark.rows("D10")
def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert decode_body(Fields, request(b'{"count": 1495.0}')).count == 1_495
    (row,) = read_messages(request(b'{"payload": 1.50, "priority": 7.0, "due_ms": 1e3}')).to_pylist()
    assert (row["payload"], row["priority"], row["due"].timestamp()) == (b"1.50", 7, 1)
    for wrong in (b'{"count": 1495.5}', b'{"count": "1495"}', b'{"count": true}'):
        fault, _ = refusal(lambda wrong=wrong: decode_body(Fields, request(wrong)))  # type: ignore[misc]
        assert fault.field == "count"
    fault, _ = refusal(lambda: read_messages(request(b'{"payload": "x", "priority": "7"}')))
    assert fault.field == "messages[0].priority"


def test_a_refused_large_body_is_reported_with_the_place_and_not_made_into_objects() -> None:
    many = b"[" + b"{}," * 1_000_000 + b"{}]"
    fields, messages = request(b'{"count": "x", "more": ' + many + b"}"), request(b'[{"payload": 1},2,' + many[1:])
    fault, peak = refusal(lambda: decode_body(Fields, fields))
    assert (fault.field, fault.given) == ("count", TOO_LARGE_TO_NAME)
    assert peak < 1 << 20
    fault, peak = refusal(lambda: read_messages(messages))
    assert (fault.field, fault.given) == ("messages[1]", TOO_LARGE_TO_NAME)
    assert peak < 1 << 20


def test_lines_are_counted_before_they_are_made() -> None:
    body = b'{"payload":""}\n' * (BATCH_MESSAGES_MAX + 1)
    lines = Request("POST", "/", "", {"content-type": NDJSON}, pa.py_buffer(body))
    fault, peak = refusal(lambda: read_messages(lines))
    assert (fault.field, fault.given) == ("messages", BATCH_MESSAGES_MAX + 1)
    assert peak < 2 * len(body)


def test_receipts_are_counted_before_they_are_made() -> None:
    many = b'{"receipts": [' + b'"1",' * (SETTLED_MAX + 200) + b'"1"]}'
    fault, peak = refusal(lambda: decode_body(ReceiptsToSettle, request(many)))
    assert fault.field == "body"
    assert peak < 2 * len(many)
    fine = b'{"receipts": [' + b'"1",' * NAMED_BYTES_MAX + b'"1"]}'
    assert len(decode_body(ReceiptsToSettle, request(fine)).receipts) == NAMED_BYTES_MAX + 1
