"""The application: every endpoint in one table, the right of each checked before it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from wherry.broker.port.port import BrokerPort
from wherry.wire.http.api.openapi import describe
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import (
    Call,
    Endpoint,
    EndpointGroup,
    EndpointTree,
    decoded,
)
from wherry.wire.http.api.service import BrokerService, Guard, open_to_all
from wherry.wire.http.api.sites import check_host, check_site, foreign_page
from wherry.wire.http.endpoints import TABLES
from wherry.wire.http.protocol.bounds import Bounds
from wherry.wire.http.protocol.message import Answer, Request, Response
from wherry.wire.http.protocol.server import Observer, Server
from wherry.wire.listener import Clock

CLOSE_IDLE_S = 5.0


class Mounted(Protocol):
    """Answers all paths under a prefix, and checks rights itself."""

    def admit(self, request: Request) -> None:
        """Raise if the caller may not send a body, before one is read."""

    async def answer(self, request: Request) -> Answer:
        """Answer one request; errors are raised."""


class App:
    """Answers requests to a broker: the endpoints, and the server that their requests come from.

    `names` are the host names that requests may name, beside addresses and `localhost`; None, where keys identify
    callers, is any. `origins` are the origins of pages of other sites that may call the broker.
    """

    _endpoints: tuple[Endpoint, ...] = ()
    _document: bytes | None

    def __init__(
        self,
        broker: BrokerPort,
        *,
        bounds: Bounds | None = None,
        guard: Guard = open_to_all,
        names: Iterable[str] | None = (),
        origins: Iterable[str] = (),
        observer: Observer | None = None,
        check_ready: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.server = Server(
            self,
            gate=self.admit,
            forget=self._forget,
            bounds=bounds,
            observer=observer,
            clock=clock,
            wall_clock=lambda: broker.now_ms() / 1000,
        )
        self.service = BrokerService(
            broker,
            self.server,
            guard,
            None if names is None else frozenset(name.lower() for name in names),
            frozenset(origin.lower() for origin in origins),
            self.document,
            check_ready,
        )
        self._mounted: tuple[str, Mounted] | None = None
        self.mount(*TABLES)

    def _forget(self, connection: int) -> None:
        self.service.consumers.forget(connection)

    def mount_under(self, prefix: str, mounted: Mounted) -> None:
        """Let `mounted` answer all paths that begin with the prefix."""
        self._mounted = prefix, mounted

    def mount(self, *tables: EndpointGroup) -> None:
        """Serve the endpoints of more tables."""
        self._endpoints = (*self._endpoints, *(endpoint for table in tables for endpoint in table.endpoints))
        self._router, self._document = EndpointTree(self._endpoints), None

    def document(self) -> bytes:
        """Return the OpenAPI document, made at the first call, which takes 20 ms."""
        if self._document is None:
            self._document = describe(self._endpoints)
        return self._document

    async def __call__(self, request: Request) -> Answer:
        """Answer one request; errors are raised."""
        if (mounted := self._other(request)) is not None:
            return await mounted.answer(request)
        endpoint = request.admitted or self._find(request)
        return await endpoint.handler(decoded(endpoint, request, self.service))

    def admit(self, request: Request) -> None:
        """Find the endpoint of a request, or raise if the caller may not call it; decided before a body is read."""
        if (mounted := self._other(request)) is not None:
            mounted.admit(request)
        else:
            self._find(request)

    def _other(self, request: Request) -> Mounted | None:
        if self._mounted is not None and request.path.startswith(self._mounted[0]):
            return self._mounted[1]
        return None

    def _find(self, request: Request) -> Endpoint:
        self.check_page(request)
        if request.method == "OPTIONS" and request.page:
            return self._preflight(request)
        endpoint = self._router.find(request)
        request.endpoint = endpoint.name
        if endpoint.right == "none":
            if endpoint.admits is not None:
                endpoint.admits(request, self.service)
            elif request.brings_body():
                raise HttpError("too-large", f"{endpoint.name} takes no body")
            return _admitted(request, endpoint)
        check_site(request)
        if endpoint.asks:
            self.service.may(request, endpoint.right, "*")  # the caller must be known
        else:
            request.caller = self.service.guard(request, endpoint.right, request.params.get("topic", "*"))
        return _admitted(request, endpoint)

    def check_page(self, request: Request) -> None:
        """Refuse requests of pages of other sites, whether they use a name that points here or their own."""
        check_host(request, self.service.names)
        request.page = foreign_page(request, self.service.origins)

    def _preflight(self, request: Request) -> Endpoint:
        """Answer a browser's preflight: which methods and headers a page of another site may use."""
        methods = ", ".join(self._router.methods(request.path))
        request.endpoint, request.query = PREFLIGHT.name, ""  # arguments belong to the call that follows
        return _admitted(request, replace(PREFLIGHT, handler=partial(_allow, methods)))


def _admitted(request: Request, endpoint: Endpoint) -> Endpoint:
    request.admitted, request.body_max = endpoint, endpoint.body_max
    return endpoint


async def _allow(methods: str, call: Call[BrokerService]) -> Answer:
    headers = [
        ("Access-Control-Allow-Methods", methods),
        ("Access-Control-Allow-Headers", "*, Authorization"),
        ("Access-Control-Max-Age", "600"),
    ]
    return Response(204, headers=headers)


PREFLIGHT = Endpoint(
    method="OPTIONS",
    path="/",
    handler=partial(_allow, ""),
    summary="What a page from elsewhere may ask",
    description="",
    tag="browser",
    right="none",
)


@asynccontextmanager
async def serve(app: App) -> AsyncIterator[Server]:
    """Run the server of an application; call `listen` on it. At the end it answers requests under way, then closes."""
    server, service = app.server, app.service
    closing_idle = asyncio.create_task(_close_idle(service), name="wherry http consumers")
    try:
        yield server
    finally:
        closing_idle.cancel()
        await asyncio.gather(closing_idle, return_exceptions=True)
        await server.close()
        await service.consumers.close()


async def _close_idle(service: BrokerService) -> None:
    while True:
        await asyncio.sleep(CLOSE_IDLE_S)
        await service.consumers.close_idle()
