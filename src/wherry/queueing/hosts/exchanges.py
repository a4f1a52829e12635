"""Exchanges: routes with the terms that only queue clients know, and the queues that a message is routed to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from wherry.broker.port.inspect import CatalogView
from wherry.model.catalog import routing
from wherry.model.catalog.route import Binding, Kind, Route
from wherry.queueing.hosts.queue_terms import packed, unpacked
from wherry.queueing.message.table import decode_table, encode_table
from wherry.queueing.names import LABEL, full_name, is_short
from wherry.queueing.refusals import Reason, no_exchange, refused

DELAYED = "x-delayed-message"
KINDS: dict[str, Kind] = {"direct": "direct", "fanout": "fanout", "topic": "pattern", "headers": "headers"}

BUILT_IN = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.rabbitmq.trace": "topic",
}
"""Exchanges that every virtual host has."""

_log = logging.getLogger("wherry.queueing")

KEPT_SLACK = 64
"""Routes that were deleted over another wire and may still be cached, before the cache is cleaned."""

Headers = Callable[[], Mapping[str, Any]]
"""The headers of a message, decoded when they are read."""


class ExchangeTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exchange as it was declared. Kept as a label of its route."""

    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    alternate: str = ""
    delayed_type: str = ""

    @property
    def delayed(self) -> bool:
        """Whether its messages may have a due time."""
        return self.type == DELAYED

    @property
    def kind(self) -> str:
        """How it routes."""
        return self.delayed_type if self.delayed else self.type

    def route(self, host: str, name: str) -> Route:
        """Return the route that is this exchange, without bindings."""
        return Route(
            name=full_name(host, name),
            kind=KINDS[self.kind],
            otherwise=full_name(host, self.alternate) if self.alternate else None,
            labels={LABEL: msgspec.json.encode(self).decode()},
        )


def terms_of(route: Route) -> ExchangeTerms:
    """Return how an exchange was declared; a route that was made over another wire is a durable exchange."""
    return _terms(route.labels.get(LABEL), route.kind)


@lru_cache(maxsize=4_096)
def _terms(label: str | None, made: Kind) -> ExchangeTerms:
    if label is not None:
        try:
            terms = msgspec.json.decode(label, type=ExchangeTerms)
        except (msgspec.DecodeError, ValueError, RecursionError):
            terms = ExchangeTerms(type="")
        if KINDS.get(terms.kind) == made:
            return terms
        # Clients of other wires can write labels too.
        _log.warning("ignored a label that is not of an exchange", extra={"label": label[:80]})
    return ExchangeTerms(type=next(name for name, kind in KINDS.items() if kind == made), durable=True)


def checked_terms(
    type_: str, *, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str, Any]
) -> ExchangeTerms:
    """Return the terms that a declaration asks for; raise if they are refused."""
    delayed_type = _text(arguments.get("x-delayed-type", "")) if type_ == DELAYED else ""
    if type_ == DELAYED and delayed_type not in KINDS:
        allowed = ", ".join(KINDS)
        text = f"Invalid argument, 'x-delayed-type' must be an existing exchange type: {allowed}"
        raise refused(Reason.PRECONDITION_FAILED, text)
    if type_ not in KINDS and type_ != DELAYED:
        raise refused(Reason.COMMAND_INVALID, f"unknown exchange type '{type_}'")
    alternate = _text(arguments.get("alternate-exchange", ""))
    if not is_short(alternate):
        text = f"invalid arg 'alternate-exchange': {alternate!r}; allowed: text of at most 255 bytes"
        raise refused(Reason.PRECONDITION_FAILED, text)
    return ExchangeTerms(
        type=type_,
        durable=durable,
        auto_delete=auto_delete,
        internal=internal,
        alternate=alternate,
        delayed_type=delayed_type,
    )


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def compared(known: ExchangeTerms, wanted: ExchangeTerms) -> list[tuple[str, object, object]]:
    """Return what must be equal when an exchange is declared again: name, value and wanted value of each term."""
    fields = ("type", "durable", "auto_delete", "internal")
    return [(field, getattr(known, field), getattr(wanted, field)) for field in fields] + [
        ("alternate-exchange", known.alternate or None, wanted.alternate or None),
        ("x-delayed-type", known.delayed_type or None, wanted.delayed_type or None),
    ]


# ------------------------------------------------------------------------------------------------------------ bindings


