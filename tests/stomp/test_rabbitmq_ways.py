"""What clients of RabbitMQ rely on, though STOMP does not define it, or defines it otherwise."""

from __future__ import annotations

import struct

import pytest

from tests.amqp.raw import Raw as Amqp
from tests.amqp.raw import short
from tests.stomp.raw import Raw, frame
from tests.stomp.serving import running
from wherry.node.config import StompSection
from wherry.wire.stomp.codec import BODY_BYTES_MAX

VERSIONS = ["1.0", "1.1", "1.2"]


def ack_of(raw: Raw, headers: dict[str, str]) -> dict[str, str]:
    """Return the header that names a message in an ACK or NACK, by version."""
    return {"id": headers["ack"]} if raw.version == "1.2" else {"message_id": headers["message-id"]}


# ------------------------------------------------------------------------------------------- subscriptions and settling


@pytest.mark.parametrize("version", VERSIONS)
def test_a_subscription_needs_no_id_and_is_called_by_its_destination(port, name, version):
    with Raw(port) as raw:
        raw.connect(version)
        raw.done("SUBSCRIBE", destination=f"/queue/{name}", ack="client-individual")
        raw.send("SEND", b"1", destination=f"/queue/{name}")
        found = raw.expect("MESSAGE")
        assert "subscription" not in found.headers
        assert found.headers["message-id"].startswith(f"Q_/queue/{name}@@session-")
        raw.done("ACK", **ack_of(raw, found.headers))
        raw.done("UNSUBSCRIBE", destination=f"/queue/{name}")
        raw.done("SEND", b"2", destination=f"/queue/{name}")
        assert raw.silent()
        raw.done("SUBSCRIBE", destination=f"/queue/{name}")
        assert raw.bodies(1) == [b"2"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_second_subscription_to_a_place_needs_a_name(port, name, version):
    with Raw(port) as raw:
        raw.connect(version)
        raw.send("SUBSCRIBE", destination=f"/queue/{name}")
        raw.send("SUBSCRIBE", destination=f"/queue/{name}")
        assert raw.error().headers["message"] == "Duplicated subscription identifier"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("subscription", ["another", ""])
def test_which_subscription_an_ack_names_makes_no_difference(port, name, version, subscription):
    with Raw(port) as raw:
        raw.connect(version)
        raw.send("SUBSCRIBE", destination=f"/queue/{name}", id="mine", ack="client")
        raw.send("SEND", b"1", destination=f"/queue/{name}")
        first = raw.expect("MESSAGE")
        raw.send("NACK", subscription=subscription, **ack_of(raw, first.headers))
        second = raw.expect("MESSAGE")
        assert second.headers["redelivered"] == "true"
        raw.done("ACK", subscription=subscription, **ack_of(raw, second.headers))
        raw.send("ACK", **ack_of(raw, second.headers))
        assert raw.error().headers["message"] == "precondition_failed"  # the message is settled already


@pytest.mark.parametrize(("version", "right", "wrong"), [("1.1", "message-id", "id"), ("1.2", "id", "message-id")])
@pytest.mark.parametrize("command", ["ACK", "NACK"])
def test_each_version_names_a_message_by_its_own_header(port, name, command, version, right, wrong):
    with Raw(port) as raw:
        raw.connect(version)
        raw.send("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client")
        raw.send("SEND", b"1", destination=f"/queue/{name}")
        raw.send(command, **{wrong: raw.expect("MESSAGE").headers["message-id"]})
        found = raw.error()
        assert found.headers["message"] == "Missing header"
        assert found.body.decode() == f'"{command}" must include the "{right}" header\n'


# --------------------------------------------------------------------------------------------------------------- frames


def test_newlines_and_nuls_may_stand_between_frames(port, name):
    parts = (
        frame("CONNECT"),
        frame("SUBSCRIBE", destination=f"/queue/{name}"),
        frame("SEND", b"hello\n", destination=f"/queue/{name}"),
    )
    with Raw(port) as raw:
        raw.socket.sendall(b"\n\0" + b"\n\0\0\r\n\0".join(parts) + b"\0\0\n")
        raw.expect("CONNECTED")
        assert raw.bodies(1) == [b"hello\n"]


def test_headers_come_in_the_order_that_careless_clients_expect(port, name):
    with Raw(port) as raw:
        answer = raw.connect("1.2")
        assert list(answer.headers) == ["server", "session", "heart-beat", "version"]
        raw.send("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client")
        raw.send("SEND", b"1", destination=f"/queue/{name}", content_type="text/plain")
        order = ["subscription", "destination", "message-id", "redelivered", "ack", "content-type", "content-length"]
        assert list(raw.expect("MESSAGE").headers) == order
        raw.send("SEND", b"1", destination="/queue/a/b", receipt="r")
        order = ["message", "content-type", "version", "receipt-id", "explanation", "content-length"]
        assert list(raw.error().headers) == order


def test_a_name_without_a_slash_is_a_queue(client, name):
    client.done("SUBSCRIBE", destination=name, id="1")
    client.send("SEND", b"1", destination=name)
    assert client.expect("MESSAGE").headers["destination"] == f"/queue/{name}"
    client.send("SEND", b"2", destination=f"/queue/{name}")
    assert client.bodies(1) == [b"2"]


# --------------------------------------------------------------------------------------------------------- transactions


def test_the_receipt_of_a_send_in_a_transaction_comes_with_the_commit(client, name):
    client.send("BEGIN", transaction="t")
    for number in range(3):
        client.send(
            "SEND", b"", destination=f"/queue/{name}", transaction="t", receipt=f"sent-{number}", persistent="true"
        )
    client.send("SEND", b"", destination=f"/topic/nobody-{name}", transaction="t", receipt="to none")
    client.send("SEND", b"", destination=f"/queue/{name}", transaction="t")
    assert client.silent()
    client.send("COMMIT", transaction="t", receipt="committed")
    for each in ("sent-0", "sent-1", "sent-2", "to none", "committed"):
        client.receipt(each)


def test_what_was_aborted_has_no_receipt(client, name):
    client.send("BEGIN", transaction="t")
    client.send("SEND", b"", destination=f"/queue/{name}", transaction="t", receipt="never")
    client.done("ABORT", transaction="t")
    client.done("DISCONNECT")


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("sent", "message", "body"),
    [
        (frame("WRONG", a="b"), "Bad command", 'Could not interpret command "WRONG"\n'),
        (frame("SEND"), "Missing destination", "\"SEND\" must include a 'destination' header\n"),
        (frame("SUBSCRIBE", id="1"), "Missing destination", "\"SUBSCRIBE\" must include a 'destination' header\n"),
        *(
            (
                frame("SEND", destination=f"/{kind}{rest}"),
                "Invalid destination",
                f"'{rest}' is not a valid {kind} destination\n",
            )
            for kind, rests in {"queue": ("", "/a/b"), "topic": ("", "/a/b"), "exchange": ("", "//k", "/a/b/c")}.items()
            for rest in rests
        ),
        (
            frame("SEND", destination="/else/where"),
            "Unknown destination",
            "'/else/where' is not a valid destination.\nValid destination types are: "
            "/temp-queue, /exchange, /topic, /queue, /amq/queue, /reply-queue.\n",
        ),
        (
            frame("SEND", destination="a", message_id="1"),
            "Invalid header",
            "'message-id' is not allowed on 'SEND'.\n",
        ),
        (
            frame("SUBSCRIBE", destination="/queue/twice", id="1") * 2,
            "Duplicated subscription identifier",
            "A subscription identified by 'T_1' already exists.",
        ),
        *(
            (
                frame("SUBSCRIBE", destination="/topic/lasting", **{how: "true"}),
                "Missing Header",
                "Header 'id' is required for durable subscriptions",
            )
            for how in ("durable", "persistent")
        ),
        (
            frame("UNSUBSCRIBE"),
            "Missing destination or id",
            "UNSUBSCRIBE must include a 'destination' or 'id' header",
        ),
        (
            frame("UNSUBSCRIBE", id=""),
            "No subscription found",
            "UNSUBSCRIBE must refer to an existing subscription.\nSubscription to \"id=''\" not found.\n",
        ),
        (
            frame("UNSUBSCRIBE", destination="/queue/x"),
            "No subscription found",
            "UNSUBSCRIBE must refer to an existing subscription.\n"
            "Subscription to \"destination='/queue/x'\" not found.\n",
        ),
        (
            frame("UNSUBSCRIBE", id="/temp-queue/x"),
            "Invalid id",
            "UNSUBSCRIBE 'id' may not start with /temp-queue/\n",
        ),
        (frame("ACK", id="x"), "Invalid header", '"ACK" must include a valid "id" header\n'),
        (
            frame("NACK", id="T_1@@session-x@@1"),
            "Subscription not found",
            'Message with id "T_1@@session-x@@1" has no subscription',
        ),
        (frame("BEGIN"), "Missing transaction", "\"BEGIN\" must include a 'transaction' header\n"),
        (frame("COMMIT", transaction="x"), "Bad transaction", 'Invalid transaction identifier: "x"\n'),
        (
            frame("SEND", destination="/exchange/nothing-here"),
            "not_found",
            "no exchange 'nothing-here' in vhost '/'",
        ),
    ],
)
def test_a_fault_is_reported_in_words_that_clients_compare(client, sent, message, body):
    client.socket.sendall(sent)
    found = client.error()
    assert (found.headers["message"], found.body.decode()) == (message, body)
    assert found.headers["version"] == "1.0,1.1,1.2"


