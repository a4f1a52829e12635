"""What one core of the node can do, loaded by the C client, which costs little: publish, deliver and ack together.

Against a whole core: the ratio is the share of one core that the node used, with the threads that wait for the disk.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.figure import Figure
from bench.lone.turns import Contender, Servers, in_turn
from bench.measuring import Measured, progress
from bench.peers.wherry import SUBSCRIPTION, TOPIC, WherryNode

ROWS = 1_000
COUNTS = {1: 100_000, ROWS: 1_000_000}
"""Messages of a run, by messages in a frame."""
RUN_S = 120.0

PROGRAM = Path("build/c/bench")


def figures(scale: int) -> list[Figure]:
    """Measure single messages and batches, on disk and in memory; nothing where the client cannot be built."""
    built = subprocess.run(["make", "--silent", "c"], capture_output=True, text=True, check=False)
    if built.returncode:
        progress(f"lone.node: left out, the C client does not build: {built.stderr.strip()}")
        return []
    contenders = {
        f"{words}_{kept}": Contender(WherryNode, _loaded(rows, COUNTS[rows] // scale, is_transient=kept == "transient"))
        for kept in ("durable", "transient")
        for rows, words in ((1, "single"), (ROWS, "batches"))
    }
    with Servers() as servers:
        found = in_turn(servers, "lone.node by the C client", contenders, scale)
    return [figure for name, measures in found.items() for figure in _of(f"lone.node.{name}", measures)]


def _of(name: str, found: Measured) -> list[Figure]:
    core, client = "a whole core of the node", "the C client, both sides"
    unit = "us of the node's processor a message"
    return [
        Figure(f"{name}.rate", found["rate"], "msgs/s", core, 1e6 / found["server_us"]),
        Figure(f"{name}.server_us", found["server_us"], unit, client, found["clients_us"]),
    ]


def _loaded(rows: int, count: int, *, is_transient: bool) -> Callable[[WherryNode], Measured]:
    def measure(node: WherryNode) -> Measured:
        before, began = node.processor_s(), time.monotonic()
        sides = [_side(node, mode, rows, count, is_transient=is_transient) for mode in ("consume", "publish")]
        reports = [json.loads(side.communicate(timeout=RUN_S)[0]) for side in sides]
        seconds, spent = time.monotonic() - began, node.processor_s() - before
        clients = sum(report["processor_s"] for report in reports)
        return {
            "rate": count / seconds,
            "server_us": spent / count * 1e6,
            "server_busy": spent / seconds,
            "clients_us": clients / count * 1e6,
        }

    return measure


def _side(node: WherryNode, mode: str, rows: int, count: int, *, is_transient: bool) -> subprocess.Popen[str]:
    place = ["--url", f"http://127.0.0.1:{node.port}", "--topic", TOPIC, "--subscription", SUBSCRIPTION, "--keep"]
    amount = ["--count", str(count), "--rows", str(rows), "--in-flight", str(max(8, 1_024 // rows))]
    more = ["--transient"] if is_transient and mode == "publish" else []
    command = [str(PROGRAM.resolve()), mode, *place, *amount, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
