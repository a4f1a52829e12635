"""Random priorities: load 100,000 messages, then drain them by pulls of a thousand, with acks."""

from __future__ import annotations

from bench import flow
from bench.figure import Figure
from bench.lone.turns import Contender, Servers, compared, in_turn
from bench.measuring import Measured
from bench.peers.peer import Peer
from bench.peers.redis import Redis
from bench.peers.wherry import SUBSCRIPTION, WherryNode

COUNT = 100_000


POPPED = "Redis sorted set, ZADD in pipelines, ZPOPMIN without acks, appendfsync always"


def figures(scale: int) -> list[Figure]:
    """Measure load and drain."""
    count = COUNT // scale

    def ours(node: WherryNode) -> Measured:
        node.create({"ranked": {"order": "priority"}}, {SUBSCRIPTION: {}})
        return _loaded_and_drained(node, "wherry", count)

    contenders = {
        "native": Contender(WherryNode, ours),
        "redis": Contender(Redis, lambda peer: _loaded_and_drained(peer, "redis", count), POPPED),
    }
    with Servers() as servers:
        found = in_turn(servers, "lone.priority", contenders, scale)
    return compared("priority", "native", found, contenders)


def _loaded_and_drained(peer: Peer, module: str, count: int) -> Measured:
    """Run one side after the other."""
    sides = flow.sides(f"bench.lone.sides.{module}", "priority", peer.reached_at, count)
    result: Measured = {}
    for role, word in (("produce", "load"), ("consume", "drain")):
        before = peer.processor_s()
        report = flow.results({role: sides[role]})[role]
        result[f"{word}_rate"] = count / (report["ended"] - report["began"])
        result[f"{word}_server_us"] = (peer.processor_s() - before) / count * 1e6
        result[f"{word}_clients_us"] = report["cpu"] / count * 1e6
    return result
