"""What frames do, over real sockets."""

from __future__ import annotations

import json
import re
import time
import urllib.request

import pytest

from tests.stomp.raw import Raw, frame
from tests.stomp.serving import until

# -------------------------------------------------------------------------------------------------------------- CONNECT


@pytest.mark.parametrize(
    ("accepts", "version"),
    [(None, "1.0"), ("1.0", "1.0"), ("1.1", "1.1"), ("1.2", "1.2"), ("1.0,1.1,1.2", "1.2"), ("1.1, 9.9", "1.1")],
)
@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_the_newest_version_that_both_know_is_chosen(port, accepts, version, command):
    with Raw(port) as raw:
        raw.send(command, **({} if accepts is None else {"accept_version": accepts}))
        answer = raw.expect("CONNECTED")
        assert answer.headers["version"] == version
        assert answer.headers["session"].startswith("session-")
        assert re.fullmatch(
            r"RabbitMQ/[0-9.]+ Wherry/[0-9.]+\S*", answer.headers["server"]
        )  # the dialect, and the client


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame("CONNECT", accept_version="3.0"), "3.0"),
        (frame("CONNECT", accept_version="1.2", host="nowhere"), "nowhere"),
        (frame("CONNECT", accept_version="1.2", login="guest", passcode="wrong"), "guest"),
        (frame("CONNECT", accept_version="1.2", login="nobody", passcode="guest"), "nobody"),
        (frame("CONNECT", accept_version="1.2", heart_beat="1"), "heart-beat"),
        (frame("SEND", destination="/queue/a"), "CONNECT"),
        (b"GET / HTTP/1.1\r\n\r\n", "GET"),
    ],
)
def test_a_client_that_is_not_let_in_gets_the_reason(port, sent, why):
    with Raw(port) as raw:
        raw.socket.sendall(sent)
        assert why in raw.error().why


@pytest.mark.parametrize("host", ["/", "localhost", "127.0.0.1", "[::1]"])
def test_the_name_of_the_machine_is_the_first_virtual_host(port, host):
    with Raw(port) as raw:
        raw.connect(host=host)


def test_clients_of_1_0_write_a_space_after_the_colon(port):
    with Raw(port) as raw:
        raw.socket.sendall(b"CONNECT\nlogin: guest\npasscode: guest\n\n\0")
        raw.expect("CONNECTED")


# -------------------------------------------------------------------------------------------------- queues and settling


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_a_message_comes_as_it_was_sent(port, name, version):
    with Raw(port) as raw:
        raw.connect(version)
        raw.done("SUBSCRIBE", destination=f"/queue/{name}", id="7")
        sent = {"content_type": "text/plain", "persistent": "true", "priority": "4", "correlation_id": "c"}
        sent |= {"amqp_message_id": "m", "type": "t", "timestamp": "12", "app_id": "a", "x": "y", "user_id": "guest"}
        raw.send("SEND", b"\x00\xffbody\x00", destination=f"/queue/{name}", content_length="7", **sent)
        found = raw.expect("MESSAGE")
        assert found.body == b"\x00\xffbody\x00"
        assert {header: found.headers[header.replace("_", "-")] for header in sent} == sent
        assert found.headers["destination"] == f"/queue/{name}"
        assert found.headers["subscription"] == "7"
        assert found.headers["redelivered"] == "false"
        assert "ack" not in found.headers


def test_a_client_of_1_0_needs_no_id(port, name):
    with Raw(port) as raw:
        raw.connect("1.0")
        raw.send("SUBSCRIBE", destination=f"/queue/{name}", ack="client")
        raw.send("SEND", b"1", destination=f"/queue/{name}")
        found = raw.expect("MESSAGE")
        assert "subscription" not in found.headers
        raw.done("ACK", message_id=found.headers["message-id"])
        raw.done("UNSUBSCRIBE", destination=f"/queue/{name}")
        raw.done("SEND", b"2", destination=f"/queue/{name}")
        assert raw.silent()


