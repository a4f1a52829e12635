"""Instances that fail are set aside and probed; works with every balancer.

    in use ──3 failures in a row──► set aside ──pause over──► probed with one call ──answered──► in use
                                        ▲                              │
                                        └──────── twice the pause ◄── failed

It never leaves a call without an instance: where all are set aside, the least bad one is tried. It never takes a
session away from an instance that is in use.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from wherry.mesh.instance import Instance
from wherry.model.pauses import growing
from wherry.service.balancing.balancer import Balancer, check_instances
from wherry.service.balancing.fastest import Fastest
from wherry.service.balancing.round_robin import RoundRobin
from wherry.service.balancing.speeds import InstanceStatistics, Speeds

FAILURES_IN_A_ROW = 3

PAUSE_S = 0.5
"""Before the first probe; doubled with each failure from then on."""

PAUSE_S_MAX = 30.0

DRAWS_MAX = 16
"""Of the balancer, for an instance that is not among those to be left out; then any of the others is taken."""

PROBE_S_MAX = 60.0
"""A probe whose end was not reported by then counts as lost, and another one is sent."""


class _Failing:
    """An instance whose last calls failed."""

    __slots__ = ("due", "failures", "probed")

    def __init__(self) -> None:
        self.failures = 0
        self.due = 0.0  # when the next probe may be sent
        self.probed = False


class SetAside:
    """A balancer that chooses among the instances in use, and measures all of them.

    Parameters
    ----------
    balancer
        What chooses among the instances in use.
    """

    def __init__(self, balancer: Balancer) -> None:
        self._balancer = balancer
        self._fastest = balancer if isinstance(balancer, Fastest) else None
        self.speeds = self._fastest.speeds if self._fastest else Speeds()
        self._instances: tuple[Instance, ...] = ()
        self._there: dict[str, Instance] = {}
        self._in_use: tuple[Instance, ...] = ()
        self._failing: dict[str, _Failing] = {}
        self._aside: dict[str, _Failing] = {}
        self._due = 0.0  # the earliest of those that are set aside
        self._chance = 0.5

    @property
    def sticky(self) -> bool:
        """See `Balancer`."""
        return self._balancer.sticky

    def for_method(self) -> Balancer | None:
        """Return the turns of one method, where instances take turns: methods that alternate would share theirs."""
        return RoundRobin() if type(self._balancer) is RoundRobin else None

    def choose(
        self,
        instances: tuple[Instance, ...],
        *,
        session: str | None,
        chance: float,
        now: float,
        turns: Balancer | None = None,
    ) -> Instance:
        """See `Balancer`; `turns` is what `for_method` returned."""
        balancer = self._balancer if turns is None else turns
        if instances is not self._instances or not instances:
            self._follow(instances)
        self._chance = chance
        if not self._aside:
            return balancer.choose(instances, session=session, chance=chance, now=now)
        if self._balancer.sticky and session is not None:
            return self._of_session(session, chance, now)
        if now >= self._due:
            for each in instances:
                if self._probes(each, now):
                    return each
        if not self._in_use:
            return min(instances, key=lambda each: (self._aside[each.id].failures, self._aside[each.id].due))
        return balancer.choose(self._in_use, session=session, chance=chance, now=now)

    def choose_other(
        self,
        without: Container[str],
        *,
        session: str | None,
        chance: float,
        now: float,
        turns: Balancer | None = None,
    ) -> Instance | None:
        """Return an instance that is not in `without`, one in use if there is one; None without any.

        Among the instances of the last `choose`.
        """
        found = tuple(each for each in self._in_use if each.id not in without)
        if not found:
            found = tuple(each for each in self._instances if each.id not in without)
            return found[int(chance * len(found))] if found else None
        balancer = self._balancer if turns is None else turns
        if balancer.sticky:
            return balancer.choose(found, session=session, chance=chance, now=now)
        # From all in use, so that the balancer keeps what it knows of them.
        for _ in range(DRAWS_MAX):
            drawn = balancer.choose(self._in_use, session=session, chance=chance, now=now)
            if drawn.id not in without:
                return drawn
            chance = _next(chance)
        return found[int(chance * len(found))]

    def choose_second(self, without: Container[str], *, chance: float, now: float) -> Instance | None:
        """Return an instance in use for a hedge, one that is not in `without`: the faster of two; None without any.

        It takes nobody's turn: where instances take turns, the slow one would get the next call again for it.
        """
        found = [each for each in self._in_use if each.id not in without]
        if not found:
            return None
        drawn = (found[int(chance * len(found))], found[int(_next(chance) * len(found))])
        speeds = self.speeds
        return min(drawn, key=lambda each: speeds.seconds(each.id, now))

    def began(self, instance_id: str, now: float) -> None:
        """See `Balancer`."""
        self._balancer.began(instance_id, now)
        if self._fastest is None:
            self.speeds.began(instance_id, now)

    def ended(self, instance_id: str, now: float, seconds: float, ok: bool | None) -> None:
        """See `Balancer`."""
        self._balancer.ended(instance_id, now, seconds, ok)
        if self._fastest is None:
            self.speeds.ended(instance_id, now, seconds, ok)
        if ok is None:
            self._ended_unknown(instance_id, now)
        elif not ok:
            self._failed(instance_id, now)
        elif instance_id in self._failing:
            del self._failing[instance_id]
            if instance_id in self._aside:
                del self._aside[instance_id]
                self._sort()

    def statistics(self, now: float) -> tuple[InstanceStatistics, ...]:
        """Return what is known of each instance that was called."""
        found = (self._fastest or self.speeds).statistics(now)
        return tuple(msgspec.structs.replace(each, set_aside=each.id in self._aside) for each in found)

    def _of_session(self, session: str, chance: float, now: float) -> Instance:
        """Return the instance of a session; while that is set aside and not probed, its instance among the others."""
        own = self._balancer.choose(self._instances, session=session, chance=chance, now=now)
        if own.id not in self._aside or not self._in_use or self._probes(own, now):
            return own
        return self._balancer.choose(self._in_use, session=session, chance=chance, now=now)

    def _probes(self, instance: Instance, now: float) -> bool:
        """Return whether this call may go to the instance as its one probe, and note it."""
        state = self._aside.get(instance.id)
        if state is None or now < state.due:
            return False
        state.due = now + PROBE_S_MAX
        state.probed = True
        self._due = min(each.due for each in self._aside.values())
        return True

    def _failed(self, instance_id: str, now: float) -> None:
        if instance_id not in self._there:
            return
        state = self._failing.setdefault(instance_id, _Failing())
        # Calls that were under way when it was set aside say nothing new: only its probe makes the pause longer.
        if instance_id in self._aside and not state.probed and self._in_use:
            return
        state.failures += 1
        if state.failures < FAILURES_IN_A_ROW:
            return
        state.probed = False
        pause = growing(PAUSE_S, PAUSE_S_MAX, state.failures - FAILURES_IN_A_ROW)
        state.due = now + pause * (0.5 + 0.5 * self._chance)
        self._aside[instance_id] = state
        self._sort()

    def _ended_unknown(self, instance_id: str, now: float) -> None:
        """Let another call probe an instance, after the pause, if this one was to."""
        state = self._aside.get(instance_id)
        if state is not None and state.probed:
            state.probed = False
            state.due = now + PAUSE_S
            self._due = min(each.due for each in self._aside.values())

    def _follow(self, instances: tuple[Instance, ...]) -> None:
        check_instances(instances)
        before, self._there = self._there, {each.id: each for each in instances}
        self._instances = instances
        self.speeds.keep(self._there)
        for known in (self._failing, self._aside):
            # Another record of the same id: the process was started again, or moved.
            for each in [each for each in known if self._there.get(each) != before.get(each)]:
                del known[each]
        self._sort()

    def _sort(self) -> None:
        self._in_use = tuple(each for each in self._instances if each.id not in self._aside)
        self._due = min((each.due for each in self._aside.values()), default=0.0)


def _next(chance: float) -> float:
    """Return another number from 0 up to and without 1, for a second draw of one decision."""
    return (chance * 7.0 + 0.381966) % 1.0
