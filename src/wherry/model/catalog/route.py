"""Routes: rules that copy a publish to topics."""

from __future__ import annotations

from typing import Literal

import msgspec

from wherry.model import check, limits
from wherry.model.errors import InvalidInput

Kind = Literal["direct", "fanout", "pattern", "headers"]
KINDS: tuple[Kind, ...] = ("direct", "fanout", "pattern", "headers")

BINDINGS_MAX = 100_000


class Binding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rule of a route: the topic, or the other route, that gets a message, and when.

    `match` is the routing key (`direct`), or a pattern of dotted words in which `*` is one word and `#` any number
    (`pattern`). All `headers` must be present, or one of them with `any_header` (`headers`); no headers match every
    message. `labels` are notes of the client that made it; the broker stores them and does not read them.
    """

    topic: str | None = None
    match: str = ""
    headers: dict[str, str] = {}
    any_header: bool = False
    route: str | None = None
    labels: dict[str, str] = {}

    def check(self) -> None:
        """Raise `InvalidInput` for the first field that breaks a rule."""
        if (self.topic is None) == (self.route is None):
            raise InvalidInput("binding.topic, binding.route", self.topic, "the name of a topic or of a route")
        if self.route is not None:
            check.name("binding.route", self.route, limits.ROUTE_NAME_CHARS_MAX)
        else:
            check.name("binding.topic", self.topic, limits.TOPIC_NAME_BYTES_MAX)
        if len(check.text("binding.match", self.match).encode()) > limits.KEY_BYTES_MAX:
            raise InvalidInput("binding.match", self.match, f"text of at most {limits.KEY_BYTES_MAX} bytes")
        if not isinstance(self.headers, dict):
            raise InvalidInput("binding.headers", self.headers, "a dict of text to text")
        check.integer("binding.headers", len(self.headers), 0, limits.HEADERS_MAX)
        for pair in self.headers.items():
            for text in pair:
                check.text("binding.headers", text)
        check.flag("binding.any_header", self.any_header)
        check.labels("binding.labels", self.labels)


class Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named set of rules: `direct`, `fanout`, `pattern` or `headers`.

    `otherwise` is the route to use if no binding matches. `labels` are notes, stored and not read.
    """

    name: str
    kind: Kind
    bindings: tuple[Binding, ...] = ()
    otherwise: str | None = None
    labels: dict[str, str] = {}

    def checked(self) -> Route:
        """Return this route, or raise `InvalidInput` for the first field that breaks a rule."""
        check.name("route", self.name, limits.ROUTE_NAME_CHARS_MAX)
        check.one_of("kind", self.kind, KINDS)
        if not isinstance(self.bindings, tuple | list):
            raise InvalidInput("bindings", self.bindings, "a tuple of Binding")
        check.integer("bindings", len(self.bindings), 0, BINDINGS_MAX)
        if self.otherwise is not None:
            check.name("otherwise", self.otherwise, limits.ROUTE_NAME_CHARS_MAX)
        check.labels("labels", self.labels)
        for binding in self.bindings:
            if not isinstance(binding, Binding):
                raise InvalidInput("bindings", binding, "a Binding each")
            binding.check()
        return self