def test_a_message_in_a_queue_waits_for_a_subscriber_and_is_delivered_to_one_of_several(port, name):
    with Raw(port) as one, Raw(port) as other:
        one.connect()
        other.connect()
        for number in range(10):
            one.send("SEND", b"%d" % number, destination=f"/queue/{name}")
        one.done("SEND", b"10", destination=f"/queue/{name}")
        for each in (one, other):
            each.done("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client", prefetch_count="1")
        first, second = one.expect("MESSAGE"), other.expect("MESSAGE")
        assert {first.body, second.body} == {b"0", b"1"}
        assert one.silent()


def ids(raw: Raw, count: int) -> list[str]:
    return [raw.expect("MESSAGE").headers["ack"] for _ in range(count)]


def left(port: int, name: str) -> list[bytes]:
    """Return what is in a queue, redelivered or not."""
    with Raw(port) as raw:
        raw.connect()
        raw.done("SUBSCRIBE", destination=f"/amq/queue/{name}", id="rest", ack="client-individual")
        raw.send("SEND", b"end", destination=f"/queue/{name}")
        found: list[bytes] = []
        while b"end" not in found:
            found.append(raw.expect("MESSAGE").body)
        return sorted(found[:-1]) if found[-1] == b"end" else sorted(set(found) - {b"end"})


@pytest.mark.parametrize(
    ("mode", "command", "expected"),
    [
        ("client", "ACK", [b"3", b"4"]),
        ("client-individual", "ACK", [b"0", b"1", b"3", b"4"]),
        ("client", "NACK", [b"0", b"1", b"2", b"3", b"4"]),
    ],
)
def test_ack_is_of_one_message_or_of_all_up_to_it(port, name, mode, command, expected):
    with Raw(port) as raw:
        raw.connect()
        for number in range(5):
            raw.send("SEND", b"%d" % number, destination=f"/queue/{name}")
        raw.send("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack=mode)
        acks = ids(raw, 5)
        raw.send(command, id=acks[2], receipt="settled")
        if command == "NACK":  # nacked messages come back to the same subscriber
            again = [raw.next() for _ in range(4)]
            assert sorted(each.body for each in again if each.command == "MESSAGE") == [b"0", b"1", b"2"]
            assert all(each.headers["redelivered"] == "true" for each in again if each.command == "MESSAGE")
        else:
            raw.receipt("settled")
        raw.done("DISCONNECT")
    assert left(port, name) == expected


def test_a_nack_without_requeue_is_a_dead_letter(client, name):
    client.done("SUBSCRIBE", destination=f"/queue/dead-{name}", id="dead")
    client.done(
        "SUBSCRIBE",
        destination=f"/queue/{name}",
        id="1",
        ack="client-individual",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=f"dead-{name}",
    )
    client.send("SEND", b"bad", destination=f"/queue/{name}")
    client.send("NACK", id=ids(client, 1)[0], requeue="false")
    found = client.expect("MESSAGE")
    assert (found.body, found.headers["subscription"]) == (b"bad", "dead")
    assert found.headers["x-first-death-reason"] == "rejected"


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("T_1@@session-x@@1", "unknown delivery tag 1"),
        ("T_2@@session-x@@1", '"T_2@@session-x@@1" has no subscription'),
        *((wrong, 'valid "id"') for wrong in ("nonsense", "", "@@", "@@@@", "T_1@@@@-1", "T_1@@@@" + "9" * 20)),
    ],
)
def test_an_ack_of_something_else_is_a_fault(client, name, named, why):
    client.done("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client")
    client.send("ACK", id=named, receipt="r")
    found = client.error()
    assert found.headers["receipt-id"] == "r"
    assert why in found.why


