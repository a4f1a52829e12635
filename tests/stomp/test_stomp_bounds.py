"""A client that exceeds a bound is cut off there; all others continue."""

from __future__ import annotations

import socket
import struct
import threading
import time
import urllib.request
from contextlib import suppress

import pytest

from tests.stomp.raw import Raw, frame
from tests.stomp.serving import running, until
from wherry.node.config import StompSection
from wherry.node.node import Node
from wherry.wire.stomp import deadlines
from wherry.wire.stomp.transports.transport import ON_THE_LINE_BYTES


def cut_off(node: Node, why: str) -> int:
    assert node.stomp_sessions is not None
    return node.stomp_sessions.cut_off_counts[why]


def is_subscribed(node: Node, destination: str) -> bool:
    """Return whether a session is subscribed by now; those of the test before may not have ended yet."""
    assert node.stomp_sessions is not None
    terms = [
        each.terms for session in list(node.stomp_sessions.connected) for each in list(session.subscriptions.values())
    ]
    return destination in [each.destination for each in terms]


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """Run a node with short time limits."""
    section = StompSection(login_s=0.5, frame_s=0.5, stall_s=0.5, write_s=2.0, connections=20)
    with running(tmp_path_factory.mktemp("strict"), section) as node:
        yield node


@pytest.mark.rows("Q2", "Q3")
@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"SEND\ndestination:/queue/a\ncontent-length:10000000000\n\n", "10000000000"),
        (b"SEND\n" + b"a:b\n" * 20_000, "65536"),
        (b"SEND\n" + b"x" * 70_000, "65536"),
        (b"SEND\ndestination:/queue/a\n\n" + b"x" * ((16 << 20) + 1), "16777216"),
    ],
)
def test_a_frame_above_a_bound_is_cut_off_before_it_is_whole(strict, sent, why):
    with Raw(strict.stomp_port) as raw, Raw(strict.stomp_port) as other:
        raw.connect()
        other.connect()
        sending = threading.Thread(target=_pushed, args=(raw.socket, sent))
        sending.start()
        assert why in raw.error().body.decode()
        sending.join()
        other.done("SEND", b"fine", destination="/queue/fine")
        assert strict.stomp_sessions.partial_bytes == 0


