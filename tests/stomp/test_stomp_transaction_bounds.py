"""What transactions may take, one and all together."""

from __future__ import annotations

import pytest

from tests.stomp.raw import Raw, frame
from tests.stomp.serving import until
from wherry.queueing.flow import transaction as amqp
from wherry.wire.stomp import sessions as sessions_module


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("what", ["bodies", "headers", "rows", "queues", "receipts"])
def test_a_transaction_counts_all_that_it_takes(client, name, monkeypatch, what):
    monkeypatch.setattr(amqp, "TRANSACTION_BYTES_MAX", 200_000)
    for each in range(5 if what == "queues" else 1):
        client.done("SUBSCRIBE", destination=f"/topic/{name}", id=str(each))
    sent = {
        "bodies": frame("SEND", b"x" * 50_000, destination=f"/topic/{name}", transaction="t") * 4,
        "headers": frame("SEND", destination=f"/topic/{name}", transaction="t", a="x" * 50_000) * 4,
        "rows": frame("SEND", destination=f"/topic/{name}", transaction="t") * 400,
        "receipts": frame("SEND", destination=f"/topic/none-{name}", transaction="t", receipt="r" * 50_000) * 4,
        "queues": frame("SEND", b"x" * 40_000, destination=f"/topic/{name}", transaction="t"),
    }
    client.done("BEGIN", transaction="t")
    client.socket.sendall(sent[what])
    assert client.error().headers["message"] == "Transaction too large"


@pytest.mark.rows("Q2", "Q3")
def test_the_client_with_most_in_transactions_is_cut_off_when_they_take_too_much(port, stomp_node, name, monkeypatch):
    monkeypatch.setattr(sessions_module, "STAGED_BYTES_MAX", 1 << 20)
    before = stomp_node.stomp_sessions.cut_off_counts["too much in transactions"]
    with Raw(port) as large, Raw(port) as small:
        for each, size in ((large, 700_000), (small, 400_000)):
            each.connect()
            each.done("SUBSCRIBE", destination=f"/queue/{name}-{size}", id="1")
            each.done("BEGIN", transaction="t")
            each.send("SEND", b"x" * size, destination=f"/queue/{name}-{size}", transaction="t")
            until(lambda: stomp_node.stomp_sessions.staged > 400_000)
        assert large.error().headers["message"] == "too much in transactions"
        small.done("COMMIT", transaction="t")
        assert small.bodies(1) == [b"x" * 400_000]
    assert stomp_node.stomp_sessions.cut_off_counts["too much in transactions"] == before + 1


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("end", ["COMMIT", "ABORT", "DISCONNECT", ""])
def test_what_a_transaction_took_is_free_when_it_ends(client, stomp_node, name, end):
    client.done("BEGIN", transaction="t")
    client.send("SEND", b"x" * 1_000, destination=f"/queue/{name}", transaction="t")
    until(lambda: stomp_node.stomp_sessions.staged > 1_000)
    if end:
        client.done(end, transaction="t")
    else:
        client.socket.close()
    until(lambda: stomp_node.stomp_sessions.staged == 0)
