"""The providing side of a process: a port with the wire of services and REST, and its instances in the registry."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from wherry.mesh.instance import Instance
from wherry.mesh.registry import Registry
from wherry.model.errors import InvalidInput, error_text
from wherry.service.providing.host import Host
from wherry.service.providing.rest import RestApp
from wherry.service.providing.running import ProvidedService
from wherry.service.service import Service
from wherry.wire.http.protocol.server import Server

ENDING_S: Final = 2.0
"""Of the time for a close: to end methods that are cancelled, and to send the last answers."""

SERVER_S: Final = 0.5

WITHDRAW_S: Final = 2.0
"""For a registry that does not answer while instances are withdrawn; they are gone there with their session."""

EVERY_ADDRESS: Final = ("0.0.0.0", "::", "")
"""Hosts that nobody can call."""

_log = logging.getLogger("wherry.service")


class ListenAt(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider listens.

    Parameters
    ----------
    advertise
        The URL that callers reach it at, if that is another one; needed for `0.0.0.0` and `::`.
    names
        Host names under which it answers REST where no tokens are asked for, beside addresses, `localhost` and that of
        `advertise`: a page could let a name of its own point here.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    tls: ssl.SSLContext | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.advertise is None and self.host in EVERY_ADDRESS:
            allowed = "an address that callers can reach, or advertise with the URL that they reach it at"
            raise InvalidInput("host", self.host, allowed)

    def known_names(self) -> frozenset[str]:
        """Return the host names that callers may use."""
        own = urlsplit(self.advertise).hostname if self.advertise is not None else None
        return frozenset(each.lower() for each in (self.host, own, *self.names) if each)


class Provider:
    """Serves the services of a process."""

    def __init__(
        self, host: Host, services: Sequence[Service], registry: Registry | None, labels: dict[str, str]
    ) -> None:
        self.host, self._registry, self._labels = host, registry, labels
        for service in services:
            if service.name in host.services:
                raise InvalidInput("provides", service.name, "each service once")
            if not service.methods:
                raise InvalidInput("provides", service.name, "services with a method")
            host.add(ProvidedService(service))
        self._app = RestApp(host, self.drain_service, self.resume_service)
        self.server = Server(self._app, gate=self._app.admit)
        self._app.server = self.server
        self._announced: dict[str, Instance] = {}
        # Of two records of one instance the newer counts, also when the process was started again.
        self._version = time.time_ns() // 1_000_000
        self.url = ""

    async def start(self, at: ListenAt) -> None:
        """Listen, and announce the instances."""
        self._app.allow(at.known_names())
        port = await self.server.listen(at.host, at.port, at.tls)
        scheme = "http" if at.tls is None else "https"
        shown = f"[{at.host}]" if ":" in at.host else at.host
        self.url = at.advertise or f"{scheme}://{shown}:{port}"
        for name in self.host.services:
            await self._announce(name)

    def instance(self, name: str) -> Instance:
        """Return the record of a service of this process."""
        self._version += 1
        return Instance(
            service=name,
            id=self.host.instance_id,
            url=self.url,
            version=self._version,
            methods=tuple(self.host.services[name].methods),
            labels=self._labels,
        ).checked()

    async def _announce(self, name: str) -> None:
        self._announced[name] = found = self.instance(name)
        if self._registry is not None:
            await self._registry.announce(found)

    async def _withdraw(self, name: str) -> None:
        if self._announced.pop(name, None) is not None and self._registry is not None:
            await self._registry.withdraw(name, self.host.instance_id)

    async def drain_service(self, name: str) -> None:
        """Accept no new calls of a service, and withdraw it; calls under way end as they do."""
        self.host.services[name].is_draining = True
        await self._withdraw(name)

    async def resume_service(self, name: str) -> None:
        """Accept calls of a service again, and announce it again."""
        self.host.services[name].is_draining = False
        if name not in self._announced:
            await self._announce(name)

    async def drain(self, within_s: float) -> None:
        """Withdraw all instances, accept no new calls, and wait until those under way have ended."""
        until = time.monotonic() + within_s
        names, self._announced = list(self._announced), {}
        if self._registry is not None and names:
            await self._withdraw_all(self._registry, names, min(WITHDRAW_S, within_s))
        self.host.drain()
        await self.host.idle(max(0.0, until - time.monotonic()))

    async def _withdraw_all(self, registry: Registry, names: list[str], within_s: float) -> None:
        """Withdraw instances; the end of a process does not depend on its registry."""
        try:
            async with asyncio.timeout(within_s):
                for name in names:
                    await registry.withdraw(name, self.host.instance_id)
        except Exception as fault:
            _log.warning("the registry did not withdraw the instances of this process: %s", error_text(fault, 200))

    async def close(self, within_s: float) -> None:
        """Drain, cancel what still runs, and close the port; all of it within this time."""
        until = time.monotonic() + within_s
        await self.drain(max(0.0, within_s - ENDING_S))
        await self.host.close()
        await self.server.close(max(SERVER_S, min(ENDING_S, until - time.monotonic())))