@pytest.mark.parametrize(
    ("headers", "message", "body"),
    [
        ({"accept_version": "100.1"}, "Version mismatch", "Supported versions are 1.0,1.1,1.2\n"),
        ({"login": "gust", "passcode": "guest"}, "Bad CONNECT", "Access refused for user 'gust'"),
        ({"login": "guest", "passcode": "gust"}, "Bad CONNECT", "Access refused for user 'guest'"),
        ({"host": "//"}, "Bad CONNECT", "Virtual host '//' access denied"),
    ],
)
def test_a_refused_login_is_reported_in_the_same_words_with_the_reason(port, headers, message, body):
    with Raw(port) as raw:
        raw.send("CONNECT", **headers)
        found = raw.error()
        assert (found.headers["message"], found.body.decode()) == (message, body)
        assert found.headers["explanation"]


def test_a_client_that_has_not_logged_in_gets_an_error(port):
    with Raw(port) as raw:
        raw.send("SEND", destination="/queue/a")
        found = raw.error()
        assert (found.headers["message"], found.body) == ("Illegal command", b"You must log in using CONNECT first")


# -------------------------------------------------------------------------------------------------------------- replies


@pytest.mark.rows("Q12")
def test_an_answer_over_amqp_reaches_the_asker_and_the_other_way_round(stomp_node, client, name):
    with Amqp(f"amqp://guest:guest@127.0.0.1:{stomp_node.amqp_port}/") as amqp:
        amqp.opened()
        client.done("SEND", b"?", destination=f"/queue/{name}", reply_to="/temp-queue/answers")
        properties, _ = amqp.got(name)
        size = properties[2]
        queue = properties[3 : 3 + size].decode()  # of AMQP: a routing key, and nothing else
        assert properties[:2] == struct.pack(">H", 0x0200)
        amqp.publish(queue, b"!")
        found = client.expect("MESSAGE")
        assert (found.body, found.headers["subscription"]) == (b"!", "/temp-queue/answers")

        mine = amqp.queue()
        client.done("SUBSCRIBE", destination=f"/queue/{name}", id="1")
        amqp.publish(name, b"?", struct.pack(">H", 0x0200) + short(mine))
        asked = client.expect("MESSAGE")
        assert asked.headers["reply-to"] == f"/reply-queue/{mine}"
        client.done("SEND", b"!", destination=asked.headers["reply-to"])
        assert amqp.got(mine)[1] == b"!"


