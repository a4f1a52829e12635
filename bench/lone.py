"""One message at a time: paced, on disk before each confirm, each acked; beside peers that promise the same.

Brokers take turns, and every figure is the median of the rounds. Printed are how old a message is when it arrives, and
what the server spends of the processor for it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.core import _disk as disk
from bench.figure import Figure
from bench.http import _line as line
from bench.http import _quantile as quantile
from bench.http import _side as side
from bench.peers import LONE
from bench.peers.peer import Peer

RATES = (1_000, 3_000)
SECONDS = 5
ROUNDS = 5
OURS = ("lone", "lone_http")

_TICKS = os.sysconf("SC_CLK_TCK")


class Paced(NamedTuple):
    """One paced run."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """Processor time of the server for each message."""


def figures(scale: int) -> list[Figure]:
    """Everything about a lone message, beside the peers that are installed."""
    names = [name for name, peer in LONE.items() if peer.is_installed()]
    rounds = max(1, ROUNDS // scale)
    result: list[Figure] = []
    for rate in RATES:
        found: dict[str, list[Paced]] = {name: [] for name in names}
        with tempfile.TemporaryDirectory(dir=disk(), prefix="bench-lone-") as root:
            for number in range(rounds):
                for name in names:
                    found[name].append(_paced(Path(root) / f"{name}-{number}", name, rate * SECONDS // scale, rate))
        result += _compared(rate, {name: _median(runs) for name, runs in found.items()})
    return result


def _median(runs: list[Paced]) -> Paced:
    return Paced(*(statistics.median(column) for column in zip(*runs, strict=True)))


def _compared(rate: int, found: dict[str, Paced]) -> list[Figure]:
    result = []
    for ours in OURS:
        mine = found[ours]
        result.append(Figure(f"{ours}.{rate}.rate", mine.rate, "msgs/s", "the rate that was asked for", rate))
        for name, theirs in found.items():
            if name in OURS:
                continue
            against = f"{LONE[name].name}, {LONE[name].promise}"
            result += [
                Figure(f"{ours}.{rate}.p50_by_{name}", mine.p50_ms, "ms", against, theirs.p50_ms),
                Figure(f"{ours}.{rate}.p99_by_{name}", mine.p99_ms, "ms", against, theirs.p99_ms),
                Figure(f"{ours}.{rate}.server_by_{name}", mine.cpu_ms, "ms of processor", against, theirs.cpu_ms),
            ]
    return result


def _paced(folder: Path, name: str, count: int, rate: int) -> Paced:
    """Run one producer and one consumer over a fresh server."""
    folder.mkdir()
    peer = LONE[name](folder)
    try:
        peer.start()
        sides = [side(peer, name, role, count, rate) for role in ("consume", "produce")]
        for each in sides:
            line(each)
        before = _cpu_s(peer)
        for each in sides:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        consumed, produced = (json.loads(line(each)) for each in sides)
        spent = _cpu_s(peer) - before
        for each in sides:
            each.wait()
    finally:
        peer.stop()
        shutil.rmtree(folder, ignore_errors=True)
    ages = consumed["ages"]
    seconds = consumed["ended"] - produced["began"]
    return Paced(count / seconds, quantile(ages, 0.5), quantile(ages, 0.99), spent / count * 1e3)


def _cpu_s(peer: Peer) -> float:
    """Return the processor time of a server and the processes that it started."""
    assert peer.server is not None
    children: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rsplit(") ", 1)[1].split()
        except OSError:  # it has ended
            continue
        pid = int(each.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        spent[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
    total, left = 0.0, [peer.server.pid]
    while left:
        pid = left.pop()
        total += spent.get(pid, 0.0)
        left += children.get(pid, [])
    return total
