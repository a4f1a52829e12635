"""The methods that a peer has called, each with the balancer and the budget of retries of its service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wherry.mesh.registry import Roster
from wherry.model.errors import InvalidInput
from wherry.service.balancing.balancer import Balancer
from wherry.service.balancing.kinds import balancer_of, check_kinds
from wherry.service.balancing.retries import Retries
from wherry.service.balancing.set_aside import SetAside
from wherry.service.calling.attempt import CalledMethod
from wherry.wire.native.codec.invokes import METHOD_BYTES_MAX

SERVICES_MAX: Final = 1_000
"""Services whose balancers are kept; beyond it those without an instance are forgotten."""

TARGETS_MAX: Final = 10_000
"""Methods whose names are remembered."""

Kinds = str | Mapping[str, str | Balancer]


class CalledMethods(dict[str, CalledMethod]):
    """Methods by name; a dict, so that the next call of one is found by a single look."""

    def __init__(self, roster: Roster, kinds: Kinds) -> None:
        super().__init__()
        check_kinds(kinds)
        self._roster, self._kinds = roster, kinds
        self.balancers: dict[str, SetAside] = {}
        """By service."""
        self._retries: dict[str, Retries] = {}

    def add(self, name: str) -> CalledMethod:
        """Return a method that was not called before."""
        if not isinstance(name, str) or not name.isascii() or len(name) > METHOD_BYTES_MAX:
            raise InvalidInput("method", name, f"a service and a method, as billing.total: at most {METHOD_BYTES_MAX}")
        service, dot, method = name.partition(".")
        if not dot or not service or not method or "." in method:
            raise InvalidInput("method", name, "a service and a method, as billing.total")
        if len(self) >= TARGETS_MAX or len(self.balancers) >= SERVICES_MAX:
            self._forget()
        balancer = self.balancers.get(service)
        if balancer is None:
            kind = self._kinds if isinstance(self._kinds, str) else self._kinds.get(service, "round-robin")
            balancer = self.balancers[service] = balancer_of(kind)
        found = self[name] = CalledMethod(name, service, balancer, self._retries.setdefault(service, Retries()))
        return found

    def _forget(self) -> None:
        """Forget the methods, and the services that have no instance now."""
        self.clear()
        for service in [each for each in self.balancers if not self._roster.of(each)]:
            del self.balancers[service]
            del self._retries[service]
