"""Calls of 256 B: 64 under way, and one. The peers take turns, and each figure is the median of the rounds."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from bench.figure import Figure
from bench.measuring import Measured, described, disk, medians, processor_s, progress
from bench.peers.nats import Nats
from bench.peers.peer import free_port, served

SIDES = {"wherry": "uvloop", "zeromq": "zmq", "nats": "nats", "grpc": "grpc", "aiohttp": "aiohttp"}
"""What is measured, and the module that it needs."""

AGAINST = {
    "zeromq": "ZeroMQ DEALER/ROUTER, pyzmq",
    "nats": "NATS request and reply, nats-py",
    "grpc": "grpcio, asyncio",
    "aiohttp": "aiohttp, POST",
}

COUNTS = {64: 100_000, 1: 10_000}
SLOWER = {"nats": 4, "grpc": 10, "aiohttp": 10}
"""By how much fewer calls are made, so that a round lasts seconds for all."""

ROUNDS = 3
START_S = 30.0


@contextmanager
def provided(name: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the provider of a side."""
    process = subprocess.Popen([sys.executable, "-m", "bench.service.side", name, "provide", str(port)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def called(name: str, port: int, count: int, under_way: int) -> dict[str, float]:
    """Run the caller of a side to its end."""
    command = [sys.executable, "-m", "bench.service.side", name, "call", str(port), str(count), str(under_way)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


def is_ready(name: str, port: int) -> bool:
    """Return whether a call is answered."""
    with suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
        called(name, port, 64, 1)
        return True
    return False


def measured(name: str, under_way: int, count: int, root: Path) -> Measured:
    """Measure a side once."""
    port = free_port()
    if name == "nats":
        with served(Nats, root / f"nats-{port}") as server, provided(name, server.port) as provider:
            return _measured(name, provider, server.port, under_way, count)
    with provided(name, port) as provider:
        return _measured(name, provider, port, under_way, count)


def _measured(name: str, provider: subprocess.Popen[bytes], port: int, under_way: int, count: int) -> Measured:
    end = time.monotonic() + START_S
    while not is_ready(name, port):
        if time.monotonic() > end:
            raise RuntimeError(f"the provider of {name} does not answer")
    before = processor_s(provider.pid)
    found = called(name, port, count, under_way)
    found["provider_us"] = (processor_s(provider.pid) - before) / count * 1e6
    return found


def figures(scale: int) -> list[Figure]:
    """Measure all sides that are installed, in turn."""
    sides = [name for name, module in SIDES.items() if find_spec(module) is not None]
    if "nats" in sides and not Nats.is_installed():
        sides.remove("nats")
    runs: dict[tuple[int, str], list[Measured]] = {}
    with tempfile.TemporaryDirectory(dir=disk(), prefix="bench-service-") as root:
        for under_way, count in COUNTS.items():
            for _ in range(ROUNDS):
                for name in sides:
                    few = max(640, count // SLOWER.get(name, 1) // scale)
                    found = measured(name, under_way, few - few % under_way, Path(root))
                    runs.setdefault((under_way, name), []).append(found)
                    progress(f"service, {under_way} under way, {name}: {described(found)}")
    middle = {key: medians(found) for key, found in runs.items()}
    rows: list[Figure] = []
    for name in sides[1:]:
        ours, theirs = middle[64, "wherry"], middle[64, name]
        rates = ours["calls_per_s"], theirs["calls_per_s"]
        rows.append(Figure(f"service.calls.{name}", rates[0], "calls/s, 64 under way", AGAINST[name], rates[1]))
    for name in sides[1:]:
        ours, theirs = middle[1, "wherry"], middle[1, name]
        rows.append(Figure(f"service.p50.{name}", ours["p50_us"], "µs, one under way", AGAINST[name], theirs["p50_us"]))
    return rows