def test_what_was_not_acked_comes_back_when_the_client_is_gone_or_unsubscribes(port, name):
    with Raw(port) as raw:
        raw.connect()
        raw.send("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client")
        raw.send("SEND", b"1", destination=f"/queue/{name}")
        raw.expect("MESSAGE")
        raw.done("UNSUBSCRIBE", id="1")
        raw.send("SUBSCRIBE", destination=f"/queue/{name}", id="2", ack="client")
        assert raw.expect("MESSAGE").headers["redelivered"] == "true"
    assert left(port, name) == [b"1"]


def test_prefetch_bounds_what_is_out(client, name):
    client.send("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client-individual", prefetch_count="2")
    for number in range(4):
        client.send("SEND", b"%d" % number, destination=f"/queue/{name}")
    acks = ids(client, 2)
    assert client.silent()
    client.send("ACK", id=acks[0])
    assert client.expect("MESSAGE").body == b"2"
    assert client.silent()


# ---------------------------------------------------------------------------------------------------- topics, exchanges


@pytest.mark.rows("K9", "K10")
def test_each_subscriber_of_a_topic_gets_each_message_and_none_from_before(port, name):
    with Raw(port) as one, Raw(port) as other:
        one.connect()
        other.connect()
        one.done("SEND", b"before", destination=f"/topic/{name}.a")
        for each in (one, other):
            each.done("SUBSCRIBE", destination=f"/topic/{name}.*", id="1")
        one.send("SEND", b"after", destination=f"/topic/{name}.a")
        for each in (one, other):
            found = each.expect("MESSAGE")
            assert (found.body, found.headers["destination"]) == (b"after", f"/topic/{name}.a")


def test_a_topic_queue_ends_with_its_subscription_and_with_its_session(stomp_node, port, name):
    def queues() -> list[str]:
        return [each for each in stomp_node.broker.shard.state.catalog.topics if each.startswith("stomp-subscription-")]

    before = set(queues())
    with Raw(port) as raw:
        raw.connect()
        raw.done("SUBSCRIBE", destination=f"/topic/{name}", id="1")
        raw.done("SUBSCRIBE", destination=f"/exchange/amq.fanout/{name}", id="2")
        assert len(set(queues()) - before) == 2
        raw.done("UNSUBSCRIBE", id="1")
        assert len(set(queues()) - before) == 1
    until(lambda: not set(queues()) - before)


def test_a_durable_subscription_misses_nothing(port, name):
    durable = {"destination": f"/topic/{name}", "id": "d", "durable": "true", "auto_delete": "false"}
    with Raw(port) as raw:
        raw.connect()
        raw.done("SUBSCRIBE", ack="client", **durable)
        raw.done("DISCONNECT")
    with Raw(port) as raw:
        raw.connect()
        raw.done("SEND", b"meanwhile", destination=f"/topic/{name}", persistent="true")
        raw.send("SUBSCRIBE", ack="client", **durable)
        assert raw.expect("MESSAGE").body == b"meanwhile"
        raw.done("UNSUBSCRIBE", id="d", durable="true", auto_delete="false")  # deletes the subscription
        raw.done("SEND", b"lost", destination=f"/topic/{name}")
        raw.done("SUBSCRIBE", **durable)
        assert raw.silent()
        raw.done("UNSUBSCRIBE", id="d", durable="true", auto_delete="false")


def test_a_durable_subscription_as_activemq_names_it(port, name):
    sent = {"destination": f"/topic/{name}", "id": "x"}
    for received in (False, True):
        with Raw(port) as raw:
            raw.connect(client_id="me")
            raw.socket.sendall(
                frame("SUBSCRIBE", **sent, receipt="r").replace(b"\n\n", b"\nactivemq.subscriptionName:mine\n\n")
            )
            raw.receipt("r")
            if received:
                assert raw.expect("MESSAGE").body == b"meanwhile"
            raw.done("DISCONNECT")
        with Raw(port) as raw:
            raw.connect()
            raw.done("SEND", b"meanwhile", destination=f"/topic/{name}")
    with Raw(port) as raw:
        raw.connect(client_id="me")
        raw.socket.sendall(frame("UNSUBSCRIBE", **sent).replace(b"\n\n", b"\nactivemq.subscriptionName:mine\n\n"))
        raw.done("BEGIN", transaction="still here")


