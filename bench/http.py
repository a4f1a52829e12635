"""The broker as a service: two client processes beside the node, 256-byte messages, fsync before every confirm.

Every figure is measured in the same run as what it is compared with; brokers take turns, since the machine is noisy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.core import _disk as disk
from bench.figure import Figure
from bench.peers import PEERS
from bench.peers.peer import SIZE, Peer
from bench.peers.wherry import TOPIC, WherryBatches, WherryMessages, WherryNode

OURS = ("columns", "batches", "messages")
COUNTS = {
    "columns": 2_000_000,
    "batches": 1_000_000,
    "messages": 500_000,
    "redis": 100_000,
    "rabbitmq": 50_000,
    "jetstream": 20_000,
}
ROUNDS = 3
RATE, RATE_S = 1_000, 8
CONNECTIONS, WRK_S = 64, 5
FLOW_S = 120.0


class Flow(NamedTuple):
    """One run from a producer to a consumer."""

    rate: float
    ages: list[float]


def figures(scale: int) -> list[Figure]:
    """Everything about HTTP, beside the peers that are installed."""
    names = [name for name, peer in PEERS.items() if peer.is_installed()]
    rates: dict[str, list[float]] = {name: [] for name in names}
    ages: dict[str, list[float]] = {name: [] for name in names if name not in ("columns", "batches")}
    syncs: list[float] = []
    with tempfile.TemporaryDirectory(dir=disk(), prefix="bench-http-") as root:
        for number in range(ROUNDS):
            for name in names:
                rates[name].append(_flow(Path(root) / f"{name}-{number}", name, COUNTS[name] // scale).rate)
        for name in ages:
            syncs += _syncs_ms(Path(root))
            ages[name] = _flow(Path(root) / f"{name}-paced", name, RATE * RATE_S // scale, RATE).ages
        result = _compared(rates) + _latencies(ages, syncs)
        result += _requests(Path(root) / "requests")
        result.append(_idle(Path(root) / "idle"))
    return result


def _compared(rates: dict[str, list[float]]) -> list[Figure]:
    """Ours against each peer. Every side makes each message and reads each message that it receives."""
    median = {name: statistics.median(each) for name, each in rates.items()}
    return [
        Figure(f"http.{ours}_by_{name}", median[ours], "msgs/s", f"{PEERS[name].name}, {PEERS[name].promise}", theirs)
        for ours in OURS
        for name, theirs in sorted(median.items())
        if name not in OURS
    ]


def _latencies(ages: dict[str, list[float]], syncs: list[float]) -> list[Figure]:
    result = []
    for share, word in ((0.5, "p50"), (0.99, "p99")):
        ours = _quantile(ages["messages"], share)
        sync = _quantile(syncs, share)
        result.append(Figure(f"http.latency_{word}", ours, f"ms at {RATE:,}/s", f"raw write+fdatasync, {word}", sync))
        for name in ages.keys() - {"messages"}:
            against = f"{PEERS[name].name}, {word}"
            theirs = _quantile(ages[name], share)
            result.append(Figure(f"http.latency_{word}_by_{name}", ours, f"ms at {RATE:,}/s", against, theirs))
    return result


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _syncs_ms(root: Path) -> list[float]:
    """What the disk alone takes for one message."""
    path = root / "sync"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(fd, 0, 1 << 20)
    took = []
    for number in range(500):
        start = time.perf_counter()
        os.pwrite(fd, bytes(SIZE), number * SIZE)
        os.fdatasync(fd)
        took.append((time.perf_counter() - start) * 1e3)
    os.close(fd)
    path.unlink()
    return took


def _flow(folder: Path, name: str, count: int, rate: int | None = None) -> Flow:
    """Messages a second from the first publish to the last ack, over a fresh server."""
    folder.mkdir()
    peer = PEERS[name](folder)
    try:
        peer.start()
        sides = [_side(peer, name, role, count, rate) for role in ("consume", "produce")]
        for side in sides:
            _line(side)
        for side in sides:
            assert side.stdin is not None
            side.stdin.write("go\n")
            side.stdin.flush()
        consumed, produced = (json.loads(_line(side)) for side in sides)
        for side in sides:
            side.wait()
    finally:
        peer.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return Flow(count / (consumed["ended"] - produced["began"]), consumed["ages"])


def _side(peer: Peer, name: str, role: str, count: int, rate: int | None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.worker", name, role, str(peer.port), str(count)]
    if rate is not None and role == "produce":
        command.append(str(rate))
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(side: subprocess.Popen[str]) -> str:
    assert side.stdout is not None
    line = side.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker ended without a word: {side.args!r}")
    return line


def _requests(folder: Path) -> list[Figure]:
    """One JSON message a request over many connections, by `wrk`, where that is installed."""
    if shutil.which("wrk") is None:
        return []
    folder.mkdir()
    node = WherryMessages(folder)
    try:
        node.start()
        alive = _wrk(folder, node, "/healthz", "")
        body = json.dumps({"payload": "x" * SIZE})
        publish = _wrk(folder, node, f"/v1/topics/{TOPIC}/messages", body)
    finally:
        node.stop()
        shutil.rmtree(folder, ignore_errors=True)
    against = f"GET /healthz, {CONNECTIONS} connections"
    return [Figure("http.json_requests", publish, f"requests/s, {CONNECTIONS} connections", against, alive)]


def _wrk(folder: Path, node: WherryNode, path: str, body: str) -> float:
    script = folder / "wrk.lua"
    lines = ['wrk.headers["Content-Type"] = "application/json"']
    if body:
        lines += ['wrk.method = "POST"', f"wrk.body = {json.dumps(body)}"]
    script.write_text("\n".join(lines))
    url = f"http://127.0.0.1:{node.port}{path}"
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{WRK_S}s", "-s", str(script), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in said, said
    found = re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert found is not None, said
    return float(found[1])


def _idle(folder: Path) -> Figure:
    """Memory of a node that serves and does nothing."""
    folder.mkdir()
    node = WherryBatches(folder)
    try:
        node.start()
        size: Any = node.resident_bytes()
    finally:
        node.stop()
        shutil.rmtree(folder, ignore_errors=True)
    bare = subprocess.run(
        [sys.executable, "-c", "import pyarrow, numpy; print(open('/proc/self/statm').read().split()[1])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pages = int(bare) * os.sysconf("SC_PAGESIZE")
    return Figure("http.idle_memory", size / 1e6, "MB", "python with pyarrow and numpy loaded", pages / 1e6)
