"""By session: the calls of one session reach the same instance, and every client computes the same instance for it.

    session ──BLAKE2b──► slot 0..16383 ──split──► instance

The slots are split equally: the numbers of slots of two instances differ by one at most. Sessions are spread over the
slots by hash, so the numbers of *sessions* are equal only as chance has it. Where the sessions are known (tenants,
devices, tables), give them: then they are split themselves, and their numbers differ by one at most. Nothing depends on
the order in which instances came, on what was called before, or on the process.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from wherry.mesh.instance import Instance
from wherry.model.errors import InvalidInput
from wherry.service.balancing.balancer import check_instances
from wherry.service.balancing.split import key_of, keys_of, mixed, split

SLOTS = 1 << 14
"""A power of two; part of what all clients have to agree on, so it never changes."""

KNOWN_MAX = 100_000
"""Known sessions of one balancer."""

INSTANCES_MAX = SLOTS
"""Beyond it an instance would have no slot."""

_TABLES_KEPT = 4
"""Splits over different sets of instances: all of them, those in use, and what was before."""


class Sticky:
    """Chooses by session; a call without a session goes to any instance, by chance.

    Parameters
    ----------
    sessions
        The sessions that are known beforehand, the same for all clients; they are split equally among themselves.

    Examples
    --------
    >>> a, b = (Instance(service="billing", id=name, url="http://10.0.0.7:7080") for name in "ab")
    >>> Sticky().choose((a, b), session="customer-7", chance=0.0, now=0.0).id
    'b'
    """

    sticky: ClassVar[bool] = True

    def __init__(self, sessions: Iterable[str] = ()) -> None:
        self._known = sorted(set(sessions))
        if len(self._known) > KNOWN_MAX:
            raise InvalidInput("sessions", f"{len(self._known)} sessions", f"at most {KNOWN_MAX}")
        self._instances: tuple[Instance, ...] = ()
        self._slots = array("H")
        self._owners: dict[str, int] = {}
        self._tables: list[_Table] = []

    def choose(self, instances: tuple[Instance, ...], *, session: str | None, chance: float, now: float) -> Instance:
        """See `Balancer`."""
        if instances is not self._instances or not instances:
            self._follow(instances)
        if session is None:
            return instances[self._slots[int(chance * SLOTS)]]
        owner = self._owners.get(session)
        if owner is None:
            owner = self._slots[key_of(session) % SLOTS]
        return instances[owner]

    def began(self, instance_id: str, now: float) -> None:
        """See `Balancer`."""

    def ended(self, instance_id: str, now: float, seconds: float, ok: bool | None) -> None:
        """See `Balancer`."""

    def _follow(self, instances: tuple[Instance, ...]) -> None:
        check_instances(instances)
        found = next((each for each in self._tables if each.instances is instances), None)
        if found is None:
            found = _Table(instances, self._known)
            self._tables = [found, *self._tables[: _TABLES_KEPT - 1]]
        self._instances, self._slots, self._owners = found.instances, found.slots, found.owners


class _Table:
    """The split over one set of instances."""

    def __init__(self, instances: tuple[Instance, ...], known: list[str]) -> None:
        ids = [each.id for each in instances]
        if len(ids) > INSTANCES_MAX:
            raise InvalidInput("instances", f"{len(ids)} instances", f"at most {INSTANCES_MAX}")
        self.instances = instances
        self.slots = array("H", split(mixed(np.arange(SLOTS, dtype=np.uint64)), ids).astype(np.uint16).tobytes())
        self.owners: dict[str, int] = {}
        if known:
            self.owners = dict(zip(known, split(keys_of(known), ids).tolist(), strict=True))
