"""Which member provides which instances, turned over: the instances of each service. Keeps a roster up to date."""

from __future__ import annotations

from collections.abc import Iterable

from wherry.mesh.instance import Instance
from wherry.mesh.registry import Roster


class ProvidedServices:
    """The instances of all members, by service; changes only what a member changed."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._of: dict[str, tuple[Instance, ...]] = {}
        self._services: dict[str, dict[str, list[Instance]]] = {}
        self._touched: dict[str, None] = {}

    def provide(self, member: str, instances: Iterable[Instance]) -> None:
        """Set what a member provides: nothing, when it is gone. The roster has it after `publish`."""
        given = tuple(instances)
        before = self._of.get(member, ())
        if given == before:
            return
        if given:
            self._of[member] = given
        else:
            del self._of[member]
        touched = dict.fromkeys(instance.service for instance in (*before, *given))
        for service in touched:
            members = self._services.setdefault(service, {})
            own = [instance for instance in given if instance.service == service]
            if own:
                members[member] = own
            else:
                members.pop(member, None)
            if not members:
                del self._services[service]
        self._touched.update(touched)

    def publish(self) -> None:
        """Set the services that changed in the roster: once each, however many members changed."""
        touched, self._touched = self._touched, {}
        for service in touched:
            members = self._services.get(service, {})
            self._roster.replace(service, [each for some in members.values() for each in some])