def test_the_queue_of_a_topic_can_be_named(client, name):
    client.done("SUBSCRIBE", destination=f"/topic/{name}", id="1", x_queue_name=f"named-{name}", auto_delete="false")
    client.send("SEND", b"1", destination=f"/amq/queue/named-{name}")
    assert client.expect("MESSAGE").headers["destination"] == f"/queue/named-{name}"


@pytest.mark.parametrize(
    ("command", "destination", "why"),
    [
        ("SEND", "/amq/queue/nothing-here", "nothing-here"),
        ("SUBSCRIBE", "/amq/queue/nothing-here", "nothing-here"),
        ("SEND", "/exchange/nothing-here/k", "nothing-here"),
        ("SUBSCRIBE", "/exchange/nothing-here/k", "nothing-here"),
        ("SEND", "/queue/a/b", "%2F"),
        ("SEND", "/queue/", "not empty"),
        ("SEND", "", "not empty"),
        ("SEND", "/", "Valid destination types are: /temp-queue, /exchange"),
        ("SEND", "a/b", "'a/b' is not a valid destination"),
        ("SEND", "/temp-queue/a", "reply-to"),
        ("SUBSCRIBE", "/temp-queue/a", "reply-to"),
        ("SEND", "/queue/" + "x" * 256, "255"),
    ],
)
def test_a_destination_that_is_none_is_a_fault(client, command, destination, why):
    client.send(command, destination=destination, id="1")
    assert why in client.error().why


def test_names_are_escaped_in_destinations(client, name):
    client.done("SUBSCRIBE", destination=f"/queue/{name}%2Fb%25%C3%BC", id="1")
    client.send("SEND", b"1", destination=f"/queue/{name}%2Fb%25ü")
    assert client.expect("MESSAGE").headers["destination"] == f"/queue/{name}%2Fb%25%C3%BC"


# -------------------------------------------------------------------------------------------------------------- replies


def test_a_reply_comes_to_the_queue_of_the_asker(port, name):
    with Raw(port) as asker, Raw(port) as worker:
        asker.connect()
        worker.connect()
        worker.done("SUBSCRIBE", destination=f"/queue/{name}", id="w")
        for number in (b"1", b"2"):
            asker.send("SEND", number, destination=f"/queue/{name}", reply_to="/temp-queue/foo", correlation_id="c")
            asked = worker.expect("MESSAGE")
            assert asked.headers["reply-to"].startswith("/reply-queue/")
            worker.send("SEND", b"re " + asked.body, destination=asked.headers["reply-to"], correlation_id="c")
            found = asker.expect("MESSAGE")
            assert (found.body, found.headers["subscription"]) == (b"re " + number, "/temp-queue/foo")
            assert found.headers["correlation-id"] == "c"
        asker.done("DISCONNECT")
        worker.done("SEND", b"too late", destination=asked.headers["reply-to"])


# --------------------------------------------------------------------------------------------------------- transactions


def test_a_transaction_is_all_or_nothing(client, name):
    client.done("SUBSCRIBE", destination=f"/queue/out-{name}", id="out")
    client.send("SUBSCRIBE", destination=f"/queue/{name}", id="in", ack="client-individual")
    client.send("SEND", b"work", destination=f"/queue/{name}")
    got = client.expect("MESSAGE").headers["ack"]
    client.done("BEGIN", transaction="t")
    client.done("ACK", id=got, transaction="t")
    client.send("SEND", b"done", destination=f"/queue/out-{name}", transaction="t")
    assert client.silent()
    client.done("ABORT", transaction="t")
    assert client.silent()
    client.send("BEGIN", transaction="t")
    client.send("SEND", b"a", destination=f"/queue/out-{name}", transaction="t")
    client.send("SEND", b"b", destination=f"/queue/out-{name}", transaction="t")
    client.send("ACK", id=got, transaction="t")  # the message is on lease again since the ABORT
    client.send("COMMIT", transaction="t", receipt="committed")
    frames = [client.next() for _ in range(3)]
    assert [each.body for each in frames if each.command == "MESSAGE"] == [b"a", b"b"]
    client.done("DISCONNECT")


