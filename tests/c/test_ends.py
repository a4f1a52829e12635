"""Ends of a connection, as the C client meets them: kills, drains, proxies, and servers that break the protocol."""

from __future__ import annotations

import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from tests.c.compiling import CLIENT, PATIENCE_S, SANITIZED, TESTS, compiled, run
from tests.golden.wire_v1 import FILE
from tests.integration.test_node import Running
from tests.ports import free_port
from wherry.wire.native.codec.frames import HEADER, Kind

GOLDEN = {
    name: bytes.fromhex(text)
    for name, text in (line.split(" ") for line in FILE.read_text(encoding="utf-8").splitlines())
}


@pytest.fixture(scope="module")
def program() -> Path:
    return compiled("cases-sanitized", [TESTS / "cases.c", CLIENT / "wherry.c"], SANITIZED)


@contextmanager
def started(program: Path, case: str, url: str, argument: str, topic: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [program, case, url, argument, topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> list[str]:
    printed, faults = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, faults
    return printed.split()


@pytest.mark.rows("Q17", "A2")
@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.long)])
def test_nothing_confirmed_is_lost_when_the_node_is_killed_and_nothing_is_stored_twice(program, tmp_path, kills):
    flags = ("--port", str(free_port()))
    count = 2_000 * kills  # more than a node stores between two kills
    node = Running(tmp_path / "data", *flags).__enter__()
    try:
        with started(program, "over_kills", node.url, str(count), "jobs") as process:
            for _ in range(kills):
                time.sleep(0.7)
                node.process.kill()
                node.end()
                node = Running(tmp_path / "data", *flags).__enter__()
            confirmed = ended(process)
        assert set(confirmed) == {str(number) for number in range(count)}
        consume = compiled("consume", [CLIENT / "examples" / "consume.c", CLIENT / "wherry.c"], SANITIZED)
        assert node.ask("PUT", "/v1/topics/jobs/subscriptions/all", '{"start": "earliest"}')[0] == 201
        assert run(consume, node.url, "jobs", "all", str(count)).split() == [str(number) for number in range(count)]
        status, text = node.ask("GET", "/v1/topics/jobs/subscriptions/all")
        assert (status, msgspec.json.decode(text)["stats"]["lag"]) == (200, 0)
    finally:
        node.__exit__()


@pytest.mark.rows("Q17")
@pytest.mark.parametrize("stop", ["kill", "drain"])
def test_a_consumer_continues_at_the_next_node(program, tmp_path, stop):
    flags = ("--port", str(free_port()))
    node = Running(tmp_path / "data", *flags).__enter__()
    try:
        with started(program, "consume_over_kills", node.url, "-", "jobs") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for number in range(60):
                assert node.ask("POST", "/v1/topics/jobs/messages", str(number))[0] == 201
                if number % 20 == 10:
                    if stop == "kill":
                        node.process.kill()
                        node.end()
                    else:
                        assert node.stop()[0] == 0
                    node = Running(tmp_path / "data", *flags).__enter__()
            assert node.ask("POST", "/v1/topics/jobs/messages", "end")[0] == 201
            acked = ended(process)
        # An ack whose answer is lost is carried out all the same: the list may miss its message.
        assert len(acked) == len(set(acked))
        assert set(acked) <= {*map(str, range(60)), "end"}
        status, text = node.ask("GET", "/v1/topics/jobs/subscriptions/w")
        assert (status, msgspec.json.decode(text)["stats"]["lag"]) == (200, 0)
        assert stop == "kill" or len(acked) == 61
    finally:
        node.__exit__()


