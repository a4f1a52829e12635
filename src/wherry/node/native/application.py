"""The application of the HTTP port for one client of the native wire: its calls, rights and errors, without HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from wherry.model.catalog.key import Verb
from wherry.model.errors import Forbidden, InvalidInput, Unauthorized, WherryError
from wherry.wire.http.api.problem import HttpError, problem
from wherry.wire.http.app import App
from wherry.wire.http.protocol.heads import HEADERS_MAX, split
from wherry.wire.http.protocol.message import Request, Response, Stream
from wherry.wire.native.application import CallReply
from wherry.wire.native.codec.calls import CallHead

_METHOD = re.compile(r"[A-Z]{1,16}")
_PATH = re.compile(r"/[\x21-\x7e]*")
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

OF_CONNECTION = frozenset(
    {
        *("authorization", "connection", "content-length", "expect", "host", "origin"),
        *("sec-fetch-site", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that belong to a connection of HTTP: a CALL has none of them."""


class ClientApplication:
    """The application, as one client may use it."""

    def __init__(self, app: App, request: Request, closed: Callable[[int], object] = lambda number: None) -> None:
        self._app, self._server, self._closed = app, app.server, closed
        self._upgrade = request
        """The request that opened the connection: its key counts for all calls."""
        self.number = next(self._server.numbers)
        """The connection, as the requests of its calls name it."""

    def check(self, verb: Verb, topic: str) -> str:
        """Return the name of the client (empty without keys); raise `Unauthorized` or `Forbidden`."""
        return self._app.service.guard(self._upgrade, verb, topic)

    async def renew(self, key: str) -> None:
        """Use another key from now on, which must have the same name; raise `Unauthorized` for any other."""
        fresh = replace(self._upgrade, headers={**self._upgrade.headers, "authorization": f"Bearer {key}"})
        waiting = self._server.awaited(fresh)
        if waiting is not None:
            await waiting
        if self._name(fresh) != self._name(self._upgrade):
            raise Unauthorized("a connection keeps its name: the new key is one of another name")
        self._upgrade = fresh

    def _name(self, request: Request) -> str:
        try:
            return self._app.service.guard(request, "publish", "*")
        except Forbidden as fault:
            return fault.name

    def problem(self, fault: WherryError) -> bytes:
        """Return the problem document of an error."""
        (document,) = problem(fault).body
        return bytes(document)

    def call(self, head: CallHead, body: memoryview) -> HttpCall:
        """Return a call, which has not begun yet; raise for a head that is no request."""
        return HttpCall(self._app, self._request(head, body))

    def _request(self, head: CallHead, body: memoryview) -> Request:
        if not _METHOD.fullmatch(head.method):
            raise InvalidInput("method", head.method, "a method of HTTP, in capital letters")
        if not _PATH.fullmatch(head.path):
            raise InvalidInput("path", head.path, "a path that begins with /, percent-encoded")
        path, query = split(head.path.encode("ascii"))
        headers = dict(_checked(head.headers))
        if authorization := self._upgrade.headers.get("authorization"):
            headers["authorization"] = authorization
        if body.nbytes:
            headers["content-length"] = str(body.nbytes)
        upgrade = self._upgrade
        request = Request(head.method, path, query, headers, body, peer=upgrade.peer, secure=upgrade.secure)
        request.connection = self.number
        return request

    def hold(self, size: int) -> None:
        """Count bytes of a request, negative ones when it ends; raise if there is no room for them."""
        if size and not self._server.hold(size, size):
            raise HttpError("busy", "the requests under way fill the memory for bodies")

    def keep(self, size: int) -> None:
        """Count bytes of an answer, negative ones when the client has read it; raise if there is no room for them."""
        if size and not self._server.keep(size):
            self._server.refused["bodies_bytes"] += 1
            raise HttpError("busy", "answers that nobody reads fill the memory for them")

    def close(self) -> None:
        """Forget the client, since its connection is closed."""
        self._server.forget(self.number)
        self._closed(self.number)


def _checked(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headers of a call; raise `InvalidInput` for one that HTTP could not carry."""
    if len(headers) > HEADERS_MAX:
        raise InvalidInput("headers", len(headers), f"at most {HEADERS_MAX}")
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name in OF_CONNECTION:
            raise InvalidInput("headers", name, "names of HTTP in lower case, without those of a connection")
        if not _VALUE.fullmatch(value):
            raise InvalidInput(f"headers.{name}", value, "text of Latin-1 without control characters")
    return list(headers.items())


class HttpCall:
    """One call under way."""

    def __init__(self, app: App, request: Request) -> None:
        self._app, self._request = app, request

    @property
    def waits(self) -> bool:
        """Whether the call waits for messages or for an outcome, so that it may be cancelled."""
        return self._request.waits

    async def run(self) -> CallReply:
        """Return the answer, whatever its status."""
        request, server = self._request, self._app.server
        began, status = server.clock(), 499  # if its client gives the call up
        try:
            response = await self._response()
            status = int(response.status)
        finally:
            server.observe(request, status, server.clock() - began)
        headers = {name.lower(): value for name, value in response.headers}
        if response.content_type:
            headers["content-type"] = response.content_type
        body = [] if request.method == "HEAD" else list(response.body)
        return CallReply(status, headers, body, response.undo)

    async def _response(self) -> Response:
        request, server = self._request, self._app.server
        try:
            self._check_size()
        except WherryError as fault:
            return problem(fault)
        answer = await server.answer(request)
        if isinstance(answer, Stream):
            await answer.chunks.aclose()  # type: ignore[attr-defined]
            server.end(request)
        if not isinstance(answer, Response):
            return problem(HttpError("not-acceptable", "an answer without an end needs a connection of its own"))
        return answer

    def _check_size(self) -> None:
        """Find the endpoint and check the caller's right; refuse a body that is larger than the endpoint allows."""
        request, server = self._request, self._app.server
        length = memoryview(request.body).nbytes
        if not length:
            return
        server.gate(request)
        most = server.bounds.body_bytes if request.body_max is None else min(server.bounds.body_bytes, request.body_max)
        if length > most:
            server.refused["body_bytes"] += 1
            raise HttpError("too-large", f"the body has {length} bytes; at most {most} are allowed")
