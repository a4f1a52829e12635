"""Endpoints as a table: one declaration serves a request, checks its input and describes itself in OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from wherry.model.errors import InvalidInput
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.reading import decode_body, decode_query
from wherry.wire.http.protocol.message import Answer, Request, segments

Verb: TypeAlias = Literal["publish", "consume", "admin", "none"]
"""The right that a call needs on its topic; `none` needs no key."""

JSON_BYTES_MAX = 1 << 20
"""The largest body that is no messages, unless its endpoint sets another bound."""

ROUTE_BYTES_MAX = 16 << 20
"""The largest body of a route, which may have very many bindings."""

KNOWN_CHARS = 256
"""The longest path whose endpoint is cached."""

S = TypeVar("S")
Handler: TypeAlias = "Callable[[Call[Any]], Awaitable[Answer]]"


@dataclass(slots=True)
class Call(Generic[S]):
    """One call of an endpoint: the request, its query and body, decoded and checked, and the service it uses."""

    request: Request
    service: S
    query: Any = None
    body: Any = None

    def __getitem__(self, name: str) -> str:
        """Return a name from the path."""
        return self.request.params[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path.

    Parameters
    ----------
    path
        A template: `/v1/topics/{topic}`.
    right
        The right that a key needs, on the topic that the path names.
    query, body
        Structs that describe the arguments and a JSON body; a body of other types is read by the handler, and `takes`
        names their media types.
    answers
        By status: a struct for JSON; a struct or None for each media type; or None for no body.
    codes
        Problems of this endpoint, beside those that every call can meet.
    asks
        Whether the handler itself calls the guard, topic by topic.
    body_bytes
        How large a body may be, where the server allows for more; None for the bound of `body_max`.
    admits
        Raises if the request may not send its body, where no key is needed; called with the service before the body is
        read.
    headers
        Headers that the request must have, and what they mean.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    description: str
    tag: str
    right: Verb
    query: type[msgspec.Struct] | None = None
    body: Any = None
    takes: tuple[str, ...] = ()
    answers: Mapping[int, Any] = field(default_factory=dict)
    gives: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    asks: bool = False
    body_bytes: int | None = None
    admits: Callable[[Request, Any], None] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body_max(self) -> int | None:
        """Return the largest body allowed; None for the bound of the server, where the body is messages."""
        if self.body_bytes is not None or self.takes:
            return self.body_bytes
        return ROUTE_BYTES_MAX if self.tag == "routes" else JSON_BYTES_MAX

    @property
    def name(self) -> str:
        """Return method and path, such as `GET /v1/topics/{topic}`."""
        return f"{self.method} {self.path}"


class EndpointGroup:
    """Endpoints of one tag, collected as they are declared."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.endpoints: list[Endpoint] = []

    def add(self, method: str, path: str, right: Verb, **more: Any) -> Callable[[Handler], Handler]:
        """Declare the function below as an endpoint; the first line of its docstring is the summary."""

        def declare(handler: Handler) -> Handler:
            summary, _, description = (handler.__doc__ or "").partition("\n")
            tidy = " ".join(description.split())
            self.endpoints.append(
                Endpoint(
                    method=method,
                    path=path,
                    handler=handler,
                    right=right,
                    summary=summary.rstrip("."),
                    description=tidy,
                    tag=self.tag,
                    **more,
                )
            )
            return handler

        return declare


class EndpointTree:
    """Finds the endpoint of a request in a tree of path parts, so that the cost does not grow with the table."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root: _Node = _Node()
        self._known = lru_cache(maxsize=1024)(self._search)
        """A cache: most clients call the same few paths."""
        for endpoint in endpoints:
            node = self._root
            names = []
            for part in endpoint.path.strip("/").split("/"):
                if part.startswith("{"):
                    names.append(part.strip("{}"))
                    node.any = node.any or _Node()
                    node = node.any
                else:
                    node = node.parts.setdefault(part, _Node())
            node.methods[endpoint.method] = (endpoint, tuple(names))

    def find(self, request: Request) -> Endpoint:
        """Return the endpoint, and set the names of the path in the request; `HttpError` 404 or 405."""
        search = self._known if len(request.path) <= KNOWN_CHARS else self._search
        endpoint, params = search(request.method, request.path)
        request.params = params.copy()
        return endpoint

    def methods(self, path: str) -> list[str]:
        """Return the methods of a path; `HttpError` 404 for a path that does not exist."""
        return sorted(self._node(path)[0].methods)

    def _search(self, given: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        node, values = self._node(path)
        method = "GET" if given == "HEAD" else given
        found = node.methods.get(method)
        if found is None:
            allowed = ", ".join(sorted({*node.methods} | ({"HEAD"} if "GET" in node.methods else set())))
            raise HttpError("method-not-allowed", f"{path} knows {allowed}, not {given}", [("Allow", allowed)])
        endpoint, names = found
        return endpoint, dict(zip(names, values, strict=True))

    def _node(self, path: str) -> tuple[_Node, list[str]]:
        node, values = self._root, []
        for part in segments(path):
            child = node.parts.get(part)
            if child is None:
                child = node.any
                values.append(part)
            if child is None:
                raise HttpError("not-found", f"nothing is at {path}; /openapi.json lists what there is")
            node = child
        if not node.methods:
            raise HttpError("not-found", f"nothing is at {path}; /openapi.json lists what there is")
        return node, values


@dataclass(slots=True)
class _Node:
    parts: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    methods: dict[str, tuple[Endpoint, tuple[str, ...]]] = field(default_factory=dict)


def decoded(endpoint: Endpoint, request: Request, service: S) -> Call[S]:
    """Return the call of an endpoint, its arguments checked; `InvalidInput` names the field that is wrong."""
    call = Call(request, service)
    try:
        arguments = request.arguments()
    except ValueError as fault:
        raise InvalidInput("query", request.query, f"fewer arguments ({fault})") from None
    call.query = decode_query(endpoint.query, arguments)
    if endpoint.body is not None:
        call.body = decode_body(endpoint.body, request)
    return call