def test_a_drain_lets_the_client_settle_and_move(program, tmp_path):
    flags = ("--port", str(free_port()))
    with (
        Running(tmp_path / "data", *flags) as node,
        started(program, "a_drain", node.url, "-", "jobs") as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        assert node.stop()[0] == 0
        with Running(tmp_path / "data", *flags) as again:
            ended(process)
            status, text = again.ask("GET", "/v1/topics/jobs/subscriptions/w")
            assert (status, msgspec.json.decode(text)["stats"]["lag"]) == (200, 1)


# ------------------------------------------------------------------------------------------------------- bad servers

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: wherry/1\r\n\r\n"


@contextmanager
def serving(answer: bytes, then: bytes = b"", *, step: int = 0, is_silent: bool = False) -> Iterator[str]:
    """Serve one connection: answer the upgrade (in steps of some size), and a SUBSCRIBE; then close, or be silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):  # the client may hang up first
                connection.recv(4_096)
                size = step or len(answer) or 1
                for at in range(0, len(answer), size):
                    connection.sendall(answer[at : at + size])
                    time.sleep(0.001 if step else 0)
                got = b""
                while then and b"subscription" not in got:
                    got += connection.recv(4_096)
                connection.sendall(then)
                if not is_silent:
                    connection.shutdown(socket.SHUT_WR)
                over.wait(20)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


def frame(kind: int, flags: int, number: int, body: bytes = b"") -> bytes:
    return HEADER.pack(len(body), kind, flags, 0, number) + body


HELLO = frame(Kind.HELLO, 0, 0, b'{"version":1,"heartbeat_ms":1000}')

REFUSALS = {
    "not HTTP": (b"220 mail.example.org ESMTP\r\n", ["-5", "unavailable", "", "0"]),
    "closed at once": (b"", ["-5", "unavailable", "", "0"]),
    "404 without a body": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ["-2", "unavailable", "", "404"]),
    "a proxy": (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops", ["-5", "unavailable", "", "502"]),
    "a problem": (
        b'HTTP/1.1 401 Unauthorized\r\ncontent-length: 41\r\n\r\n{"code":"unauthorized","detail":"no key"}',
        ["-2", "unauthorized", "", "401"],
    ),
    "another protocol": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        ["-5", "unavailable", "", "0"],
    ),
    "no version in common": (SWITCHED + frame(Kind.HELLO, 0, 0, b'{"version":9}'), ["-5", "protocol", "version", "0"]),
    "no HELLO first": (SWITCHED + frame(Kind.SETTLED, 0, 0, bytes(8)), ["-5", "protocol", "kind", "0"]),
    "an ERROR in place of HELLO": (
        SWITCHED + frame(Kind.ERROR, 0, 0, b'{"code":"invalid-input","detail":"no","field":"versions"}'),
        ["-5", "invalid-input", "versions", "0"],
    ),
    "a GOODBYE in place of HELLO": (SWITCHED + GOLDEN["goodbye"], ["-5", "unavailable", "", "0"]),
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("step", [0, 1])
def test_a_server_that_refuses_differs_from_one_that_is_none(program, name, step):
    answer, wanted = REFUSALS[name]
    with serving(answer, step=step) as url:
        printed = run(program, "a_bad_server", url).rstrip("\n").split("|")
    assert printed[:4] == wanted
    assert printed[4]


BROKEN = {
    "kind": frame(0x7F, 0, 0),
    "length": HEADER.pack((32 << 20) + 1, Kind.ANSWER, 0, 0, 1),
    "reserved": HEADER.pack(0, Kind.PING, 0, 1, 0),
    "flags": frame(Kind.DELIVER, 1, 1, b"an Arrow stream"),
    "id": frame(Kind.DELIVER, 0, 7, GOLDEN["deliver-one"][12:]),
    "rows": frame(Kind.DELIVER, 0, 1, GOLDEN["deliver-one"][12:-1]),
    "parts": frame(Kind.DELIVER, 0, 1, bytes(9)),
    "bits": frame(Kind.DELIVER, 0, 1, GOLDEN["deliver-one"][12:-3] + b"\x80hi"),
    "entries": GOLDEN["confirm"],
    "requests": GOLDEN["settled"],
    "head": frame(Kind.ANSWER, 0, 1, b"\xff\xff\xff\xff{}"),
    "consumer": frame(Kind.SUBSCRIBED, 0, 1, b"{}"),
    "body": frame(Kind.ERROR, 0, 1, b"oops"),
}


@pytest.mark.parametrize("field", BROKEN)
def test_a_frame_that_breaks_a_rule_ends_the_connection_with_the_field(program, field):
    with serving(SWITCHED + HELLO, BROKEN[field]) as url:
        printed = run(program, "a_bad_server", url, "wait").split("|")
    assert printed[:3] == ["-5", "protocol", field]


def test_a_server_that_is_silent_is_taken_for_gone_after_two_heartbeats(program):
    with serving(SWITCHED + HELLO, GOLDEN["subscribed"], is_silent=True) as url:
        began = time.monotonic()
        printed = run(program, "a_bad_server", url, "wait").split("|")
    assert printed[:2] == ["-5", "unavailable"]
    assert "gone" in printed[4]
    assert 1.5 < time.monotonic() - began < 8


def test_a_server_that_does_not_read_is_waited_for_without_work(program):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with serving(SWITCHED + HELLO, is_silent=True) as url:
        printed = run(program, "a_bad_server", url, "flood").split("|")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert printed[:2] == ["-5", "unavailable"]
    assert "gone" in printed[4]
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5, "it was busy for all of 2 s"


def test_a_stream_that_moved_names_the_address(program):
    moved = frame(Kind.MOVED, 4, 1, GOLDEN["moved"][12:])
    with serving(SWITCHED + HELLO, moved) as url:
        printed = run(program, "a_bad_server", url, "wait").split("|")
    assert printed[:3] == ["-2", "moved", "topic"]
    assert "https://b.example.org:7070" in printed[4]
