"""A thousand queues with one message a second each, beside one queue with all of them, and beside Redis."""

from __future__ import annotations

from bench.figure import Figure
from bench.lone.shapes import QUEUES, RATE, queue
from bench.lone.turns import Contender, Servers, by_sides, compared, in_turn
from bench.measuring import Measured
from bench.peers.redis import Redis
from bench.peers.wherry import SUBSCRIPTION, WherryNode

SECONDS = 3


class OneQueue(WherryNode):
    """A node of its own, so that a thousand idle queues do not count."""

    name = "Wherry with one queue"


STREAMS = f"Redis, {QUEUES:,} streams in one XREADGROUP, appendfsync always"


def figures(scale: int) -> list[Figure]:
    """Measure ages and the processor of the node."""
    contenders = {
        "native": Contender(WherryNode, lambda node: _over(node, QUEUES, scale)),
        "one": Contender(OneQueue, lambda node: _over(node, 1, scale)),
        "redis": Contender(Redis, by_sides("redis", "queues", RATE * SECONDS // scale, QUEUES), STREAMS),
    }
    with Servers() as servers:
        found = in_turn(servers, f"lone.queues, {QUEUES:,}", contenders, scale)
    return compared("queues", "native", found, contenders)


def _over(node: WherryNode, queues: int, scale: int) -> Measured:
    node.create({queue(number): {} for number in range(queues)}, {SUBSCRIPTION: {}})
    return by_sides("wherry", "queues", RATE * SECONDS // scale, queues)(node)
