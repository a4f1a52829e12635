"""STOMP over a WebSocket on the HTTP port, by the client of the library that our side of it comes from."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.integration.served import Served
from tests.stomp.over_http import CONNECT, PATIENCE_S, ask, frame, node, sessions_of, transports_of
from wherry.model.catalog.key import Right
from wherry.node.config import SecuritySection, ServerSection, StompSection, TlsSection
from wherry.security.keys import make
from wherry.wire.stomp.codec import BODY_BYTES_MAX


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with node(tmp_path_factory.mktemp("websocket")) as found:
        yield found


UPGRADE = b"\r\n".join(
    [
        b"GET /ws HTTP/1.1",
        b"Host: localhost",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        b"\r\n",
    ]
)


def ws(served: Served) -> str:
    return served.node.url.replace("http", "ws", 1)


def talk(served: Served, path: str = "/ws", **more) -> ClientConnection:
    return connect(ws(served) + path, open_timeout=PATIENCE_S, close_timeout=PATIENCE_S, **more)


def received(client: ClientConnection) -> bytes:
    data = client.recv(PATIENCE_S)
    return data if isinstance(data, bytes) else data.encode()


def until(client: ClientConnection, wanted: bytes) -> bytes:
    got = b""
    while wanted not in got:
        got += received(client)
    return got


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.02)


@pytest.mark.rows("Q9")
@pytest.mark.parametrize("path", ["/ws", "/stomp"])
@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["v10.stomp", "v11.stomp", "v12.stomp"], "v12.stomp"),
        (["v10.stomp", "v11.stomp"], "v11.stomp"),
        (["v10.stomp"], "v10.stomp"),
        (["mqtt"], None),
        (None, None),
    ],
)
def test_the_newest_subprotocol_of_both_is_chosen_and_none_is_allowed(home, path, offered, chosen):
    with talk(home, path, subprotocols=offered) as client:
        assert client.subprotocol == chosen
        client.send(CONNECT)
        answer = received(client)
        assert answer.startswith(b"CONNECTED\n")
        assert b"\nversion:1.2\n" in answer


@pytest.mark.rows("Q9")
def test_text_and_binary_messages_both_ways(home):
    with talk(home) as client:
        client.send(CONNECT.decode())
        until(client, b"CONNECTED")
        client.send(frame("SUBSCRIBE", id="1", destination="/topic/both", receipt="s"))
        until(client, b"RECEIPT")
        client.send(frame("SEND", "grüße".encode(), destination="/topic/both").decode())
        text = client.recv(PATIENCE_S)
        assert isinstance(text, str)
        assert text.endswith("\n\ngrüße\0")
        client.send(frame("SEND", b"\xff\0\xfe", destination="/topic/both", content_length="3"))
        raw = client.recv(PATIENCE_S)
        assert isinstance(raw, bytes)
        assert raw.endswith(b"\n\n\xff\0\xfe\0")


@pytest.mark.rows("Q9")
def test_a_frame_may_come_in_fragments_in_several_messages_and_with_others(home):
    with talk(home) as client:
        client.send(iter(bytes([byte]) for byte in CONNECT))  # one message, a fragment for each byte
        until(client, b"CONNECTED")
        subscribe = frame("SUBSCRIBE", id="1", destination="/topic/parts", receipt="s")
        for byte in subscribe:  # a message for each byte
            client.send(bytes([byte]))
        until(client, b"receipt-id:s\n")
        several = b"".join(frame("SEND", b"%d" % number, destination="/topic/parts") for number in range(50))
        client.send(several + frame("SEND", b"last", destination="/topic/parts"))
        got = until(client, b"\n\nlast\0")
        assert [b"\n\n%d\0" % number in got for number in range(50)] == [True] * 50


@pytest.mark.rows("Q9")
def test_ping_is_answered_and_the_close_too(home):
    with talk(home) as client:
        assert client.ping(b"there?").wait(PATIENCE_S)
        client.close(1000)
    assert client.close_code == 1000


@pytest.mark.rows("Q9")
def test_disconnect_ends_with_its_receipt_and_a_normal_close(home):
    with talk(home) as client:
        client.send(CONNECT + frame("DISCONNECT", receipt="bye"))
        assert b"receipt-id:bye" in until(client, b"RECEIPT")
        with pytest.raises(ConnectionClosed) as over:
            client.recv(PATIENCE_S)
        assert over.value.rcvd is not None
        assert over.value.rcvd.code == 1000


@pytest.mark.rows("Q9")
def test_a_broken_frame_is_reported_and_ends_the_session(home):
    with talk(home) as client:
        client.send("NONSENSE\n\n\0")
        assert received(client).startswith(b"ERROR\nmessage:Bad command")
        with pytest.raises(ConnectionClosed):
            client.recv(PATIENCE_S)


@pytest.mark.rows("Q9")
def test_a_message_above_the_bound_is_cut_off_with_1009_before_it_is_there(home):
    with talk(home) as client:
        client.send(CONNECT)
        until(client, b"CONNECTED")
        client.socket.sendall(bytes([0x82, 0xFF]) + (10 << 30).to_bytes(8, "big") + b"mask")  # 10 GB are announced
        with pytest.raises(ConnectionClosed) as over:
            client.recv(PATIENCE_S)
        assert over.value.rcvd is not None
        assert over.value.rcvd.code == 1009


@pytest.mark.rows("Q9")
def test_the_largest_body_is_delivered(home):
    body = b"x" * BODY_BYTES_MAX
    with talk(home, max_size=None) as client:
        client.send(CONNECT + frame("SUBSCRIBE", id="1", destination="/topic/large", receipt="s"))
        until(client, b"receipt-id:s")
        client.send(frame("SEND", body, destination="/topic/large", content_length=str(len(body))))
        assert body in until(client, b"x\0")


@pytest.mark.rows("Q9")
def test_rules_of_the_handshake_that_are_broken_are_a_problem_document(home):
    wrong = ask(home.node.url, "GET", "/ws")
    assert (wrong.status, wrong.json["field"]) == (400, "Upgrade")
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    for bad in ({}, {"Sec-WebSocket-Key": "short"}):
        wrong = ask(home.node.url, "GET", "/ws", headers={**upgrade, **bad})
        assert (wrong.status, wrong.headers["content-type"]) == (400, "application/problem+json")
    assert ask(home.node.url, "HEAD", "/ws").status == 405
    assert ask(home.node.url, "POST", "/ws").status == 405


@pytest.mark.rows("Q9", "Q16")
def test_pages_from_elsewhere_get_no_websocket_unless_they_are_named(tmp_path):
    server = ServerSection(port=0, origins=("https://app.example",))
    with node(tmp_path / "data", server=server) as home:
        with talk(home, origin=home.node.url):
            pass
        with talk(home, origin="https://app.example"):
            pass
        for stranger in ("https://evil.example", "http://app.example", "null"):
            with pytest.raises(InvalidStatus) as refused:
                talk(home, origin=stranger)
            assert refused.value.response.status_code == 403
            assert b'"code":"forbidden"' in refused.value.response.body


@pytest.mark.rows("Q9")
def test_the_key_comes_in_the_connect_frame(tmp_path):
    with node(tmp_path / "data", security=SecuritySection(keys="on")) as home:
        made = make("page", [Right("admin", "*")], now_ms=time.time_ns() // 1_000_000)
        home.run(home.node.broker.put_key(made.key))
        with talk(home) as client:
            client.send(frame("CONNECT", accept_version="1.2", host="/", login="page", passcode=made.token))
            assert received(client).startswith(b"CONNECTED")
        with talk(home) as client:
            client.send(frame("CONNECT", accept_version="1.2", host="/", login="page", passcode="wk_no"))
            assert received(client).startswith(b"ERROR\nmessage:Bad CONNECT")


@pytest.mark.rows("Q9", "Q13")
def test_over_tls(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    make_pair = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make_pair, *files, *subject], check=True, capture_output=True)
    with node(tmp_path / "data", tls=TlsSection(certificate=str(certificate), key=str(key))) as home:
        trusted = ssl.create_default_context(cafile=str(certificate))
        with talk(home, ssl=trusted) as client:
            assert ws(home).startswith("wss://")
            client.send(CONNECT + frame("SUBSCRIBE", id="1", destination="/topic/t", receipt="s"))
            until(client, b"receipt-id:s")
            body = b"y" * 300_000  # more than one record of TLS
            client.send(frame("SEND", body, destination="/topic/t"))
            assert body in until(client, b"y\0")


@pytest.mark.rows("Q9")
def test_a_client_that_reads_nothing_gets_no_more_than_its_transport_holds_and_others_continue(tmp_path):
    stomp = StompSection(write_s=1.0)
    with node(tmp_path / "data", stomp=stomp) as home, talk(home) as good:
        lazy = upgraded(home)
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        for text in (CONNECT, frame("SUBSCRIBE", id="1", destination="/queue/much", ack="auto", receipt="s")):
            lazy.sendall(bytes([0x82, 0x80 | len(text)]) + bytes(4) + text)
        good.send(CONNECT + frame("SUBSCRIBE", id="1", destination="/topic/small", receipt="s"))
        until(good, b"receipt-id:s")
        for _ in range(200):
            good.send(frame("SEND", b"z" * 100_000, destination="/queue/much"))
        good.send(frame("SEND", b"through", destination="/topic/small"))
        until(good, b"through\0")
        sessions = sessions_of(home)
        eventually(lambda: sessions.cut_off_counts["nothing read"] == 1)  # the client that reads nothing is cut off
        good.send(frame("SEND", b"still", destination="/topic/small"))
        until(good, b"still\0")
        lazy.close()


def upgraded(served: Served) -> socket.socket:
    """Open a WebSocket by hand."""
    client = socket.create_connection(("127.0.0.1", served.node.port), timeout=PATIENCE_S)
    client.sendall(UPGRADE)
    assert client.recv(4_096).startswith(b"HTTP/1.1 101 ")
    return client


def announced(size: int, here: bytes) -> bytes:
    """Return the beginning of a binary frame of that size."""
    return bytes([0x82, 0xFF]) + size.to_bytes(8, "big") + bytes(4) + here


def rest_of(client: socket.socket) -> bytes:
    got = b""
    try:
        while part := client.recv(65_536):
            got += part
    except ConnectionResetError:
        pass
    return got


@pytest.mark.rows("Q9")
def test_half_a_frame_for_ever_is_cut_off(tmp_path):
    with node(tmp_path / "data", stomp=StompSection(frame_s=0.5)) as home:
        with upgraded(home) as client:
            client.sendall(announced(60_000, b"CONNECT\n"))
            rest_of(client)
        assert sessions_of(home).cut_off_counts["websocket"] == 1
        assert not sessions_of(home).connected


@pytest.mark.rows("Q9")
def test_a_client_that_never_sends_connect_gets_an_error_and_is_cut_off(tmp_path):
    with node(tmp_path / "data", stomp=StompSection(login_s=0.5)) as home, upgraded(home) as client:
        assert b"ERROR\nmessage:no login" in rest_of(client)


@pytest.mark.rows("Q9")
def test_of_clients_that_hold_memory_with_half_a_frame_the_largest_is_cut_off(tmp_path):
    with node(tmp_path / "data", stomp=StompSection(held_bytes=1 << 20)) as home, ExitStack() as stack:
        small, large = (stack.enter_context(upgraded(home)) for _ in range(2))
        small.sendall(announced(1_000_000, b"x" * 400_000))
        eventually(lambda: transports_of(home).sockets.unparsed_bytes == 400_000)
        large.sendall(announced(1_000_000, b"x" * 900_000))
        rest_of(large)
        eventually(lambda: len(transports_of(home).sockets.open) == 1)
        assert transports_of(home).sockets.unparsed_bytes == 400_000


@pytest.mark.rows("Q9")
def test_a_closing_node_sends_a_close_frame(tmp_path):
    with ExitStack() as stack:
        with node(tmp_path / "data") as home:
            client = stack.enter_context(talk(home))
            client.send(CONNECT)
            until(client, b"CONNECTED")
        with pytest.raises(ConnectionClosed) as over:
            client.recv(PATIENCE_S)
        assert over.value.rcvd is not None
        assert over.value.rcvd.code == 1001


@pytest.mark.rows("Q9")
def test_a_client_that_vanishes_leaves_nothing_behind(home):
    sessions = sessions_of(home)
    before = len(sessions.connected)
    with talk(home) as client:
        client.send(CONNECT)
        until(client, b"CONNECTED")
        assert len(sessions.connected) == before + 1
        client.socket.shutdown(socket.SHUT_RDWR)
    eventually(lambda: len(sessions.connected) == before)
    eventually(lambda: not transports_of(home).sockets.open)