def test_an_ack_of_a_transaction_that_is_not_committed_is_undone_with_the_session(port, name):
    with Raw(port) as raw:
        raw.connect()
        raw.send("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client")
        raw.send("SEND", b"1", destination=f"/queue/{name}")
        got = raw.expect("MESSAGE").headers["ack"]
        raw.done("BEGIN", transaction="t")
        raw.send("SEND", b"2", destination=f"/queue/{name}", transaction="t")
        raw.done("ACK", id=got, transaction="t")
    assert left(port, name) == [b"1"]


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([("COMMIT", {"transaction": "x"})], "not begun"),
        ([("ABORT", {"transaction": "x"})], "not begun"),
        ([("SEND", {"destination": "/queue/a", "transaction": "x"})], "not begun"),
        ([("BEGIN", {"transaction": "x"}), ("BEGIN", {"transaction": "x"})], "is open"),
        ([("BEGIN", {})], "transaction"),
        ([("SUBSCRIBE", {"id": "1"})], "destination"),
        ([("SUBSCRIBE", {"destination": "/queue/a", "id": "1", "ack": "maybe"})], "client-individual"),
        ([("SUBSCRIBE", {"destination": "/queue/a", "id": "1", "selector": "a=1"})], "selector"),
        ([("SUBSCRIBE", {"destination": "/queue/a", "id": "1"})] * 2, "already exists"),
        ([("UNSUBSCRIBE", {"id": "never"})], "never"),
        ([("SEND", {})], "destination"),
        ([("SEND", {"destination": "/queue/a", "priority": "300"})], "priority"),
        ([("SEND", {"destination": "/queue/a", "expires": "soon"})], "expires"),
        ([("SEND", {"destination": "/queue/a", "wherry_due": "tomorrow"})], "wherry-due"),
        ([("SEND", {"destination": "/queue/a", "message_id": "1"})], "amqp-message-id"),
        ([("SEND", {"destination": "/queue/a", "user_id": "else"})], "else"),
        ([("SEND", {"destination": "/queue/a", "type": "t" * 256})], "type"),
        ([("SEND", {"destination": "/queue/bounded", "x_max_length": "many"})], "x-max-length"),
        ([("CONNECT", {})], "CONNECT"),
        ([("ACK", {})], "id"),
    ],
)
def test_a_fault_is_named(client, frames, why):
    for command, headers in frames:
        client.send(command, **headers)
    assert why in client.error().why


# ----------------------------------------------------------------------------------------------- times, keys, arguments


def test_a_message_comes_when_it_is_due(client, name):
    client.done("SUBSCRIBE", destination=f"/queue/{name}", id="1")
    due = int(time.time() * 1000) + 1_200
    client.send("SEND", b"late", destination=f"/queue/{name}", wherry_due=str(due))
    client.send("SEND", b"now", destination=f"/queue/{name}", wherry_due="2020-01-01T00:00:00Z")
    assert client.expect("MESSAGE").body == b"now"
    assert client.expect("MESSAGE").body == b"late"
    assert time.time() * 1000 >= due


