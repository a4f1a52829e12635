"""What a registry is: it knows the instances of services, keeps that up to date, and reports changes.

    gossip://seed:7073      members report each other          zk://host:2181/path     ZooKeeper keeps it
    dns://name:7080         A and SRV records                  static://a:7080,b:7080  a fixed list

Reading is a look into memory (`Roster`): a call waits for no registry. While the registry cannot be reached, what was
known last is what counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from wherry.mesh.instance import Instance

_log = logging.getLogger("wherry.mesh")

Changed = Callable[[str], None]
"""Called with the name of a service whose instances changed."""


class Registry(Protocol):
    """A registry, as services and callers use it."""

    @property
    def roster(self) -> Roster:
        """Return the instances that are known now."""

    async def start(self) -> None:
        """Begin to learn and to announce; return once something was learned, or raise `Unavailable`."""

    async def announce(self, instance: Instance) -> None:
        """Announce an instance of this process, or what changed of it, until it is withdrawn or the registry closes."""

    async def withdraw(self, service: str, instance_id: str) -> None:
        """Withdraw an instance of this process."""

    async def close(self) -> None:
        """Withdraw everything of this process, and stop."""


class Roster:
    """The instances that are known, by service; a registry changes it, and others read and watch it."""

    def __init__(self) -> None:
        self._services: dict[str, tuple[Instance, ...]] = {}
        self._watching: dict[object, Changed] = {}

    @property
    def services(self) -> Mapping[str, tuple[Instance, ...]]:
        """Return the instances of each service, sorted by id."""
        return self._services

    def of(self, service: str) -> tuple[Instance, ...]:
        """Return the instances of a service, sorted by id; the same object until they change."""
        return self._services.get(service, ())

    def watch(self, changed: Changed) -> Callable[[], None]:
        """Call when the instances of a service change; return a function that stops that.

        What `changed` raises is logged: it stops neither the other watchers nor the registry.
        """
        own = object()  # the same function may be given twice
        self._watching[own] = changed

        def stop() -> None:
            self._watching.pop(own, None)

        return stop

    def replace(self, service: str, instances: Iterable[Instance]) -> None:
        """Set the instances of a service; of two with one id the newer counts."""
        newest: dict[str, Instance] = {}
        for each in instances:
            known = newest.get(each.id)
            if known is None or known.version < each.version:
                newest[each.id] = each
        found = tuple(newest[name] for name in sorted(newest))
        if found == self._services.get(service, ()):
            return
        if found:
            self._services[service] = found
        else:
            del self._services[service]
        for changed in list(self._watching.values()):
            try:
                changed(service)
            except Exception:  # of the program around, whatever it is
                _log.exception("a watcher of the service %s failed; the others are called", service)

    def replace_all(self, services: Mapping[str, Iterable[Instance]]) -> None:
        """Set the instances of all services; those that are not named have none."""
        for service in dict.fromkeys([*self._services, *services]):
            self.replace(service, services.get(service, ()))
