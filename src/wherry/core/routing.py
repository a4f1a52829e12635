"""To which topics a route copies a message: pure functions of the route, a routing key and headers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from wherry.model.route import Binding, Route


def targets(route: Route, routing_key: str, headers: Mapping[str, str]) -> list[str]:
    """Topics that get a copy, each once, in the order of the bindings."""
    if route.kind == "fanout":
        matching = [binding.topic for binding in route.bindings]
    elif route.kind == "direct":
        matching = [binding.topic for binding in route.bindings if binding.match == routing_key]
    elif route.kind == "pattern":
        key = _words(routing_key)
        matching = [b.topic for b in route.bindings if _pattern_match(_words(b.match), key)]
    else:
        matching = [binding.topic for binding in route.bindings if _headers_match(binding, headers)]
    return list(dict.fromkeys(matching))


@lru_cache(maxsize=65_536)
def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")) if text else ()


def _pattern_match(pattern: tuple[str, ...], key: tuple[str, ...]) -> bool:
    """Dotted words: `*` is exactly one word, `#` any number of words, none included.

    Only the last `#` is ever widened, so the cost is at most words times words: a regular expression for several `#`
    could be made to run for minutes.
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