def test_key_and_due_time_are_the_message_s_own_and_it_can_be_cancelled(stomp_node, client, name):
    sent = {"wherry_key": "order-7", "wherry_due": "2040-01-01T00:00:00Z", "amqp_message_id": "m1"}
    client.done("SEND", b"1", destination=f"/queue/{name}", persistent="true", **sent)
    url = f"{stomp_node.url}/v1/topics/{name}/messages"
    with urllib.request.urlopen(url, timeout=20) as answer:
        (found,) = json.load(answer)["messages"]
    assert (found["id"], found["key"], found["due_ms"]) == ("m1", "order-7", 2_208_988_800_000)
    with urllib.request.urlopen(urllib.request.Request(f"{url}/m1", method="DELETE"), timeout=20) as answer:
        assert answer.status < 300
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert json.load(answer)["messages"] == []


def test_an_expired_message_is_not_delivered(client, name):
    client.send("SEND", b"old", destination=f"/queue/{name}", expires="1000")
    client.send("SEND", b"short", destination=f"/queue/{name}", expiration="1")
    client.done("SEND", b"never", destination=f"/queue/{name}", expires="0")
    time.sleep(0.05)
    client.send("SUBSCRIBE", destination=f"/queue/{name}", id="1")
    assert client.expect("MESSAGE").body == b"never"


def test_a_queue_is_made_with_the_arguments_of_a_send(client, name):
    for number in range(5):
        client.send("SEND", b"%d" % number, destination=f"/queue/{name}", x_max_length="2", x_max_priority="5")
    client.done("SEND", b"5", destination=f"/queue/{name}", x_max_length="2", x_max_priority="5")
    client.send("SUBSCRIBE", destination=f"/queue/{name}", id="1")
    assert client.bodies(2) == [b"4", b"5"]
    assert client.silent()
    client.send("SEND", b"", destination=f"/queue/{name}", x_max_length="3", x_max_priority="5")
    assert "x-max-length" in client.error().body.decode()


def test_a_refused_message_is_reported(client, name):
    full = {"destination": f"/queue/{name}", "x_max_length": "1", "x_overflow": "reject-publish"}
    client.done("SEND", b"1", **full)
    client.send("SEND", b"2", receipt="two", **full)
    found = client.error()
    assert found.headers["receipt-id"] == "two"


# ---------------------------------------------------------------------------------------------------------- heart-beats


def test_heart_beats_are_sent_and_expected(stomp_node, port):
    with Raw(port) as raw:
        answer = raw.connect(heart_beat="1000,1000")
        assert answer.headers["heart-beat"] == "1000,1000"
        beats = 0
        while beats < 3:
            assert raw.socket.recv(1) == b"\n"
            beats += 1
            raw.socket.sendall(b"\n")
        found = raw.error()  # from here on the broker sends nothing
        assert found.headers["message"] == "no heart-beat"
    assert stomp_node.stomp_sessions is not None
    assert stomp_node.stomp_sessions.cut_off_counts["no heart-beat"] >= 1


def test_a_client_without_heart_beats_is_not_cut_off_for_silence(port):
    with Raw(port) as raw:
        assert raw.connect(heart_beat="0,0").headers["heart-beat"] == "0,0"
        time.sleep(3.5)
        raw.done("BEGIN", transaction="1")


def test_a_deleted_queue_ends_the_session_that_consumes_it(port, name):
    durable = {"destination": f"/topic/{name}", "id": "d", "durable": "true", "auto_delete": "false"}
    with Raw(port) as one, Raw(port) as other:
        for each in (one, other):
            each.connect()
            each.done("SUBSCRIBE", **durable)
        one.done("UNSUBSCRIBE", id="d", durable="true", auto_delete="false")
        assert "deleted" in other.error().body.decode()


def test_frames_after_disconnect_are_not_read(port, name):
    with Raw(port) as raw:
        raw.connect()
        raw.socket.sendall(
            frame("DISCONNECT", receipt="bye") + frame("SEND", b"late", destination=f"/queue/{name}", receipt="late")
        )
        raw.receipt("bye")
        assert raw.is_hung_up()