# --------------------------------------------------------------------------------------------------------------- bounds


def waiting(port: int, name: str, sizes: list[int]) -> Raw:
    """Return a subscriber of a topic that takes one message at a time, and publish messages of these sizes for it."""
    raw = Raw(port)
    raw.connect()
    raw.done("SUBSCRIBE", destination=f"/topic/{name}", id="1", ack="client", prefetch_count="1")
    with Raw(port) as source:
        source.connect()
        for size in sizes:
            source.done("SEND", bytes(size), destination=f"/topic/{name}", content_length=str(size))
    return raw


@pytest.mark.rows("Q2", "Q3")
def test_two_messages_of_the_largest_size_may_wait_for_a_subscriber(stomp_node, port, name):
    before = stomp_node.stomp_sessions.cut_off_counts["backlog overrun"]
    with waiting(port, name, [BODY_BYTES_MAX, BODY_BYTES_MAX]) as raw:
        raw.send("BEGIN", transaction="t", receipt="still here")
        received, tail = 0, b""
        while b"receipt-id:still here" not in tail:
            more = raw.socket.recv(1 << 20)
            assert more, "cut off"
            received, tail = received + len(more), (tail + more)[-200:]
        assert received > BODY_BYTES_MAX
    assert stomp_node.stomp_sessions.cut_off_counts["backlog overrun"] == before


@pytest.mark.rows("Q2", "Q3")
def test_a_third_one_may_not(tmp_path):
    with running(tmp_path, StompSection(backlog_bytes=100_000)) as node:
        assert node.stomp_port is not None
        with waiting(node.stomp_port, "t", [100_000] * 3) as raw:
            assert raw.error().headers["message"] == "backlog overrun"
