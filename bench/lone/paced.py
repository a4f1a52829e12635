"""One message at a time: paced, on disk before each confirm, each acked; beside peers that promise the same."""

from __future__ import annotations

from collections.abc import Callable

from bench import flow
from bench.figure import Figure
from bench.lone.turns import Contender, Servers, compared, in_turn
from bench.measuring import Measured
from bench.peers import LONE
from bench.peers.peer import Peer
from bench.peers.wherry import WherryNode

RATES = (1_000, 3_000)
SECONDS = 3
OURS = ("lone", "lone_http")


def figures(scale: int) -> list[Figure]:
    """Measure each rate by the native wire and by HTTP."""
    result: list[Figure] = []
    with Servers() as servers:
        for rate in RATES:
            contenders = {
                name: Contender(WherryNode if name in OURS else kind, _by_worker(name, rate * SECONDS // scale, rate))
                for name, kind in LONE.items()
            }
            found = in_turn(servers, f"lone.paced at {rate:,}/s", contenders, scale)
            for ours, word in zip(OURS, ("native", "http"), strict=True):
                label, asked = f"paced_{rate}.{word}", "the rate that was asked for"
                result.append(Figure(f"lone.{label}.rate", found[ours]["rate"], "msgs/s", asked, rate))
                result += compared(label, ours, found, contenders, OURS)
    return result


def _by_worker(name: str, count: int, rate: int) -> Callable[[Peer], Measured]:
    return lambda peer: flow.measured(flow.sides("bench.worker", name, peer.port, count, rate), count, peer)
