"""AMQP: the same clients over Wherry and over RabbitMQ, in turn, in the same run."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from bench import flow
from bench.figure import Figure
from bench.measuring import disk
from bench.peers.peer import served
from bench.peers.rabbitmq import RabbitMq, parameters
from bench.peers.wherry import WherryAmqp

COUNTS = {"pika": 40_000, "aio_pika": 10_000, "transient": 40_000, "fanout": 5_000, "priority": 6_000, "calls": 10_000}
ROUNDS = 3
WORDS = {
    "pika": "msgs/s, pika, confirms, on disk",
    "aio_pika": "msgs/s, aio-pika, confirms, on disk",
    "transient": "msgs/s, pika, in memory",
    "fanout": "published/s to 10 queues",
    "priority_load": "msgs/s, 256 levels",
    "priority_drain": "msgs/s, 256 levels",
    "calls": "calls/s, 64 under way",
}


def figures(scale: int) -> list[Figure]:
    """Return everything about AMQP; nothing where RabbitMQ is not installed, for there is nothing to compare with."""
    if not RabbitMq.is_installed():
        return []
    from bench.amqp_sides import CASES  # noqa: PLC0415  needs pika

    rates: dict[str, dict[str, list[float]]] = {}
    with (
        tempfile.TemporaryDirectory(dir=disk(), prefix="bench-amqp-") as root,
        served(WherryAmqp, Path(root) / "wherry") as ours,
        served(RabbitMq, Path(root) / "rabbitmq") as theirs,
    ):
        ports = {"wherry": ours.reached_at, "rabbitmq": theirs.reached_at}
        for name in CASES:
            for _ in range(ROUNDS):
                for side, port in ports.items():
                    for what, rate in _flow(name, port, max(100, COUNTS[name] // scale)).items():
                        rates.setdefault(what, {}).setdefault(side, []).append(rate)
    return [_figure(what, found) for what, found in rates.items()]


def _figure(what: str, found: dict[str, list[float]]) -> Figure:
    ours, theirs = (statistics.median(found[side]) for side in ("wherry", "rabbitmq"))
    return Figure(f"amqp.{what}", ours, WORDS[what], "RabbitMQ", theirs)


def _flow(name: str, port: int, count: int) -> dict[str, float]:
    """Return messages a second, by what was measured."""
    import pika  # noqa: PLC0415  an extra

    from bench.amqp_sides import CASES  # noqa: PLC0415

    with pika.BlockingConnection(parameters(port)) as connection:
        CASES[name].set_up(connection.channel())
    sides = flow.sides("bench.amqp_sides", name, port, count)
    if CASES[name].together:
        return {name: flow.together(sides, count)}
    loaded = flow.results({"produce": sides["produce"]})["produce"]
    drained = flow.results({"consume": sides["consume"]})["consume"]
    took = {"load": loaded["ended"] - loaded["began"], "drain": drained["ended"] - drained["began"]}
    return {f"{name}_{what}": count / seconds for what, seconds in took.items()}