def _pushed(to: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the broker hangs up: what this is about
        to.sendall(data)


@pytest.mark.rows("Q2", "Q3")
@pytest.mark.parametrize(
    "half", [b"SEND\ndestination:/queue/a\n", b"SEND\ncontent-length:5\n\nab", b"SEN", b"SEND\n\n", b"SEND\n\nab"]
)
def test_half_a_frame_for_ever_is_cut_off(strict, half):
    before = cut_off(strict, "frame not whole")
    with Raw(strict.stomp_port) as raw:
        raw.connect()
        raw.socket.sendall(half)
        assert raw.error().headers["message"] == "frame not whole"
    assert cut_off(strict, "frame not whole") == before + 1


def test_a_client_that_always_has_half_a_frame_under_way_is_not_cut_off(strict):
    sent = frame("SEND", b"x" * 100, destination="/queue/pieces")
    with Raw(strict.stomp_port) as raw:
        raw.connect()
        raw.socket.sendall(sent[:50])
        for _ in range(12):  # 1.2 s, and never a moment without half a frame
            raw.silent(0.1)
            raw.socket.sendall(sent[50:] + sent[:50])
        raw.socket.sendall(sent[50:])
        raw.done("BEGIN", transaction="1")


@pytest.mark.rows("Q3")
def test_a_client_that_does_not_log_in_is_cut_off(strict):
    with Raw(strict.stomp_port) as raw:
        assert raw.error().headers["message"] == "no login"


@pytest.mark.rows("Q2")
def test_connections_are_bounded(strict):
    raws = []
    try:
        for _ in range(20):
            raws.append(Raw(strict.stomp_port))
            raws[-1].connect()
        with Raw(strict.stomp_port) as more:
            assert "at most 20" in more.error().body.decode()
        raws[0].done("BEGIN", transaction="1")
    finally:
        for raw in raws:
            raw.socket.close()
    until(lambda: not strict.stomp_sessions.connected)


@pytest.mark.rows("Q2", "Q3")
def test_the_client_that_holds_most_with_half_a_frame_is_cut_off_when_memory_is_short(tmp_path):
    with running(tmp_path, StompSection(held_bytes=1 << 20)) as node:
        port = node.stomp_port or 0
        with Raw(port) as large, Raw(port) as small, Raw(port) as whole:
            for each in (large, small, whole):
                each.connect()
            large.socket.sendall(b"SEND\ndestination:/queue/a\n\n" + b"x" * 700_000)
            small.socket.sendall(b"SEND\ndestination:/queue/a\nreceipt:small\n\n" + b"x" * 400_000)
            assert large.error().headers["message"] == "too much that is not whole"
            small.socket.sendall(b"\0")
            small.receipt("small")
            whole.done("SEND", b"x" * 500_000, destination="/queue/a", content_length="500000")
            until(lambda: node.stomp_sessions is not None and node.stomp_sessions.partial_bytes == 0)


# ------------------------------------------------------------------------------------------------- the declared buffer


@pytest.mark.rows("Q2", "Q3", "Q5")
@pytest.mark.parametrize("destination", ["/topic/overrun", "/queue/overrun"])
def test_a_client_that_overruns_the_messages_that_it_declared_is_cut_off(strict, destination):
    before = cut_off(strict, "buffer overrun")
    with Raw(strict.stomp_port) as slow, Raw(strict.stomp_port) as good, Raw(strict.stomp_port) as source:
        for each in (slow, good, source):
            each.connect()
        slow.done("SUBSCRIBE", destination=destination, id="s", ack="client", wherry_buffer_messages="3")
        for _ in range(4):
            source.done("SEND", b"m", destination=destination)
        assert slow.bodies(3) == [b"m"] * 3
        found = slow.error()
        assert found.headers["message"] == "buffer overrun"
        assert "wherry-buffer-messages:3" in found.body.decode()
        good.done("SUBSCRIBE", destination=destination, id="g")
        source.done("SEND", b"after", destination=destination)
        while good.expect("MESSAGE").body != b"after":
            pass
    assert cut_off(strict, "buffer overrun") == before + 1
    assert strict.stomp_sessions.cut_offs[-1].why == "buffer overrun"
    with urllib.request.urlopen(f"{strict.url}/metrics", timeout=20) as answer:
        figures = answer.read().decode()
    assert f'wherry_stomp_cut_off_total{{why="buffer overrun"}} {before + 1}' in figures


@pytest.mark.rows("Q2", "Q4")
def test_a_buffer_in_bytes_is_never_overfilled(strict):
    with Raw(strict.stomp_port) as slow, Raw(strict.stomp_port) as source:
        slow.connect()
        source.connect()
        slow.done("SUBSCRIBE", destination="/queue/bytes", id="s", ack="client", wherry_buffer_bytes="3000")
        for _ in range(5):
            source.done("SEND", b"x" * 1000, destination="/queue/bytes")
        assert len(slow.bodies(2)) == 2  # a third frame of more than 1,000 bytes would not fit
        assert slow.error().headers["message"] == "buffer overrun"


@pytest.mark.rows("Q4")
def test_a_message_above_the_buffer_is_delivered_to_a_client_that_holds_nothing(strict):
    with Raw(strict.stomp_port) as raw:
        raw.connect()
        raw.done("SUBSCRIBE", destination="/queue/larger", id="s", ack="client", wherry_buffer_bytes="100")
        raw.send("SEND", b"x" * 1000, destination="/queue/larger")
        assert raw.bodies(1) == [b"x" * 1000]


@pytest.mark.rows("Q5")
def test_a_client_that_keeps_up_with_a_small_buffer_is_not_cut_off(strict):
    with Raw(strict.stomp_port) as raw, Raw(strict.stomp_port) as source:
        raw.connect()
        source.connect()
        for mode, destination in (("auto", "/topic/keeps"), ("client", "/queue/keeps")):
            raw.done("SUBSCRIBE", destination=destination, id=mode, ack=mode, wherry_buffer_messages="10")
            source.socket.sendall(frame("SEND", b"m", destination=destination) * 500)
            for _ in range(500):
                found = raw.expect("MESSAGE")
                if mode == "client":
                    raw.send("ACK", id=found.headers["ack"])
        raw.done("BEGIN", transaction="1")


@pytest.mark.rows("Q5")
def test_the_broker_waits_for_a_client_that_asks_for_it(strict):
    with Raw(strict.stomp_port) as raw:
        raw.connect()
        terms = {"ack": "client-individual", "prefetch_count": "1", "wherry_buffer_messages": "1"}
        raw.done("SUBSCRIBE", destination="/queue/slowly", id="1", **terms)
        for _ in range(3):
            raw.send("SEND", b"m", destination="/queue/slowly")
        for _ in range(3):
            found = raw.expect("MESSAGE")
            assert raw.silent(0.8)  # longer than a stall may be
            raw.send("ACK", id=found.headers["ack"])


def deaf(port: int) -> socket.socket:
    """Return a client that takes as little from the network as it can."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect(("127.0.0.1", port))
    return plain


@pytest.mark.rows("Q2", "Q3", "Q4")
@pytest.mark.parametrize(
    ("destination", "buffer", "why"),
    [
        ("/topic/deaf", "wherry-buffer-bytes:200000\n", "buffer overrun"),
        ("/topic/deaf", "wherry-buffer-messages:100\n", "buffer overrun"),
        ("/queue/deaf", "wherry-buffer-messages:100\n", "buffer overrun"),
        ("/topic/deaf", "", "nothing read"),
        ("/queue/deaf", "", "nothing read"),
    ],
)
def test_a_client_that_stops_reading_is_cut_off_and_others_get_everything(strict, destination, buffer, why):
    before = cut_off(strict, why)
    count, body = 12_000, b"x" * 1_000
    with deaf(strict.stomp_port) as plain, Raw(strict.stomp_port) as good, Raw(strict.stomp_port) as source:
        plain.sendall(frame("CONNECT", accept_version="1.2"))
        plain.sendall(f"SUBSCRIBE\nid:d\ndestination:{destination}\n{buffer}receipt:r\n\n\0".encode())
        seen = b""
        while b"receipt-id:r" not in seen:
            seen += plain.recv(512)
        good.connect()
        source.connect()
        good.done("SUBSCRIBE", destination="/topic/deaf", id="g")
        sending = threading.Thread(target=_sent, args=(source, destination, count, body))
        sending.start()
        for _ in range(count if destination == "/topic/deaf" else 0):
            good.expect("MESSAGE")
        sending.join()
        until(lambda: cut_off(strict, why) == before + 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.rows("Q3", "Q4")
@pytest.mark.parametrize("destination", ["/topic/declared", "/queue/declared"])
def test_a_client_that_stops_reading_was_sent_no_more_than_the_bytes_that_it_declared(strict, destination):
    before, declared = cut_off(strict, "buffer overrun"), 300_000
    with deaf(strict.stomp_port) as plain, Raw(strict.stomp_port) as source:
        plain.sendall(frame("CONNECT", accept_version="1.2"))
        plain.sendall(frame("SUBSCRIBE", id="d", destination=destination, wherry_buffer_bytes=str(declared)))
        until(lambda: is_subscribed(strict, destination))
        source.connect()
        _sent(source, destination, 4_000, b"x" * 1_000)
        until(lambda: cut_off(strict, "buffer overrun") == before + 1)
        plain.settimeout(10)
        arrived = plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)  # on the client's machine, at most
        seen = b"".join(iter(lambda: plain.recv(1 << 16), b""))
    messages, end = seen.split(b"MESSAGE", 1)[1].rsplit(b"ERROR\n", 1)
    assert b"buffer overrun" in end
    assert declared / 2 < len(messages) <= declared + ON_THE_LINE_BYTES + arrived


@pytest.mark.rows("Q3", "Q4")
def test_a_client_that_reads_slowly_but_steadily_is_not_cut_off(tmp_path):
    """Read one message for longer than the patience with a client that reads nothing."""
    count, patience = 4, StompSection(stall_s=0.2)
    with running(tmp_path, patience) as node, deaf(node.stomp_port or 0) as plain, Raw(node.stomp_port or 0) as source:
        plain.sendall(frame("CONNECT", accept_version="1.2"))
        plain.sendall(frame("SUBSCRIBE", id="d", destination="/topic/steady", wherry_buffer_bytes="1000000"))
        until(lambda: is_subscribed(node, "/topic/steady"))
        source.connect()
        source.socket.sendall(frame("SEND", b"x" * 200_000, destination="/topic/steady") * count)
        plain.settimeout(10)
        seen = b""
        while seen.count(b"x\0") < count:
            seen += plain.recv(20_000)
            assert b"ERROR\n" not in seen
            time.sleep(0.01)


def _sent(source: Raw, destination: str, count: int, body: bytes) -> None:
    one = frame("SEND", body, destination=destination)
    for _ in range(count // 100):
        source.socket.sendall(one * 100)
    source.done("SEND", b"last", destination="/queue/last")


@pytest.mark.rows("Q2", "Q3")
@pytest.mark.parametrize(("bound", "cache_bytes"), [(1 << 20, 256 << 20), (None, 64 << 20)])
def test_what_waits_for_a_topic_subscriber_that_declared_nothing_is_bounded_too(tmp_path, bound, cache_bytes):
    section = StompSection(backlog_bytes=bound, write_s=600.0)
    running_node = running(tmp_path, section, cache_bytes=cache_bytes)
    with running_node as node, deaf(node.stomp_port or 0) as plain, Raw(node.stomp_port or 0) as source:
        plain.sendall(frame("CONNECT", accept_version="1.2") + frame("SUBSCRIBE", id="d", destination="/topic/long"))
        source.connect()
        until(lambda: is_subscribed(node, "/topic/long"))
        one = frame("SEND", b"x" * 10_000, destination="/topic/long")
        for _ in range(30):
            source.socket.sendall(one * 50)
            if cut_off(node, "backlog overrun"):
                break
        until(lambda: cut_off(node, "backlog overrun") == 1)
        assert node.stomp_sessions is not None
        assert f"at most {bound or 8 << 20} are kept" in node.stomp_sessions.cut_offs[-1].detail
        source.done("SEND", b"on", destination="/topic/long")


@pytest.mark.rows("Q2", "Q3")
def test_a_client_that_reads_nothing_costs_no_publisher_a_message_however_fast_it_is(tmp_path, monkeypatch):
    """Fill the memory before the next look at the clock; it holds the backlog, and all that may be under way."""
    monkeypatch.setattr(deadlines, "SLOW_CHECK_S", 600.0)
    running_node = running(tmp_path, StompSection(write_s=600.0), cache_bytes=96 << 20)
    with running_node as node, deaf(node.stomp_port or 0) as plain, Raw(node.stomp_port or 0) as source:
        plain.sendall(frame("CONNECT", accept_version="1.2") + frame("SUBSCRIBE", id="d", destination="/topic/flood"))
        until(lambda: is_subscribed(node, "/topic/flood"))
        source.connect()
        one = frame("SEND", b"x" * 100_000, destination="/topic/flood")
        for _ in range(150):
            source.socket.sendall(one * 10)
        source.done("SEND", b"last", destination="/topic/flood")
        assert cut_off(node, "backlog overrun") == 1


@pytest.mark.rows("Q2", "Q3")
@pytest.mark.parametrize("subscriptions", [1, 3])
def test_no_declared_buffer_takes_more_than_its_share_of_the_memory(tmp_path, subscriptions):
    most = 0
    section = StompSection(write_s=600.0, stall_s=600.0)
    with running(tmp_path, section) as node, deaf(node.stomp_port or 0) as plain, Raw(node.stomp_port or 0) as source:
        sessions = node.stomp_sessions
        assert sessions is not None
        plain.sendall(frame("CONNECT", accept_version="1.2"))
        for each in range(subscriptions):
            terms = {"id": f"d{each}", "destination": "/topic/large", "wherry_buffer_bytes": str(1 << 40)}
            plain.sendall(frame("SUBSCRIBE", **terms))
        until(lambda: any(len(each.subscriptions) == subscriptions for each in sessions.connected))
        (session,) = (each for each in sessions.connected if each.subscriptions)
        source.connect()
        one = frame("SEND", b"x" * 100_000, destination="/topic/large")
        for _ in range(100):
            source.socket.sendall(one * 10)
            source.done("SEND", b"", destination="/queue/pace")
            most = max(most, 0 if session.is_over else session.waiting_bytes())
            if cut_off(node, "buffer overrun"):
                break
        until(lambda: cut_off(node, "buffer overrun") == 1)
        assert "at most 16777216 wait" in sessions.cut_offs[-1].detail
        assert most <= (16 << 20) + (subscriptions + 1) * (5 << 20)
