"""The services of a process over REST: call a method, list, inspect and control. The wire of services begins here too.

POST /services/billing/total                 a call: JSON in, JSON out
GET  /services · GET /services/billing       list, inspect; a browser gets a page that does both and controls
POST /services/billing/control/{verb}        pause, resume, drain, limit
GET  /services with an upgrade               the wire of services
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from wherry.model.errors import Forbidden, NotFound
from wherry.service.providing.connection import ProviderConnection
from wherry.service.providing.control import CONTROL
from wherry.service.providing.host import Host
from wherry.service.providing.rest_call import CallQuery, answered, rest_call
from wherry.service.providing.running import ProvidedService
from wherry.service.providing.views import ServiceListView, ServiceView, view_of
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import Call, EndpointGroup, EndpointTree, decoded
from wherry.wire.http.api.sites import check_host, check_site, foreign_page
from wherry.wire.http.pages import console
from wherry.wire.http.protocol.message import HTML, JSON, Answer, Request, accepted, json_response
from wherry.wire.http.protocol.server import Server
from wherry.wire.native.codec.invokes import PATH, PROTOCOL

ENDPOINTS: Final = EndpointGroup("services")
VARY: Final = ("Vary", "Accept")
"""For caches: one address has a page and a list."""

Act = Callable[[str], Awaitable[None]]


class RestApp:
    """Answers requests on the port of a provider."""

    server: Server

    def __init__(self, host: Host, drain: Act, resume: Act) -> None:
        self.host, self.drain, self.resume = host, drain, resume
        self._tree = EndpointTree((*ENDPOINTS.endpoints, *CONTROL.endpoints, *console.FILES.endpoints))
        # Where nothing asks for tokens, a page could let its own name point at this process.
        self._names = frozenset[str]() if host.is_open_to_all else None

    def admit(self, request: Request) -> None:
        """Refuse a request before its body is read."""
        if request.headers.get("upgrade", "").lower() != PROTOCOL:  # which no page can ask for
            self._check_name(request)
        foreign_page(request, frozenset())
        check_site(request)
        endpoint = self._tree.find(request)
        request.admitted, request.body_max, request.endpoint = endpoint, endpoint.body_max, endpoint.name

    def allow(self, names: frozenset[str]) -> None:
        """Answer under these host names too."""
        if self._names is not None:
            self._names |= names

    def _check_name(self, request: Request) -> None:
        try:
            check_host(request, self._names)
        except HttpError as fault:
            name = request.headers.get("host", "")[:100]
            text = f"this provider asks for no tokens, so it answers under known names only, and {name!r} is none"
            raise HttpError(fault.code, f"{text}: add it to ListenAt(names=…), or ask for tokens") from None

    async def __call__(self, request: Request) -> Answer:
        """Answer one request; errors are raised."""
        if request.admitted is None:
            self.admit(request)
        if request.headers.get("upgrade", "").lower() == PROTOCOL and request.path == PATH:
            if self.host.is_draining:
                raise HttpError("closed", "this instance is closing")
            return ProviderConnection(self.host, token_of(request))
        endpoint = request.admitted
        assert endpoint is not None
        return await endpoint.handler(decoded(endpoint, request, self))

    def service(self, name: str) -> ProvidedService:
        """Return a service of this process."""
        found = self.host.services.get(name)
        if found is None:
            raise NotFound("service", name)
        return found

    async def check(self, request: Request, service: str) -> None:
        """Raise unless the caller may inspect and control a service."""
        await self.host.check(token_of(request), service, "*")


def token_of(request: Request) -> str:
    """Return the token of a request; empty without one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


RestRequest = Call[RestApp]


@ENDPOINTS.add("GET", "/services", "none", answers={200: {JSON: ServiceListView, HTML: None}})
async def list_services(call: RestRequest) -> Answer:
    """List the services of this process that the caller may inspect; 403 if that is none of them.

    A browser gets a page, which asks for the list by itself.
    """
    if accepted(call.request.headers.get("accept", ""), (JSON, HTML)) == HTML:
        return console.page(console.SERVICES_PAGE, VARY)
    app = call.service
    views, refused = [], None
    for name, each in list(app.host.services.items()):
        try:
            await app.check(call.request, name)
        except Forbidden as fault:
            refused = fault
        else:
            views.append(view_of(each))
    if refused is not None and not views:
        raise refused
    return json_response(ServiceListView(instance=app.host.instance_id, services=views), headers=[VARY])


@ENDPOINTS.add("GET", "/services/{service}", "none", answers={200: ServiceView})
async def inspect_service(call: RestRequest) -> Answer:
    """Inspect a service: its methods, their types, limits and statistics."""
    found = call.service.service(call["service"])
    await call.service.check(call.request, found.name)
    return json_response(view_of(found, with_types=True))


@ENDPOINTS.add(
    "POST",
    "/services/{service}/{method}",
    "none",
    query=CallQuery,
    takes=("application/json", "application/octet-stream"),
)
async def call_method(call: RestRequest) -> Answer:
    """Call a method.

    The body is the argument as JSON, or bytes; so is the answer. `timeout_ms` and `session` may stand in the query, W3C
    trace context in the headers, and with `Idempotency-Key` an id, by which a repeat gets the result of the first.
    """
    app = call.service
    service = app.service(call["service"])
    if call["method"] not in service.methods:
        raise NotFound("method", f"{service.name}.{call['method']}")
    if app.server.closing:
        raise HttpError("closed", "this process is closing")
    app.server.begin_wait(call.request)  # it is cancelled when its client disconnects
    made, sink = rest_call(call.request, call.query, service.methods[call["method"]], token_of(call.request))
    return await answered(app.host, made, sink)
