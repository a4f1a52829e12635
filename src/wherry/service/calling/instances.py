"""Inspects and controls instances of services over REST, by their URLs."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Any
from urllib.parse import quote

from wherry.client.link.address import Address
from wherry.client.link.pool import Pool
from wherry.client.requests import Caller
from wherry.mesh.instance import Instance
from wherry.service.providing.views import ServiceListView, ServiceView

TIMEOUT_S = 10.0
"""Of a request to one instance."""


class InstanceControl:
    """Requests to one instance; use it with `async with`."""

    def __init__(self, instance: Instance, *, token: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.instance = instance
        self._pool = Pool(Address.parse(instance.url), token, tls=tls, connections=1, timeout_s=TIMEOUT_S)
        self._requests = Caller(self._pool)

    async def __aenter__(self) -> InstanceControl:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.close()

    async def services(self) -> ServiceListView:
        """Return what the process provides."""
        return await self._requests.json("GET", "/services", ServiceListView)

    async def service(self) -> ServiceView:
        """Return the service, with the types of its methods."""
        return await self._requests.json("GET", self._path(), ServiceView)

    async def control(self, verb: str, body: dict[str, Any]) -> ServiceView:
        """Pause, resume, drain or limit the service; return it as it is then."""
        return await self._requests.json("POST", f"{self._path()}/control/{verb}", ServiceView, body)

    def _path(self) -> str:
        return f"/services/{quote(self.instance.service, safe='')}"
