"""A roster of instances that provide every service: a list or a name in DNS has hosts, and need not name services.

Which services there are is not known, so an instance is made for a service when the service is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wherry.mesh.instance import NAME_CHARS_MAX, Instance
from wherry.mesh.registry import Roster
from wherry.model import check
from wherry.model.errors import InvalidInput

ASKED_MAX = 1_000
"""Services that are remembered, so that their changes are reported; for one more, each look makes its instances."""


class CatchAllRoster(Roster):
    """A roster in which any service has the same instances."""

    def __init__(self) -> None:
        super().__init__()
        self._every: tuple[Instance, ...] = ()
        self._asked: dict[str, None] = {}

    def of(self, service: str) -> tuple[Instance, ...]:
        """Return the instances of a service: all of them, under its name."""
        if service in self._asked:
            return super().of(service)
        try:
            check.graphic("service", service, NAME_CHARS_MAX)
        except InvalidInput:
            return ()
        found = self._named(service)
        if len(self._asked) < ASKED_MAX:
            self._asked[service] = None
            if found:  # no change to report: nobody knew of this service
                self._services[service] = found
        return found

    def replace_every(self, instances: Iterable[Instance]) -> None:
        """Set the instances that provide every service, and report that to those that asked for one."""
        self._every = tuple(sorted(instances, key=lambda each: each.id))
        for service in self._asked:
            self.replace(service, self._named(service))

    def _named(self, service: str) -> tuple[Instance, ...]:
        return tuple(msgspec.structs.replace(each, service=service) for each in self._every)
