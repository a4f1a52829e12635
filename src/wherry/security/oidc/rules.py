"""The rules that turn the claims of a token into rights: on topics, and to call methods of services.

    realm:order-clerk   ->  publish:orders.* consume:orders.answers
    client:shop:admin   ->  admin
    scope:bill          ->  call:billing.*
    claim:groups=ops    ->  consume
    anyone              ->  publish:hello

The role of a client is what is behind the last colon, since clients are often named by URLs; of a role with a colon,
`claim:resource_access.shop.roles=orders:read` is the rule.

Left of the arrow is what a token must have: a role of Keycloak's realm, a role of one of its clients, a scope, a value
of any claim, or nothing at all. Right of it is what the token gets: verbs on topics as API keys have them, and `call`
with a pattern of `service.method`. A claim that no rule names gives nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from wherry.model import check
from wherry.model.catalog.key import Right, fits, parse_right
from wherry.model.errors import InvalidInput

RULES_MAX = 256
GRANTS_MAX = 64
"""Grants of one rule."""

RULE_CHARS_MAX = 4_096
PATTERN_CHARS_MAX = 257
"""Of a service's name, a dot and a method's name, each with at most 128."""

ARROW = "->"
ALLOWED = (
    "realm:<role>, client:<client>:<role>, scope:<scope>, claim:<name>=<value> or anyone, then -> and grants such as "
    "publish:orders.* consume admin:jobs call:billing.*"
)


class Rule(NamedTuple):
    """What a token must have, and what it gets for it."""

    path: tuple[str, ...]
    """Where in the claims to look; empty for `anyone`."""
    value: str
    splits: bool
    """Whether the claim is a text of several values with blanks between, as `scope` is."""
    rights: tuple[Right, ...]
    methods: tuple[str, ...]

    def applies(self, claims: Mapping[str, Any]) -> bool:
        """Return whether the claims have the value."""
        if not self.path:
            return True
        found = _found(claims, self.path)
        if isinstance(found, str):
            return self.value in found.split(" ") if self.splits else found == self.value
        return isinstance(found, list) and any(isinstance(each, str) and each == self.value for each in found)


class Granted(NamedTuple):
    """What the claims of a token give."""

    rights: tuple[Right, ...] = ()
    methods: tuple[str, ...] = ()

    def may_call(self, method: str) -> bool:
        """Return whether a method, `service.method`, may be called."""
        return any(fits(pattern, method) for pattern in self.methods)


class Rules:
    """All rules of a node."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        texts = tuple(texts)
        check.integer("oidc.rules", len(texts), 0, RULES_MAX)
        self._rules = tuple(parse_rule(text) for text in texts)

    def granted(self, claims: Mapping[str, Any]) -> Granted:
        """Return what all rules that apply give together, each grant once."""
        rights: dict[Right, None] = {}
        methods: dict[str, None] = {}
        for rule in self._rules:
            if rule.applies(claims):
                rights |= dict.fromkeys(rule.rights)
                methods |= dict.fromkeys(rule.methods)
        return Granted(tuple(rights), tuple(methods))


def parse_rule(text: str) -> Rule:
    """Parse one rule.

    Examples
    --------
    >>> rule = parse_rule("realm:clerk -> publish:orders.* call:billing.*")
    >>> rule.applies({"realm_access": {"roles": ["clerk"]}}), rule.rights, rule.methods
    (True, (Right(verb='publish', topics='orders.*'),), ('billing.*',))
    """
    source, arrow, given = text.partition(ARROW)
    grants = given.split()
    if not arrow or not 1 <= len(grants) <= GRANTS_MAX or len(text) > RULE_CHARS_MAX:
        raise InvalidInput("oidc.rules", text, ALLOWED)
    if any(each.endswith(":") for each in grants):  # a pattern that was forgotten must not mean everything
        raise InvalidInput("oidc.rules", text, ALLOWED)
    path, value, splits = _source(source.strip(), text)
    rights = tuple(parse_right(each) for each in grants if not _is_call(each))
    methods = tuple(_pattern(each) for each in grants if _is_call(each))
    return Rule(path, value, splits, rights, methods)


def _source(source: str, text: str) -> tuple[tuple[str, ...], str, bool]:
    """Return where to look, for which value, and whether the claim is split at blanks."""
    kind, _, rest = source.partition(":")
    client, colon, role = rest.rpartition(":")
    name, _, value = rest.partition("=")
    if any(each != each.strip() for each in (rest, client, role, name, value)):
        raise InvalidInput("oidc.rules", text, ALLOWED)
    if source == "anyone":
        return (), "", False
    if kind == "realm" and rest:
        return ("realm_access", "roles"), rest, False
    if kind == "client" and client and colon and role:
        return ("resource_access", client, "roles"), role, False
    if kind == "scope" and rest and " " not in rest:
        return ("scope",), rest, True
    if kind == "claim" and name and value:
        return (name,), value, False
    raise InvalidInput("oidc.rules", text, ALLOWED)


def _is_call(grant: str) -> bool:
    return grant.partition(":")[0] == "call"


def _pattern(grant: str) -> str:
    return check.graphic("oidc.rules", grant.partition(":")[2] if ":" in grant else "*", PATTERN_CHARS_MAX)


def _found(claims: Mapping[str, Any], path: tuple[str, ...]) -> object:
    """Return the value at a path; a name with dots that is no claim of its own leads through nested objects."""
    if len(path) == 1 and path[0] not in claims:
        path = tuple(path[0].split("."))
    found: object = claims
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found
