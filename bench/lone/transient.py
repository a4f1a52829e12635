"""Messages that are never on disk: message by message to one consumer, and to ten subscribers."""

from __future__ import annotations

from bench.figure import Figure
from bench.lone.shapes import SUBSCRIBERS, subscriber
from bench.lone.turns import Contender, Contenders, Servers, by_sides, compared, in_turn
from bench.measuring import Measured
from bench.peers.nats import Nats
from bench.peers.redis import Redis
from bench.peers.wherry import SUBSCRIPTION, WherryNode
from bench.peers.zeromq import ZeroMq

COUNT, FANOUT_COUNT = 100_000, 20_000
PASSING, FAN = "passing", "fan"


def figures(scale: int) -> list[Figure]:
    """Measure both."""
    result: list[Figure] = []
    with Servers() as servers:
        for label, contenders in (("transient", _to_one(COUNT // scale)), ("fanout", _to_ten(FANOUT_COUNT // scale))):
            found = in_turn(servers, f"lone.transient, {label}", contenders, scale)
            result += compared(f"transient.{label}", "native", found, contenders)
    return result


def _to_one(count: int) -> Contenders:
    return {
        "native": Contender(WherryNode, lambda node: _passing(node, "transient", PASSING, [SUBSCRIPTION], count)),
        "nats": Contender(Nats, by_sides("nats", "transient", count, PASSING)),
        "zeromq": Contender(ZeroMq, by_sides("zeromq", "transient", count, PASSING), "ZeroMQ PUSH and PULL, pyzmq"),
    }


def _to_ten(count: int) -> Contenders:
    names = [subscriber(number) for number in range(SUBSCRIBERS)]
    return {
        "native": Contender(WherryNode, lambda node: _passing(node, "fanout", FAN, names, count)),
        "redis": Contender(Redis, by_sides("redis", "fanout", count, FAN), "Redis PUBLISH and SUBSCRIBE"),
        "nats": Contender(Nats, by_sides("nats", "fanout", count, FAN)),
        "zeromq": Contender(ZeroMq, by_sides("zeromq", "fanout", count, FAN), "ZeroMQ PUB and SUB, pyzmq"),
    }


def _passing(node: WherryNode, case: str, topic: str, subscriptions: list[str], count: int) -> Measured:
    node.create({topic: {"persistent": False}}, {name: {"acks": False} for name in subscriptions})
    return by_sides("wherry", case, count, topic)(node)
