"""The application: every endpoint in one table, the right of each checked before it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from wherry.broker.broker import Broker
from wherry.wire.http.bounds import Bounds
from wherry.wire.http.endpoints import TABLES
from wherry.wire.http.message import Answer, Request
from wherry.wire.http.openapi import describe
from wherry.wire.http.problem import HttpError
from wherry.wire.http.routing import Endpoint, Router, decoded
from wherry.wire.http.server import Observer, Server
from wherry.wire.http.service import Guard, Service, open_to_all

WEED_S = 5.0


class App:
    """Requests in, answers out; no socket in sight."""

    def __init__(self, service: Service) -> None:
        self.service = service
        service.document = _document()
        self._router = Router(_endpoints())

    async def __call__(self, request: Request) -> Answer:
        """Answer one request; errors are raised."""
        _check_origin(request)
        endpoint = self._router.find(request)
        request.endpoint = endpoint.name
        if endpoint.right != "none" and not endpoint.asks:
            self.service.guard(request, endpoint.right, request.params.get("topic", "*"))
        return await endpoint.handler(decoded(endpoint, request, self.service))


def _endpoints() -> list[Endpoint]:
    return [endpoint for table in TABLES for endpoint in table.endpoints]


@cache
def _document() -> bytes:
    """The same for every application of this process, and 20 ms of work."""
    return describe(_endpoints())


def _check_origin(request: Request) -> None:
    """A page from elsewhere must not drive the broker through the browser of somebody who can reach it."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise HttpError("forbidden", f"a page from {origin[:100]} may not call this broker")


@asynccontextmanager
async def serve(
    broker: Broker, *, bounds: Bounds | None = None, guard: Guard = open_to_all, observer: Observer | None = None
) -> AsyncIterator[Server]:
    """A server over a broker; tell it where to `listen`. On the way out it answers what is under way, then closes."""
    server = Server(bounds=bounds, observer=observer)
    service = Service(broker, server, guard)
    server.app = App(service)
    weeding = asyncio.create_task(_weed(service), name="wherry http consumers")
    try:
        yield server
    finally:
        weeding.cancel()
        await asyncio.gather(weeding, return_exceptions=True)
        await server.close()
        await service.consumers.close()


async def _weed(service: Service) -> None:
    while True:
        await asyncio.sleep(WEED_S)
        await service.consumers.weed()
