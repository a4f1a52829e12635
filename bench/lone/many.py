"""Thirty-two producers that each wait for every confirm, and thirty-two consumers that each ack every message."""

from __future__ import annotations

from bench.figure import Figure
from bench.lone.turns import Contender, Servers, by_sides, compared, in_turn
from bench.peers.rabbitmq import RabbitMq
from bench.peers.redis import Redis
from bench.peers.wherry import WherryNode

COUNT = 8_000


def figures(scale: int) -> list[Figure]:
    """Measure the rate, the time to a confirm and the age at arrival."""
    count = COUNT // scale
    contenders = {
        "native": Contender(WherryNode, by_sides("wherry", "many", count)),
        "redis": Contender(Redis, by_sides("redis", "many", count)),
        "rabbitmq": Contender(
            RabbitMq, by_sides("aio_pika", "many", count), "RabbitMQ quorum queue, aio-pika, confirms"
        ),
    }
    with Servers() as servers:
        found = in_turn(servers, "lone.many", contenders, scale)
    return compared("many", "native", found, contenders)
