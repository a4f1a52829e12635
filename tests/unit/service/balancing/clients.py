"""Clients and instances in a world of their own: a clock that jumps from event to event, and one seeded chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from wherry.mesh.instance import Instance
from wherry.service.balancing.balancer import Balancer


def instances(*names: str) -> tuple[Instance, ...]:
    return tuple(Instance(service="billing", id=name, url=f"http://{name}.example:7080") for name in sorted(names))


def numbered(count: int) -> tuple[Instance, ...]:
    return instances(*(f"i{at:04}" for at in range(count)))


def chosen(balancer: Balancer, there: tuple[Instance, ...], session: str | None = None, chance: float = 0.0) -> str:
    return balancer.choose(there, session=session, chance=chance, now=0.0).id


class World:
    """Clients that call without a pause, each with some calls under way."""

    def __init__(self, balancers: list[Balancer], there: tuple[Instance, ...], seed: int = 1) -> None:
        self.there = there
        self.now = 0.0
        self.counts: Counter[str] = Counter()
        self._random = Random(seed)
        self._balancers = balancers
        self._ends: list[tuple[float, int, int, str, float]] = []
        self._number = 0

    def start(self, under_way: int, seconds: Callable[[str, Random], float]) -> None:
        for client in range(len(self._balancers)):
            for _ in range(under_way):
                self._call(client, seconds)

    def run(self, until: float, seconds: Callable[[str, Random], float]) -> None:
        """Go on up to this instant; `seconds` says how long a call to an instance takes."""
        while self._ends and self._ends[0][0] <= until:
            self.now, _, client, name, took = heappop(self._ends)
            self._balancers[client].ended(name, self.now, took, True)
            self._call(client, seconds)
        self.now = until

    def _call(self, client: int, seconds: Callable[[str, Random], float]) -> None:
        balancer = self._balancers[client]
        name = balancer.choose(self.there, session=None, chance=self._random.random(), now=self.now).id
        balancer.began(name, self.now)
        self.counts[name] += 1
        took = seconds(name, self._random)
        self._number += 1
        heappush(self._ends, (self.now + took, self._number, client, name, took))

    def shares(self) -> dict[str, float]:
        """Return the part of the calls that each instance got since the last look."""
        total = sum(self.counts.values())
        found = {each.id: self.counts[each.id] / total for each in self.there}
        self.counts.clear()
        return found
