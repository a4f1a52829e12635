"""How fast each instance answers, as one client sees it: response times that count less the older they are.

The mean of an instance is the time that its calls took, divided by the number of those that ended, each weighed by
exp(-age / 5 s). Calls under way count with the time they have taken so far and with no end; and no mean is below half
of their mean age, so that an instance that stops to answer looks slow within a few of its usual response times. It
never guesses a speed of an instance that was never called.
"""

from __future__ import annotations

from collections.abc import Container
from math import exp

import msgspec

DECAY_S = 5.0
"""After this time a response time counts e times less."""

SECONDS_MIN = 1e-9
"""No mean is below this: the speed of an instance stays finite."""


class InstanceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one client knows of the calls that it made to one instance."""

    id: str
    calls: int
    """That ended."""

    failed: int
    under_way: int
    seconds: float | None
    """The mean response time, calls under way included; None before the first call."""

    share: float | None = None
    """The part of the next calls that this instance gets, where the balancer goes by speed."""

    set_aside: bool = False


class Speed:
    """The calls of one instance."""

    __slots__ = ("at", "began_sum", "calls", "count", "failed", "mean", "total", "under_way")

    def __init__(self) -> None:
        self.calls = 0
        self.failed = 0
        self.under_way = 0
        self.began_sum = 0.0  # of the instants at which the calls under way began
        self.count = 0.0  # calls that ended, decayed to `at`
        self.total = 0.0  # their seconds, decayed to `at`
        self.at = 0.0
        self.mean = 1.0  # as of the last call of `seconds`

    def seconds(self, now: float, typical: float) -> float:
        """Compute the mean response time; an instance of which too little is known is drawn to the `typical` one."""
        kept = exp((self.at - now) / DECAY_S) if now > self.at else 1.0
        count = self.count * kept
        total = self.total * kept
        ages = max(0.0, now * self.under_way - self.began_sum)
        total += ages
        if count < 1.0:
            total += typical * (1.0 - count)
            count = 1.0
        # Answers of equal length are, while under way, half as old on average as when they end.
        self.mean = max(SECONDS_MIN, total / count, 0.5 * ages / self.under_way if ages else 0.0)
        return self.mean

    def add(self, now: float, seconds: float) -> None:
        """Add the time of a call that ended."""
        kept = exp((self.at - now) / DECAY_S) if now > self.at else 1.0
        self.count = self.count * kept + 1.0
        self.total = self.total * kept + seconds
        self.at = max(now, self.at)


class Speeds:
    """The statistics of one client, by instance; some 400 bytes for each, with its place in a balancer."""

    def __init__(self) -> None:
        self._speeds: dict[str, Speed] = {}
        self._all = Speed()

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._speeds

    def __len__(self) -> int:
        return len(self._speeds)

    def began(self, instance_id: str, now: float) -> Speed:
        """Note that a call is sent; return what is known of its instance."""
        speed = self._speeds.get(instance_id)
        if speed is None:
            speed = self._speeds[instance_id] = Speed()
        speed.under_way += 1
        speed.began_sum += now
        return speed

    def ended(self, instance_id: str, now: float, seconds: float, ok: bool | None) -> Speed | None:
        """Note that a call ended; one that no `began` came before, or whose instance was dropped, counts as nothing.

        `ok` is None for a call that says nothing but that an answer takes longer, perhaps.
        """
        speed = self._speeds.get(instance_id)
        if speed is None or not speed.under_way:
            return None
        speed.calls += 1
        speed.under_way -= 1
        speed.began_sum = speed.began_sum - (now - seconds) if speed.under_way else 0.0
        if ok is None:
            if seconds > self.seconds(instance_id, now):
                speed.add(now, seconds)
            return speed
        if not ok:
            speed.failed += 1
            seconds = max(seconds, self.typical())  # to refuse quickly is not to be fast
        speed.add(now, seconds)
        self._all.add(now, seconds)
        return speed

    def typical(self) -> float:
        """Return the mean response time over all calls; one second before the first call ended."""
        return max(SECONDS_MIN, self._all.total / self._all.count) if self._all.count else 1.0

    def seconds(self, instance_id: str, now: float) -> float:
        """Return the mean response time of an instance; the typical one if it was never called."""
        speed = self._speeds.get(instance_id)
        typical = self.typical()
        return typical if speed is None else speed.seconds(now, typical)

    def of(self, instance_id: str) -> Speed | None:
        """Return what is known of an instance; None if it was never called."""
        return self._speeds.get(instance_id)

    def keep(self, instance_ids: Container[str]) -> None:
        """Drop the instances that are not among these."""
        for each in [each for each in self._speeds if each not in instance_ids]:
            del self._speeds[each]

    def statistics(self, now: float) -> tuple[InstanceStatistics, ...]:
        """Return what is known of each instance, sorted by id."""
        typical = self.typical()
        return tuple(
            InstanceStatistics(
                id=name,
                calls=speed.calls,
                failed=speed.failed,
                under_way=speed.under_way,
                seconds=speed.seconds(now, typical) if speed.calls else None,
            )
            for name, speed in sorted(self._speeds.items())
        )
