"""The broker as a service: two client processes beside the node, 256-byte messages, fsync before every confirm.

Every figure is measured in the same run as what it is compared with; brokers take turns, since the machine is noisy.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench import flow, requests
from bench.figure import Figure
from bench.measuring import disk, quantile
from bench.peers import PEERS
from bench.peers.peer import SIZE, served
from bench.peers.wherry import WherryNode

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


class Flow(NamedTuple):
    """One run from a producer to a consumer."""

    rate: float
    ages: list[float]


def figures(scale: int) -> list[Figure]:
    """Return everything about HTTP, beside the peers that are installed."""
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
    """Compare ours with each peer. Every side makes each message and reads each message that it receives."""
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
        ours = quantile(ages["messages"], share)
        sync = quantile(syncs, share)
        result.append(Figure(f"http.latency_{word}", ours, f"ms at {RATE:,}/s", f"raw write+fdatasync, {word}", sync))
        for name in ages.keys() - {"messages"}:
            against = f"{PEERS[name].name}, {word}"
            theirs = quantile(ages[name], share)
            result.append(Figure(f"http.latency_{word}_by_{name}", ours, f"ms at {RATE:,}/s", against, theirs))
    return result


def _syncs_ms(root: Path) -> list[float]:
    """Return what the disk alone takes for one message."""
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
    """Run one producer and one consumer over a fresh server; the rate is from the first publish to the last ack."""
    with served(PEERS[name], folder) as peer:
        reports = flow.results(flow.sides("bench.worker", name, peer.port, count, *([] if rate is None else [rate])))
    seconds = reports["consume"]["ended"] - reports["produce"]["began"]
    return Flow(count / seconds, reports["consume"]["found"]["age"])


def _requests(folder: Path) -> list[Figure]:
    """Measure one JSON message a request over many connections."""
    with served(WherryNode, folder) as node:
        found = requests.measured(node)
    against = f"GET /healthz, {requests.CONNECTIONS} connections"
    return [Figure("http.json_requests", found["rate"], "requests/s, one JSON message each", against, found["healthz"])]


def _idle(folder: Path) -> Figure:
    """Return the memory of a node that serves and does nothing."""
    with served(WherryNode, folder) as node:
        size = node.resident_bytes()
    bare = subprocess.run(
        [sys.executable, "-c", "import pyarrow, numpy; print(open('/proc/self/statm').read().split()[1])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pages = int(bare) * os.sysconf("SC_PAGESIZE")
    return Figure("http.idle_memory", size / 1e6, "MB", "python with pyarrow and numpy loaded", pages / 1e6)
