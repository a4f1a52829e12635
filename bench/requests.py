"""HTTP requests over many connections: one JSON message each, beside `GET /healthz` of the same node.

By `wrk` where that is installed. Else by a sender in Python (`python -m bench.requests PORT PATH BODY SECONDS`), which
takes about as much of the processor as the node: its figures are lower, most of all that of `/healthz`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

from bench.measuring import Measured
from bench.peers.peer import SIZE
from bench.peers.wherry import TOPIC, WherryNode

CONNECTIONS = 64
SECONDS = 3

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def measured(node: WherryNode, seconds: int = SECONDS) -> Measured:
    """Return requests a second of a publish (`rate`) and of `/healthz`, and what the node took of the processor."""
    alive = sent(node, "/healthz", "", seconds)
    before = node.processor_s()
    rate = sent(node, f"/v1/topics/{TOPIC}/messages", json.dumps({"payload": "x" * SIZE}), seconds)
    spent = node.processor_s() - before
    return {"rate": rate, "healthz": alive, "server_us": spent / (rate * seconds) * 1e6}


def sender() -> str:
    """Return the name of what sends."""
    return "wrk" if shutil.which("wrk") is not None else "a sender in Python"


def sent(node: WherryNode, path: str, body: str, seconds: int) -> float:
    """Send requests as fast as they are answered; return how many a second."""
    if shutil.which("wrk") is not None:
        return _by_wrk(node, path, body, seconds)
    command = [sys.executable, "-m", "bench.requests", str(node.port), path, body, str(seconds)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _by_wrk(node: WherryNode, path: str, body: str, seconds: int) -> float:
    script = node.folder / "wrk.lua"
    lines = ['wrk.headers["Content-Type"] = "application/json"']
    if body:
        lines += ['wrk.method = "POST"', f"wrk.body = {json.dumps(body)}"]
    Path(script).write_text("\n".join(lines))
    url = f"http://127.0.0.1:{node.port}{path}"
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script), url]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in printed, printed
    found = re.search(r"Requests/sec:\s+([\d.]+)", printed)
    assert found is not None, printed
    return float(found[1])


# ----------------------------------------------------------------------------------------------------------- the sender


class Connection(asyncio.Protocol):
    """Sends a request, and the same again when its answer is there."""

    answered = 0

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head = self._answer.find(b"\r\n\r\n")
        if head < 0:
            return
        assert self._answer.startswith(b"HTTP/1.1 2"), self._answer
        length = _LENGTH.search(self._answer, 0, head)
        assert length is not None, self._answer
        if len(self._answer) >= head + 4 + int(length[1]):
            self._answer = b""
            self.answered += 1
            self._transport.write(self._request)


async def _send(port: int, path: str, body: str, seconds: float) -> float:
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Connection(request), "127.0.0.1", port) for _ in range(CONNECTIONS)]
    began, before = time.perf_counter(), sum(each.answered for _, each in made)
    await asyncio.sleep(seconds)
    took, after = time.perf_counter() - began, sum(each.answered for _, each in made)
    assert not any(transport.is_closing() for transport, _ in made), "the node closed a connection"
    for transport, _ in made:
        transport.abort()
    return (after - before) / took


def main() -> None:
    """Print how many requests a second were answered."""
    import uvloop  # noqa: PLC0415  the sender costs less by it

    print(uvloop.run(_send(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))))


if __name__ == "__main__":
    main()
