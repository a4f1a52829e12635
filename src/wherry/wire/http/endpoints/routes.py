"""Routes: rules that copy a publish to topics."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec

from wherry.model.catalog.route import Binding, Kind, Route
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall, once_durable
from wherry.wire.http.api.terms import MODEL
from wherry.wire.http.endpoints.bodies import model, part_of
from wherry.wire.http.endpoints.publish import PublishedView, published_view, refuse_repeats
from wherry.wire.http.formats import TAKES, take_messages
from wherry.wire.http.formats.as_octets import decoded
from wherry.wire.http.protocol.message import (
    ARROW,
    Answer,
    Response,
    json_response,
)

TABLE = EndpointGroup("routes")
PATH = "/v1/routes/{route}"

HEADER = "wherry-route-"
"""Prefix of headers that a `headers` route matches: `Wherry-Route-Region: eu` is the header `region`.

Names and values are percent-encoded like those of a message. Case does not count in the names, here and in the
bindings.
"""


BindingFields = part_of(Binding, "BindingFields")


class RouteFields(msgspec.Struct, forbid_unknown_fields=True):
    """The kind of a route, and its bindings."""

    kind: Kind
    bindings: Annotated[tuple[BindingFields, ...], MODEL["bindings"]] = ()  # type: ignore[valid-type]
    otherwise: Annotated[str | None, MODEL["otherwise"]] = None
    labels: dict[str, str] = {}


class RouteList(msgspec.Struct):
    """All routes, by name."""

    routes: list[Route]


class RouteQuery(msgspec.Struct, frozen=True):
    """What `direct` and `pattern` routes match."""

    routing_key: str = ""


class RoutedView(msgspec.Struct):
    """Where copies were stored, by topic; empty if no binding matched."""

    topics: dict[str, PublishedView]


@TABLE.add("GET", "/v1/routes", "admin", answers={200: RouteList})
@once_durable
async def list_routes(call: ApiCall) -> Answer:
    """List all routes."""
    return json_response(RouteList(call.service.broker.routes()))


@TABLE.add("PUT", PATH, "admin", body=RouteFields, answers={200: Route}, codes=("limit-reached",))
async def put_route(call: ApiCall) -> Answer:
    """Create or change a route."""
    bindings = tuple(model(Binding, each) for each in call.body.bindings)
    body = call.body
    route = Route(
        name=call["route"], kind=body.kind, bindings=bindings, otherwise=body.otherwise, labels=dict(body.labels)
    )
    return json_response(await call.service.broker.put_route(route))


@TABLE.add("GET", PATH, "admin", answers={200: Route})
@once_durable
async def get_route(call: ApiCall) -> Answer:
    """Show one route."""
    return json_response(call.service.broker.route(call["route"]))


@TABLE.add("DELETE", PATH, "admin", answers={204: None})
async def delete_route(call: ApiCall) -> Answer:
    """Delete a route."""
    await call.service.broker.delete_route(call["route"])
    return Response(204)


@TABLE.add(
    "POST",
    PATH + "/messages",
    "publish",
    query=RouteQuery,
    takes=TAKES,
    answers={201: RoutedView},
    codes=("duplicate-id", "limit-reached"),
)
async def publish_route(call: ApiCall) -> Answer:
    """Publish through a route: a copy for each topic that matches, all of them or none."""
    refuse_repeats(call)
    broker, request = call.service.broker, call.request
    own = {name: value for name, value in request.headers.items() if not name.startswith(HEADER)}
    given = {
        decoded(name, name.removeprefix(HEADER)).lower(): decoded(name, value)
        for name, value in request.headers.items()
        if name not in own
    }
    published = await broker.publish_route(
        call["route"],
        await take_messages(replace(request, headers=own), broker.slices),
        routing_key=call.query.routing_key,
        headers=_as_bound(broker.route(call["route"]), given),
    )
    ids = call.request.content_type() != ARROW
    return json_response(RoutedView({name: published_view(each, ids=ids) for name, each in published.items()}), 201)


def _as_bound(route: Route, given: dict[str, str]) -> dict[str, str]:
    """Return headers, whose names are in lower case, under the names that the bindings of a route have for them."""
    if not given or route.kind != "headers":
        return given
    names = {name for binding in route.bindings for name in binding.headers}
    return {name: given[name.lower()] for name in names if name.lower() in given}
