"""Delayed messages: how late they are. By AMQP as queues that expire and dead-letter, and by a timeline topic."""

from __future__ import annotations

from collections.abc import Callable

from bench.figure import Figure
from bench.lone.shapes import DELAY_COUNT
from bench.lone.turns import Contender, Servers, by_sides, compared, in_turn
from bench.measuring import Measured
from bench.peers.peer import Peer
from bench.peers.rabbitmq import RabbitMq
from bench.peers.redis import Redis
from bench.peers.wherry import SUBSCRIPTION, WherryAmqp, WherryNode

CLASSIC = "RabbitMQ classic queues, pika, publisher confirms"
POLLED = "Redis sorted set, polled each 1 ms, appendfsync always"


def figures(scale: int) -> list[Figure]:
    """Measure both ways."""
    return by_amqp(scale) + by_timeline(scale)


def by_amqp(scale: int) -> list[Figure]:
    """Measure 40 queues that dead-letter into one; nothing where there is no RabbitMQ to compare with."""
    if not RabbitMq.is_installed():
        return []
    measure = by_sides("pika", "delays", DELAY_COUNT // scale)
    contenders = {"wherry": Contender(WherryAmqp, measure), "classic": Contender(RabbitMq, measure, CLASSIC)}
    with Servers() as servers:
        found = in_turn(servers, "lone.delays by AMQP", contenders, scale)
    return compared("delays.amqp", "wherry", found, contenders)


def by_timeline(scale: int) -> list[Figure]:
    """Measure a timeline topic."""
    contenders = {
        "timeline": Contender(WherryNode, _on_timeline(by_sides("wherry", "delays", DELAY_COUNT // scale))),
        "redis": Contender(Redis, by_sides("redis", "delays", DELAY_COUNT // scale), POLLED),
    }
    with Servers() as servers:
        found = in_turn(servers, "lone.delays by timeline", contenders, scale)
    return compared("delays.timeline", "timeline", found, contenders)


def _on_timeline(measure: Callable[[Peer], Measured]) -> Callable[[WherryNode], Measured]:
    def on_topic(node: WherryNode) -> Measured:
        node.create({"delays": {"order": "timeline"}}, {SUBSCRIPTION: {}})
        return measure(node)

    return on_topic
