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
"""The right that a call needs on its topic; `none` is for everyone, keys or not."""

JSON_BYTES_MAX = 1 << 20
"""Of a body that is no messages, unless its endpoint says otherwise."""

ROUTE_BYTES_MAX = 16 << 20
"""Of a route: it may have very many bindings."""

KNOWN_CHARS = 256
"""Longer paths are not remembered."""

S = TypeVar("S")
Handler: TypeAlias = "Callable[[Call[Any]], Awaitable[Answer]]"


@dataclass(slots=True)
class Call(Generic[S]):
    """A request on its way through an endpoint: what it asks, decoded and checked, and what serves it."""

    request: Request
    service: S
    query: Any = None
    body: Any = None

    def __getitem__(self, name: str) -> str:
        """A name from the path."""
        return self.request.params[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path.

    Parameters
    ----------
    path
        A template: `/v1/topics/{topic}`.
    right
        What a key must allow, on the topic that the path names.
    query, body
        Structs that describe the arguments and a JSON body; a body of other types is read by the handler, and `takes`
        names their media types.
    answers
        By status: a struct for JSON; a struct or None for each media type; or None for no body.
    codes
        Problems of its own, beside those that every call can meet.
    asks
        Whether the handler itself asks the guard, topic by topic.
    body_bytes
        How large a body may be, where the server allows for more; None for what `body_max` says.
    admits
        What a request has to show before its body is waited for, where that is no key; called with the service.
    headers
        Headers that it must have, and what they are.
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
        """The largest body; None for what the server allows, where messages are taken."""
        if self.body_bytes is not None or self.takes:
            return self.body_bytes
        return ROUTE_BYTES_MAX if self.tag == "routes" else JSON_BYTES_MAX

    @property
    def name(self) -> str:
        """`GET /v1/topics/{topic}`."""
        return f"{self.method} {self.path}"


class Table:
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


class Router:
    """Finds the endpoint of a request: a tree of path parts, so that cost does not grow with the table."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root: _Node = _Node()
        self._known = lru_cache(maxsize=1024)(self._search)
        """Those who call often call the same few paths."""
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
        """The endpoint, with the names of the path in the request; `HttpError` 404 or 405."""
        search = self._known if len(request.path) <= KNOWN_CHARS else self._search
        endpoint, params = search(request.method, request.path)
        request.params = params.copy()
        return endpoint

    def methods(self, path: str) -> list[str]:
        """What a path knows; `HttpError` 404 for none."""
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
                raise HttpError("not-found", f"nothing is at {path}; /openapi.json tells what there is")
            node = child
        if not node.methods:
            raise HttpError("not-found", f"nothing is at {path}; /openapi.json tells what there is")
        return node, values


@dataclass(slots=True)
class _Node:
    parts: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    methods: dict[str, tuple[Endpoint, tuple[str, ...]]] = field(default_factory=dict)


def decoded(endpoint: Endpoint, request: Request, service: S) -> Call[S]:
    """The call of an endpoint, its arguments checked; `InvalidInput` names the field that is wrong."""
    call = Call(request, service)
    try:
        arguments = request.arguments()
    except ValueError as fault:
        raise InvalidInput("query", request.query, f"fewer arguments ({fault})") from None
    call.query = decode_query(endpoint.query, arguments)
    if endpoint.body is not None:
        call.body = decode_body(endpoint.body, request)
    return call
