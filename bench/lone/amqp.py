"""AMQP one message at a time, by pika's `BlockingConnection` with a confirm each: at full speed, and paced.

The same code over Wherry, a quorum queue of RabbitMQ and a classic one; all of them durable, all messages persistent.
"""

from __future__ import annotations

from bench.figure import Figure
from bench.lone.shapes import RATE
from bench.lone.turns import Contender, Contenders, Servers, by_sides, compared, in_turn
from bench.peers.rabbitmq import RabbitMq
from bench.peers.wherry import WherryAmqp

COUNT = 2_000
PACED_S = 3


def figures(scale: int) -> list[Figure]:
    """Measure both; nothing where there is no RabbitMQ to compare with."""
    result: list[Figure] = []
    if not RabbitMq.is_installed():
        return result
    steps = {"blocking": (COUNT, 0), "blocking_paced": (RATE * PACED_S, RATE)}
    with Servers() as servers:
        for label, (count, rate) in steps.items():
            contenders = _contenders(count // scale, rate)
            found = in_turn(servers, f"lone.amqp {label}", contenders, scale)
            result += compared(f"amqp.{label}", "wherry", found, contenders)
    return result


def _contenders(count: int, rate: int) -> Contenders:
    quorum, classic = (by_sides("pika", "blocking", count, kind, rate) for kind in ("quorum", "classic"))
    return {
        "wherry": Contender(WherryAmqp, quorum),
        "quorum": Contender(RabbitMq, quorum),
        "classic": Contender(RabbitMq, classic, "RabbitMQ classic queue, pika, publisher confirms"),
    }
