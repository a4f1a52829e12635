"""When a kept call is sent again: pauses that grow, and at once when its service comes back. Without clock or chance.

It never gives up: a call that fails again and again is tried every five minutes, until the log drops it by its age.
"""

from __future__ import annotations

from collections.abc import Callable

from wherry.model.pauses import growing

PAUSE_S = 1.0
"""Before the first resend; doubled with each that fails."""

PAUSE_S_MAX = 300.0

SPREAD_S = 1.0
"""When a service comes back, the resends of all its callers are spread over this time."""


class _Kept:
    """A call that is to be sent again."""

    __slots__ = ("due", "failures", "is_under_way", "service", "tried")

    def __init__(self, service: str, now: float) -> None:
        self.service = service
        self.failures = 0
        self.tried = now
        self.due = now
        self.is_under_way = False


class Schedule:
    """The calls that are to be sent again, by name."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def add(self, name: str, service: str, now: float, chance: float) -> None:
        """Add a call that has just failed; one that is there already is tried no sooner for it."""
        if name not in self._kept:
            self._kept[name] = _Kept(service, now)
            self.failed(name, now, chance)

    def begin(self, name: str) -> None:
        """Note that a call is being sent: it is not due until that has failed."""
        self._kept[name].is_under_way = True

    def remove(self, name: str) -> None:
        """Remove a call that was answered, or dropped."""
        self._kept.pop(name, None)

    def failed(self, name: str, now: float, chance: float) -> None:
        """Note that an attempt failed, if the call is still there."""
        kept = self._kept.get(name)
        if kept is None:
            return
        kept.is_under_way = False
        pause = growing(PAUSE_S, PAUSE_S_MAX, kept.failures)
        kept.failures += 1
        kept.tried = now
        kept.due = now + pause * (0.5 + 0.5 * chance)

    def came(self, service: str, now: float, chance: float) -> None:
        """Note that instances of a service came or changed: its calls are due soon, no sooner than after one pause."""
        for kept in self._kept.values():
            if kept.service == service:
                kept.due = min(kept.due, max(now, kept.tried + PAUSE_S) + SPREAD_S * chance)

    def due(self, now: float, is_there: Callable[[str], bool], most: int) -> list[str]:
        """Return the names of calls that are to be sent now, those that waited longest first."""
        found = [
            (kept.due, name)
            for name, kept in self._kept.items()
            if kept.due <= now and not kept.is_under_way and is_there(kept.service)
        ]
        return [name for _, name in sorted(found)[:most]]

    def next_at(self, is_there: Callable[[str], bool]) -> float | None:
        """Return when the next call is due; None if there is none whose service is there."""
        waiting = (kept.due for kept in self._kept.values() if not kept.is_under_way and is_there(kept.service))
        return min(waiting, default=None)