def binding(to: str, key: str, arguments: dict[str, Any], *, to_exchange: bool) -> Binding:
    """Return a binding of an exchange to a queue or to another exchange, by its full name."""
    texts = {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for name, value in arguments.items()
        if not name.startswith("x-")
    }
    return Binding(
        topic=None if to_exchange else to,
        route=to if to_exchange else None,
        match=key,
        headers=texts,
        any_header=_text(arguments.get("x-match", "all")).startswith("any"),
        labels={LABEL: packed(encode_table(arguments))} if arguments else {},
    )


@lru_cache(maxsize=65_536)
def _arguments(label: str) -> dict[str, Any] | None:
    """Return the arguments in a label; None for a label that is not of a binding."""
    try:
        return decode_table(unpacked(label))
    except ValueError:
        _log.warning("ignored a label that is not of a binding", extra={"label": label[:80]})
        return None


def arguments_of(bound: Binding) -> dict[str, Any]:
    """Return the arguments that a binding was made with."""
    declared = _arguments(bound.labels[LABEL]) if LABEL in bound.labels else None
    return dict(bound.headers) if declared is None else declared


def check_match(arguments: dict[str, Any]) -> None:
    """Raise a refusal if `x-match` has a value that does not exist."""
    allowed = ("all", "any", "all-with-x", "any-with-x")
    if _text(arguments.get("x-match", "all")) not in allowed:
        text = f"Invalid x-match field value {arguments['x-match']!r}; expected {', '.join(allowed)}"
        raise refused(Reason.PRECONDITION_FAILED, text)


def headers_match(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """Return whether headers match the arguments of a binding, all or any of them; `None` matches any value."""
    how = _text(arguments.get("x-match", "all"))
    wanted = {
        name: value
        for name, value in arguments.items()
        if name != "x-match" and (how.endswith("-with-x") or not name.startswith("x-"))
    }
    hits = (
        name in headers and (value is None or (headers[name] == value and _like(headers[name], value)))
        for name, value in wanted.items()
    )
    return any(hits) if how.startswith("any") else all(hits)


def _like(one: object, other: object) -> bool:
    """Return whether two values are equal and of one kind: here True is not 1."""
    return isinstance(one, bool) == isinstance(other, bool)


class ExchangeIndex:
    """Finds the exchanges of one virtual host, and the topics that they route a message to."""

    def __init__(self, catalog: CatalogView, host: str) -> None:
        self._catalog, self._host = catalog, host
        self._direct: dict[str, tuple[Route, dict[str, list[Binding]]]] = {}
        """The bindings by key of direct exchanges that were published to; valid while the route is the same object."""

    def forget(self, routes: Iterable[str]) -> None:
        """Drop what is cached of routes that were changed or deleted."""
        for route in routes:
            self._direct.pop(route, None)

    def terms(self, exchange: str) -> ExchangeTerms:
        """Return how an exchange was declared; raise `NOT_FOUND` if there is none."""
        if exchange in BUILT_IN:
            internal = exchange == "amq.rabbitmq.trace"
            return ExchangeTerms(type=BUILT_IN[exchange], durable=True, internal=internal)
        route = self._catalog.routes.get(full_name(self._host, exchange))
        if route is None:
            raise no_exchange(self._host, exchange)
        return terms_of(route)

    def topics(self, exchange: str, key: str, headers: Headers) -> tuple[tuple[str, ...], bool]:
        """Return the topics for a message, and whether its headers had no influence. The exchange must exist."""
        if exchange == "":
            topic = full_name(self._host, key)
            return ((topic,) if topic in self._catalog.topics else ()), True
        route = self._catalog.routes.get(full_name(self._host, exchange))
        if route is None:  # built in, without bindings so far
            return (), True
        looked = False

        def matching(each: Route) -> list[Binding]:
            nonlocal looked
            if each.kind == "headers":
                looked = True
                return [bound for bound in each.bindings if headers_match(arguments_of(bound), headers())]
            if each.kind == "direct":
                return self._by_key(each).get(key, [])
            return routing.matching(each, key, {})

        return tuple(routing.reached(route, self._catalog.routes, matching)), not looked

    def _by_key(self, route: Route) -> dict[str, list[Binding]]:
        known = self._direct.get(route.name)
        if known is None or known[0] is not route:
            keys: dict[str, list[Binding]] = {}
            for bound in route.bindings:
                keys.setdefault(bound.match, []).append(bound)
            if len(self._direct) > 2 * len(self._catalog.routes) + KEPT_SLACK:  # some were deleted over another wire
                routes = self._catalog.routes
                self._direct = {name: each for name, each in self._direct.items() if routes.get(name) is each[0]}
            known = self._direct[route.name] = (route, keys)
        return known[1]
