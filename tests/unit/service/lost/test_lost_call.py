"""The record of a lost call: what it holds, what is cut, and the message that keeps it."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.unit.service.lost.samples import lost_call
from wherry.model.errors import InvalidInput
from wherry.service.lost.lost_call import LABELS_MAX, of_row
from wherry.wire.native.codec.invokes import CALL_ID_CHARS_MAX

FULL = lost_call(
    instance="a",
    session="customer-7",
    error="ValueError",
    text="no such order",
    content="msgpack",
    attempts=3,
    resend=True,
    labels={"traceparent": "00-1-2-01"},
)


@pytest.mark.parametrize(
    "call", [lost_call(), FULL, lost_call(body=b""), lost_call(session=""), lost_call(side="provider")]
)
def test_a_record_comes_back_from_its_message(call):
    assert of_row(asdict(call.checked(100).message(1))) == call


def test_a_body_that_is_too_long_is_cut_and_marked_and_not_sent_again():
    call = lost_call(body=b"x" * 11, resend=True).checked(10)
    assert (call.body, call.body_bytes, call.is_cut, call.resend) == (b"x" * 10, 11, True, False)
    assert of_row(asdict(call.message(1))) == call
    assert call.checked(10) == call
    whole = lost_call(body=b"x" * 10, resend=True).checked(10)
    assert (whole.body_bytes, whole.is_cut, whole.resend) == (None, False, True)


def test_texts_that_are_too_long_or_cannot_be_stored_are_cut():
    call = lost_call(
        text="ü" * 5_000, error="E" * 500, instance="i" * 500, session="\udc80" + "s" * 5_000, content="c" * 500,
        labels={f"{at}" * 300: "v" * 5_000 for at in range(50)},
    ).checked(10)  # fmt: skip
    assert (len(call.text), call.text[-1]) == (1_024, "…")
    assert (len(call.error), len(call.instance), len(call.content)) == (128, 128, 128)
    assert call.session is not None
    assert call.session.startswith("?sss")
    assert len(call.labels) <= LABELS_MAX
    assert sum(len(f"{name}{value}".encode()) for name, value in call.headers().items()) < 65_535


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": "x" * (CALL_ID_CHARS_MAX + 1)}, "id"),
        ({"id": "a b"}, "id"),
        ({"at_ms": -1}, "at_ms"),
        ({"side": "both"}, "side"),
        ({"service": ""}, "service"),
        ({"method": "m" * 129}, "method"),
        ({"outcome": "a\nb"}, "outcome"),
        ({"attempts": -1}, "attempts"),
    ],
)
def test_a_bad_name_or_number_is_an_error(changes, field):
    with pytest.raises(InvalidInput, match=f"^{field}: got"):
        lost_call(**{"id": "call-1"} | changes).checked(10)


def test_the_longest_id_fits_a_message():
    call = lost_call("ü" * CALL_ID_CHARS_MAX, side="provider")
    assert len(call.checked(10).name.encode()) <= 256
    assert len(lost_call("😀" * CALL_ID_CHARS_MAX, side="provider").checked(10).name.encode()) <= 256
