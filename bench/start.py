"""From nothing to the first message (row A17): the node and the embedded broker, beside Redis and bare Python.

Each figure is seconds from the start of a process to the moment when a message was published, pulled and acked; median
of several fresh processes on empty directories, those of each side in turn.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figure import Figure
from bench.measuring import disk
from bench.peers.peer import Peer
from bench.peers.redis import Redis
from bench.peers.wherry import WherryMessages

ROUNDS = 5
GOAL_S = 2.0

EMBEDDED = """
import asyncio, sys, wherry

async def main():
    async with wherry.open(sys.argv[1]) as broker:
        await broker.create_topic("jobs")
        await broker.subscribe("jobs", "workers")
        await broker.publish("jobs", [b"hello"])
        consumer = await broker.consumer("jobs", "workers")
        await (await consumer.pull(1)).ack()

asyncio.run(main())
"""


def figures(scale: int) -> list[Figure]:
    """Return everything about the first message."""
    servers: dict[str, type[Peer]] = {"node": WherryMessages, **({"redis": Redis} if Redis.is_installed() else {})}
    programs = {"embedded": EMBEDDED, "python": "import pyarrow, numpy"}
    took: dict[str, list[float]] = {name: [] for name in (*servers, *programs)}
    with tempfile.TemporaryDirectory(dir=disk(), prefix="bench-start-") as root:
        for number in range(max(1, ROUNDS // scale)):
            for name, seconds in took.items():
                folder = Path(root) / f"{name}-{number}"
                folder.mkdir()
                if name in servers:
                    seconds.append(_first_message_s(servers[name](folder)))
                else:
                    seconds.append(_program_s(programs[name], folder))
                shutil.rmtree(folder, ignore_errors=True)
    median = {name: statistics.median(each) for name, each in took.items()}
    bare = "python that imports pyarrow and numpy"
    result = [
        Figure("start.node", median["node"], "s to the first message", "2 s", GOAL_S),
        Figure("start.embedded", median["embedded"], "s to the first message", bare, median["python"]),
    ]
    if "redis" in median:
        result.append(Figure("start.node_by_redis", median["node"], "s to the first message", "Redis", median["redis"]))
    return result


def _first_message_s(peer: Peer) -> float:
    """Start a server, send it a message, receive and ack it; stopping does not count."""
    began = time.perf_counter()
    try:
        peer.start()
        peer.produce(peer.port, 1, None)
        peer.consume(peer.port, 1)
        return time.perf_counter() - began
    finally:
        peer.stop()


def _program_s(source: str, folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", source, str(folder / "data")], check=True)
    return time.perf_counter() - began
