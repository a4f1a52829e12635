"""The registry that is a fixed list: what is listed is there, for as long as the process runs.

It needs no network and no other process. It never learns that an instance is gone: its callers find that out.
"""

from __future__ import annotations

from wherry.mesh.catch_all import CatchAllRoster
from wherry.mesh.instance import SCHEMES, Instance
from wherry.mesh.listed import EVERY, listed
from wherry.mesh.registry import Roster
from wherry.mesh.starting import Starting
from wherry.model import check
from wherry.model.errors import InvalidInput


class FixedRegistry:
    """A registry of listed instances; see `wherry.mesh.listed` for how they are written.

    Examples
    --------
    >>> registry = FixedRegistry("billing=10.0.0.1:7080,10.0.0.2:7080")
    >>> [each.url for each in registry.roster.of("billing")]
    ['http://10.0.0.1:7080', 'http://10.0.0.2:7080']
    """

    def __init__(self, hosts: str, *, scheme: str = "http") -> None:
        self._starting = Starting()
        found = listed(hosts, check.one_of("scheme", scheme, SCHEMES))
        self._roster = CatchAllRoster() if EVERY in found else Roster()
        if isinstance(self._roster, CatchAllRoster):
            self._roster.replace_every(found[EVERY])
        else:
            self._roster.replace_all(found)

    @property
    def roster(self) -> Roster:
        """Return the instances of the list."""
        return self._roster

    async def start(self) -> None:
        """Return: the list is known from the beginning."""
        self._starting.check_open()

    async def announce(self, instance: Instance) -> None:
        """Raise `InvalidInput`: a process cannot change the list of others."""
        self._starting.check_open()
        raise not_announced("static://", "put its host and port in the list of each caller")

    async def withdraw(self, service: str, instance_id: str) -> None:
        """Return: nothing of this process was announced."""

    async def close(self) -> None:
        """Return: nothing runs."""
        await self._starting.end()


def not_announced(scheme: str, instead: str) -> InvalidInput:
    """Return the error for an instance that would be announced to a registry that is only read."""
    return InvalidInput(
        "registry",
        scheme,
        f"a registry that can be announced to: gossip:// or zk://. With {scheme}, {instead}, and start the service "
        "without a registry",
    )
