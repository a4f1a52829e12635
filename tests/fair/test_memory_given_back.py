"""Memory of answers that were not read is returned to the system when their readers are gone."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from wherry.node.memory import STEP_BYTES, MemoryReleaser

READERS, MESSAGES, SIZE = 50, 100, 60_000
ANSWERS = READERS * MESSAGES * SIZE
PATIENCE_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Run a node in a process of its own; yield its port and its id."""
    port = free_port()
    command = [sys.executable, "-m", "wherry.node", "--data", str(tmp_path / "data"), "--port", str(port)]
    more = ["--amqp-port", "0", "--stomp-port", "0", "--flight-port", "0", "--log-level", "warning"]
    with subprocess.Popen([*command, *more], stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: accepts(port))
            yield port, process.pid
        finally:
            process.kill()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def filled(port: int) -> None:
    """Fill a topic with messages of some size."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    for method, path, body in [
        ("PUT", "/v1/topics/big", b""),
        ("PUT", "/v1/topics/big/subscriptions/s", b""),
        *[("POST", "/v1/topics/big/messages", os.urandom(SIZE))] * MESSAGES,
    ]:
        client.request(method, path, body, {"Content-Type": "application/octet-stream"} if body else {})
        answer = client.getresponse()
        assert answer.status in (200, 201), answer.read()
        answer.read()
    client.close()


def deaf_reader(port: int, kind: str) -> socket.socket:
    """Asks for all messages, and does not read them."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.connect(("127.0.0.1", port))
    head = f"GET /v1/topics/big/messages?limit={MESSAGES} HTTP/1.1\r\nHost: localhost\r\nAccept: {kind}\r\n\r\n"
    made.sendall(head.encode())
    return made


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.parametrize("kind", ["application/json", "application/vnd.apache.arrow.stream"])
def test_memory_of_readers_that_do_not_read_is_given_back(node, kind):
    port, pid = node
    filled(port)
    deaf_reader(port, kind).close()
    before = resident_bytes(pid)
    readers = [deaf_reader(port, kind) for _ in range(READERS)]
    until(lambda: resident_bytes(pid) > before + ANSWERS // 2)
    for reader in readers:
        reader.close()
    until(lambda: resident_bytes(pid) < before + ANSWERS // 2)


def test_memory_is_given_back_once_for_each_burst_also_for_one_between_two_looks():
    """Set here what is resident and not in use: what an allocator keeps of a real burst differs."""
    releaser = MemoryReleaser()
    unused = STEP_BYTES
    releaser.unused_bytes = lambda: unused  # type: ignore[method-assign]
    releaser.return_free_memory()
    assert not releaser.return_free_memory()
    unused += STEP_BYTES
    assert releaser.return_free_memory()
    assert not releaser.return_free_memory()
    unused -= STEP_BYTES  # the memory is used again
    assert not releaser.return_free_memory()
    unused += STEP_BYTES
    assert releaser.return_free_memory()
