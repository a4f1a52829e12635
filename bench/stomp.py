"""STOMP: the same client over Wherry and over RabbitMQ's plugin, in turn, in the same run."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from bench import flow, stomp_stalled
from bench.figure import Figure
from bench.measuring import disk
from bench.peers.peer import free_port
from bench.peers.rabbitmq import RabbitMq
from bench.peers.wherry import WherryMessages

COUNTS = {"durable": 20_000, "transient": 20_000, "fanout": 2_000}
ROUNDS = 3
WORDS = {
    "durable": "msgs/s, receipts, on disk, acks",
    "transient": "msgs/s, in memory",
    "fanout": "sent/s to 10 subscribers",
}


class WherryStomp(WherryMessages):
    """A node, reached over STOMP."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.stomp_port = free_port()

    def run(self, *command: str, **more: object) -> None:
        super().run(*command, "--stomp-port", str(self.stomp_port), "--amqp-port", "0", "--flight-port", "0", **more)


class RabbitStomp(RabbitMq):
    """RabbitMQ with its plugin."""

    plugins = "rabbitmq_stomp"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.stomp_port = free_port()

    def settings(self) -> str:
        return f"stomp.listeners.tcp.1 = 127.0.0.1:{self.stomp_port}\n"


def figures(scale: int) -> list[Figure]:
    """Return everything about STOMP; nothing where RabbitMQ is not installed, for there is nothing to compare with."""
    if not RabbitMq.is_installed() or find_spec("stomp") is None:
        return []
    rates: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(dir=disk(), prefix="bench-stomp-") as root, ExitStack() as stack:
        ports: dict[str, int] = {}
        stalled: list[Figure] = []
        for name, kind in (("wherry", WherryStomp), ("rabbitmq", RabbitStomp)):
            folder = Path(root) / name
            folder.mkdir()
            peer: WherryStomp | RabbitStomp = kind(folder)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(peer.stop)
            peer.start()
            ports[name] = peer.stomp_port
            if isinstance(peer, WherryStomp):
                stalled = stomp_stalled.figures(peer, scale)
        for case, count in COUNTS.items():
            for _ in range(ROUNDS):
                for side, port in ports.items():
                    few = max(100, count // scale)
                    rate = flow.together(flow.sides("bench.stomp_sides", case, port, few), few)
                    rates.setdefault(case, {}).setdefault(side, []).append(rate)
    return [
        Figure(
            f"stomp.{case}",
            statistics.median(found["wherry"]),
            WORDS[case],
            "RabbitMQ's plugin",
            statistics.median(found["rabbitmq"]),
        )
        for case, found in rates.items()
    ] + stalled
