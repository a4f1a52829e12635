"""What the client makes of addresses, errors, receipts and places."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import wherry
from wherry.client.batch import Batch, LeaseParts
from wherry.client.link.address import Address
from wherry.client.link.backoff import CAP_S, FIRST_S, Backoff
from wherry.client.link.errors import KINDS, RequestRefused, error_of
from wherry.client.link.transport import ClientResponse
from wherry.client.options import consumer_options, producer_options
from wherry.client.requests import PublishedView, path, receipts_of
from wherry.wire.http.api.problem import STATUS_OF, problem


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:7070", Address("127.0.0.1", 7070, False)),
        ("https://broker.example/", Address("broker.example", 7070, True)),
        ("http://[::1]:80", Address("::1", 80, False)),
    ],
)
def test_an_address_is_read(url, address):
    assert Address.parse(url) == address


def test_an_address_of_six_has_brackets():
    assert Address.parse("http://[::1]:80").authority == "[::1]:80"


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:7070", "ftp://a", "http://", "http://a:b", "http://a/v1", "http://u@a", 7]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(wherry.InvalidInput, match="url"):
        Address.parse(url)


def test_every_error_that_the_wire_can_carry_comes_back_as_itself():
    for code, kind in KINDS.items():
        if code == "unavailable":
            continue
        fault = kind.__new__(kind)
        fault.args = ("what happened",)
        if isinstance(fault, wherry.InvalidInput):
            fault.field, fault.given, fault.allowed = "partitions", 0, "1 to 65535"
        answer = problem(fault)
        back = error_of(ClientResponse(answer.status, answer.content_type, b"".join(answer.body)))
        assert (type(back), str(back), back.code) == (kind, "what happened", code)
    assert set(STATUS_OF) - set(KINDS) >= {"busy", "internal"}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, b'{"code": "busy", "detail": "full"}', wherry.Unavailable),
        (502, b"<html>Bad Gateway</html>", wherry.Unavailable),
        (415, b'{"code": "unsupported-media-type", "detail": "no"}', RequestRefused),
        (401, b'{"code": "unauthorized", "detail": "who?"}', wherry.Unauthorized),
    ],
)
def test_an_answer_that_is_not_of_the_broker_has_its_error_too(status, body, kind):
    assert type(error_of(ClientResponse(status, "", body))) is kind


def test_names_of_any_kind_fit_in_a_path():
    assert path("topics", "a/b ?é", wait=None, ids=False, limit=3) == "/v1/topics/a%2Fb%20%3F%C3%A9?ids=false&limit=3"


def test_places_come_back_row_by_row():
    view = msgspec.json.decode(b'{"placed": [[1, 40, 2], [0, 7, 1], [1, 42, 1]], "repeated": true}', type=PublishedView)
    published = view.published()
    assert published.ids() == ["1-40", "1-41", "0-7", "1-42"]
    assert published.repeated


class BatchRequests:
    async def settle(self, verb: str, parts: LeaseParts, **fields: object) -> None:
        raise AssertionError


def batch(leases: list[int], offsets: list[int]) -> Batch:
    columns = {"offset": offsets, "payload": [b""] * len(offsets), "lease": leases}
    return Batch.pulled(BatchRequests(), pa.RecordBatch.from_pydict(columns))


def test_receipts_are_ranges_for_each_lease():
    pulled = batch([7, 8, 7, 7, 8, 7], [1, 5, 3, 2, 6, 9])
    assert receipts_of(pulled.leases()) == ["7", "8"]
    assert receipts_of(pulled.parts(np.arange(6))) == ["7", "8"]
    assert receipts_of(pulled.parts(np.array([0, 1, 2, 3, 5]))) == ["7:1-3", "7:9", "8:5"]
    assert receipts_of(batch([7, 7], [1, 2]).leases()) == ["7"]
    assert "lease" not in pulled.data.schema.names


def test_a_row_is_claimed_once():
    pulled = batch([7, 7, 7], [1, 2, 3])
    first = pulled.claim([0, 2])
    assert first is not None
    assert first.tolist() == [0, 2]
    assert pulled.claim([2]) is None
    pulled.unclaim(np.array([2]))
    rest = pulled.claim()
    assert rest is not None
    assert rest.tolist() == [1, 2]
    assert not pulled.unclaimed()
    with pytest.raises(wherry.InvalidInput, match="rows"):
        pulled.claim([3])


def test_pauses_grow_to_a_cap_and_begin_again():
    backoff = Backoff()
    pauses = [backoff.next_s() for _ in range(200)]
    assert max(pauses) <= CAP_S
    assert all(pause <= FIRST_S * 2**number for number, pause in enumerate(pauses[:5]))
    backoff.reset()
    assert backoff.next_s() <= FIRST_S


@pytest.mark.parametrize(
    "given",
    [
        {"linger_ms": -1},
        {"batch_messages": 0},
        {"in_flight": 65},
        {"colour": "red"},
        {"name": ""},
        {"patience_s": "long"},
    ],
)
def test_options_of_a_producer_have_bounds(given):
    with pytest.raises(wherry.InvalidInput, match=next(iter(given))):
        producer_options(given)


@pytest.mark.parametrize("given", [{"ack": "maybe"}, {"buffer_messages": 0}, {"pull_messages": 65_537}, {"renew": 1}])
def test_options_of_a_consumer_have_bounds(given):
    with pytest.raises(wherry.InvalidInput, match=next(iter(given))):
        consumer_options(given)
