"""To which topics a route sends a message: pure functions of the route, a routing key and headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from wherry.model.catalog.route import Binding, Route


def targets(
    route: Route, routing_key: str, headers: Mapping[str, str], routes: Mapping[str, Route] = MappingProxyType({})
) -> list[str]:
    """Return the topics that get a copy, each once, in the order of the bindings."""
    return reached(route, routes, lambda each: matching(each, routing_key, headers))


def reached(route: Route, routes: Mapping[str, Route], matches: Callable[[Route], Sequence[Binding]]) -> list[str]:
    """Return the topics of matching bindings: those of the route first, then those of the routes that it leads to.

    A route that leads back to itself is followed once; a deleted route leads nowhere.
    """
    found: dict[str, None] = {}
    taken = {route.name}
    waiting = [route]
    for each in waiting:
        bindings = matches(each)
        found |= dict.fromkeys(binding.topic for binding in bindings if binding.topic is not None)
        onward = [binding.route for binding in bindings if binding.route is not None]
        if not bindings and each.otherwise is not None:
            onward = [each.otherwise]
        for name in onward:
            if name in routes and name not in taken:
                taken.add(name)
                waiting.append(routes[name])
    return list(found)


def matching(route: Route, routing_key: str, headers: Mapping[str, str]) -> list[Binding]:
    """Return the bindings of a route that match."""
    if route.kind == "fanout":
        return list(route.bindings)
    if route.kind == "direct":
        return [binding for binding in route.bindings if binding.match == routing_key]
    if route.kind == "pattern":
        key = _words(routing_key)
        return [binding for binding in route.bindings if pattern_match(_words(binding.match), key)]
    return [binding for binding in route.bindings if _headers_match(binding, headers)]


@lru_cache(maxsize=65_536)
def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")) if text else ()


def pattern_match(pattern: tuple[str, ...], key: tuple[str, ...]) -> bool:
    """Match dotted words: `*` is exactly one word, `#` any number of words, also none.

    Only the last `#` is ever widened, so the cost is at most the product of the numbers of words. A regular expression
    with several `#` could take minutes.
    """
    at, word, widened, resume = 0, 0, -1, 0
    while word < len(key):
        if at < len(pattern) and pattern[at] == "#":
            widened, resume = at, word
            at += 1
        elif at < len(pattern) and pattern[at] in ("*", key[word]):
            at, word = at + 1, word + 1
        elif widened >= 0:
            resume += 1
            at, word = widened + 1, resume
        else:
            return False
    return all(rest == "#" for rest in pattern[at:])


def _headers_match(binding: Binding, headers: Mapping[str, str]) -> bool:
    hits = (headers.get(name) == value for name, value in binding.headers.items())
    return any(hits) if binding.any_header else all(hits)
