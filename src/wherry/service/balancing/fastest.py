"""By measured speed: an instance that answers twice as fast gets twice the calls.

The share of an instance is in proportion to 1 / mean response time (`speeds`), and at each moment to 1 / (1 + calls
under way). Where shares are in proportion to speed, each instance has as many calls under way as the others, so the
second factor changes no share; it only answers at once where one gets stuck. An instance that was never called gets the
next call. It never leaves an instance out: a slow one still gets its small share, so that its recovery is seen.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from wherry.mesh.instance import Instance
from wherry.service.balancing.balancer import check_instances
from wherry.service.balancing.speeds import InstanceStatistics, Speeds
from wherry.service.balancing.weights import Weights

_WEIGHT = 1e9
"""The weight of an instance with a mean of one second."""

_SLOWEST_S = 1e6
"""A mean above this counts as this."""

_ENDS_FOR_A_TURN = 4
"""After so many calls one instance is weighed anew, each in its turn: what was learned long ago counts less, also of an
instance that gets no calls."""

_GONE_MAX = 64
"""Above this, and as many again as there are instances, what is known of others is dropped."""


class Fastest:
    """Chooses by chance, in proportion to speed: O(log n) for a choice, and for what a call changes.

    Parameters
    ----------
    speeds
        What was measured, if something else has to read it as well.
    """

    sticky: ClassVar[bool] = False

    def __init__(self, speeds: Speeds | None = None) -> None:
        self.speeds = Speeds() if speeds is None else speeds
        self._instances: tuple[Instance, ...] = ()
        self._at: dict[str, int] = {}
        self._weights = Weights([])
        self._untried: list[int] = []
        self._turn = 0

    def choose(self, instances: tuple[Instance, ...], *, session: str | None, chance: float, now: float) -> Instance:
        """See `Balancer`."""
        if instances is not self._instances or not instances:
            self._follow(instances, chance, now)
        if self._untried:
            return instances[self._untried.pop()]
        return instances[self._weights.draw(chance)]

    def began(self, instance_id: str, now: float) -> None:
        """See `Balancer`."""
        speed = self.speeds.began(instance_id, now)
        at = self._at.get(instance_id)
        if at is not None:
            if now - speed.at > 2 * speed.mean:  # no answer for some time: it may be stuck
                speed.seconds(now, self.speeds.typical())
            self._weights.set(at, _weight(speed.mean, speed.under_way))

    def ended(self, instance_id: str, now: float, seconds: float, ok: bool | None) -> None:
        """See `Balancer`."""
        speed = self.speeds.ended(instance_id, now, seconds, ok)
        at = self._at.get(instance_id)
        if at is not None and speed is not None:
            self._weights.set(at, _weight(speed.seconds(now, self.speeds.typical()), speed.under_way))
        self._turn += 1
        if self._instances and self._turn % _ENDS_FOR_A_TURN == 0:
            self._weigh((self._turn // _ENDS_FOR_A_TURN) % len(self._instances), now)

    def statistics(self, now: float) -> tuple[InstanceStatistics, ...]:
        """Return what is known of each instance that was called, with its share of the next calls."""
        return tuple(msgspec.structs.replace(each, share=self.share(each.id)) for each in self.speeds.statistics(now))

    def share(self, instance_id: str) -> float:
        """Return the part of the next calls that this instance gets; 0 if it is not among those to choose from."""
        at = self._at.get(instance_id)
        return 0.0 if at is None else self._weights[at] / self._weights.total

    def _weigh(self, at: int, now: float) -> None:
        self._weights.set(at, self._weight_of(self._instances[at].id, now))

    def _weight_of(self, instance_id: str, now: float) -> int:
        speed = self.speeds.of(instance_id)
        return _weight(self.speeds.seconds(instance_id, now), speed.under_way if speed else 0)

    def _follow(self, instances: tuple[Instance, ...], chance: float, now: float) -> None:
        check_instances(instances)
        self._instances = instances
        if len(self.speeds) > 2 * len(instances) + _GONE_MAX:
            self.speeds.keep({each.id for each in instances})
        self._at = {each.id: at for at, each in enumerate(instances)}
        self._weights = Weights([self._weight_of(each.id, now) for each in instances])
        untried = [at for at, each in enumerate(instances) if each.id not in self.speeds]
        first = int(chance * len(untried))  # clients that start at one time begin at different instances
        self._untried = untried[first:] + untried[:first]


def _weight(seconds: float, under_way: int) -> int:
    return 1 + int(_WEIGHT / (min(_SLOWEST_S, seconds) * (1 + under_way)))
