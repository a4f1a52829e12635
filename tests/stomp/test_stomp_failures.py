"""An operation that failed is never reported as done."""

from __future__ import annotations

import pytest

from tests.stomp.raw import Raw
from wherry.broker.calls.settle import Settler
from wherry.model.errors import DiskFull


@pytest.fixture
def given(client: Raw, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the ack id of a message that a client was sent, on a disk that is full by now."""
    client.done("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client-individual")
    client.send("SEND", b"m", destination=f"/queue/{name}")
    found = client.expect("MESSAGE").headers["ack"]

    def full(*_: object) -> None:
        raise DiskFull(1_000, 0)

    monkeypatch.setattr(Settler, "_settle_now", full)
    return found


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("command", ["ACK", "NACK"])
def test_an_ack_that_failed_has_an_error_for_a_receipt(client, given, command):
    client.send(command, id=given, receipt="acked")
    found = client.expect("ERROR")
    assert found.headers["receipt-id"] == "acked"
    assert found.headers["message"] == "not_done"


@pytest.mark.rows("Q2")
def test_an_ack_that_failed_and_asked_for_no_receipt_is_reported_too(client, given):
    client.send("ACK", id=given)
    assert client.expect("ERROR").headers["message"] == "not_done"


@pytest.mark.rows("Q2")
@pytest.mark.parametrize(("command", "headers"), [("DISCONNECT", {}), ("UNSUBSCRIBE", {"id": "1"})])
def test_a_client_that_leaves_gets_an_error_for_what_was_not_done(client, given, command, headers):
    client.send("ACK", id=given)
    client.send(command, receipt="left", **headers)
    found = client.expect("ERROR")
    assert found.headers["message"] == "not_done"


@pytest.mark.rows("Q2")
def test_another_client_gets_no_error_of_it(client, port, name, given):
    with Raw(port) as other:
        other.connect()
        other.done("SUBSCRIBE", destination=f"/queue/{name}-other", id="1", ack="client")
        client.send("ACK", id=given, receipt="acked")
        assert client.error().headers["message"] == "not_done"
        other.done("BEGIN", transaction="1")
        assert other.silent(0.6)  # longer than between two ticks
