"""The broker itself: version, health, readiness, description."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec

from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.protocol.message import (
    JSON,
    TEXT,
    Answer,
    Response,
    json_response,
)

TABLE = EndpointGroup("system")


class Info(msgspec.Struct):
    """Name, version and load of the broker."""

    name: str
    version: str
    connections: int
    requests: int


@TABLE.add("GET", "/v1", "none", answers={200: Info})
async def info(call: ApiCall) -> Answer:
    """Show name, version and load of the broker."""
    server = call.service.server
    return json_response(Info("wherry", version("wherry"), server.connections, server.requests))


@TABLE.add("GET", "/healthz", "none", gives=(TEXT,), answers={200: (TEXT,)})
async def health(call: ApiCall) -> Answer:
    """Check that the process lives."""
    return Response(200, [b"alive\n"], TEXT)


@TABLE.add("GET", "/readyz", "none", gives=(TEXT,), answers={200: (TEXT,)})
async def ready(call: ApiCall) -> Answer:
    """Check that messages are accepted: the journal works, and the node is not shutting down."""
    call.service.check_ready()
    broker = call.service.broker
    if broker.failure is not None:
        raise HttpError("closed", str(broker.failure))
    if broker.is_closing or call.service.server.closing:
        raise HttpError("closed", "the broker is closing")
    return Response(200, [b"ready\n"], TEXT)


@TABLE.add("GET", "/openapi.json", "none", answers={200: dict[str, Any]})
async def openapi(call: ApiCall) -> Answer:
    """Describe this interface in OpenAPI."""
    return Response(200, [call.service.document()], JSON)
