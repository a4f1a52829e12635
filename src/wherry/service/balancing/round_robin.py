"""Round robin: one instance after the other, in the order of their ids.

Each call goes to the instance whose id follows the one before it, in a circle. So of any two instances, over any time
in which both are there, neither gets more than one call more than the other, whichever others come and go meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import ClassVar

from wherry.mesh.instance import Instance
from wherry.service.balancing.balancer import check_instances


class RoundRobin:
    """Gives each instance as many calls as the others; each client begins at another instance."""

    sticky: ClassVar[bool] = False

    def __init__(self) -> None:
        self._instances: tuple[Instance, ...] = ()
        self._next = 0

    def choose(self, instances: tuple[Instance, ...], *, session: str | None, chance: float, now: float) -> Instance:
        """See `Balancer`."""
        if instances is not self._instances or not instances:
            self._follow(instances, chance)
        at = self._next
        self._next = at + 1 if at + 1 < len(instances) else 0
        return instances[at]

    def began(self, instance_id: str, now: float) -> None:
        """See `Balancer`."""

    def ended(self, instance_id: str, now: float, seconds: float, ok: bool | None) -> None:
        """See `Balancer`."""

    def _follow(self, instances: tuple[Instance, ...], chance: float) -> None:
        check_instances(instances)
        if self._instances:
            last = self._instances[self._next - 1].id  # before the first comes the last
            self._next = bisect_right(instances, last, key=lambda each: each.id) % len(instances)
        else:
            self._next = int(chance * len(instances))
        self._instances = instances
