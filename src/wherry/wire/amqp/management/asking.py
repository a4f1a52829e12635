"""One request of a management tool: the user, the path and the body; and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from wherry.model.catalog.key import ADMINISTRATOR, Verb
from wherry.model.errors import Forbidden, InvalidInput, NotFound
from wherry.queueing.hosts.virtual_host import VirtualHost
from wherry.queueing.login import Login
from wherry.queueing.message.table import DEEPEST
from wherry.queueing.queueing import Queueing
from wherry.wire.amqp.session import Session

EVERYTHING = "*"
"""The topic for rights on everything, for calls that concern no single topic."""

DEFAULT_EXCHANGE = "amq.default"
"""The name of the default exchange, whose own name is empty, in a path."""

BODY_BYTES_MAX = 1 << 20
"""The largest body of a call, except a publish and definitions."""

DIGITS_MAX = 19
"""Most digits of a number that is sent as text: more do not fit into 64 bits, and thousands take long to read."""

SEES_ALL = frozenset({"monitoring", ADMINISTRATOR})
"""Tags of users that see all virtual hosts, and the connections of all users."""

Row = dict[str, Any]


class ManagementAnswer(NamedTuple):
    """A status, and the value of the JSON answer; None for no body."""

    status: int
    value: Any | None = None
    location: str = ""


@dataclass(slots=True)
class ManagementCall:
    """A request of a management tool."""

    queueing: Queueing
    login: Login
    parts: list[str]
    """The path below `/api/`, each part decoded."""
    query: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""
    """The body as it came."""
    reason: str = ""
    """The reason that the user gave."""
    known: Row | None = None
    """The decoded body, once it was needed."""

    @property
    def body(self) -> Row:
        """Return the decoded body. It is decoded at the first use, since a call checks its right before."""
        if self.known is None:
            self.known = decoded(self.raw)
        return self.known

    def check(self, verb: Verb, topic: str) -> None:
        """Raise `Forbidden` without the right."""
        self.login.check(verb, topic)

    def check_admin(self) -> None:
        """Raise `Forbidden` without the right to everything."""
        self.login.check("admin", EVERYTHING)

    @property
    def sees_all(self) -> bool:
        """Return whether the user sees what belongs to others too."""
        return not SEES_ALL.isdisjoint(self.login.tags)

    def sees(self, topic: str) -> bool:
        """Return whether the user sees a topic: it may consume it."""
        try:
            self.login.check("consume", topic)
        except Forbidden:
            return False
        return True

    def sees_host(self, name: str) -> bool:
        """Return whether the user sees a virtual host and its exchanges: it has some right in it."""
        return self.login.has_some(("publish", "consume", "admin"), name)

    def host(self, name: str) -> VirtualHost:
        """Return a virtual host that the user may enter, as over AMQP; `NotFound` or `Forbidden`."""
        return self.queueing.enter(name, self.login)

    def check_known(self, name: str) -> str:
        """Return the name of a virtual host, for administrators, who need no right to enter it; `NotFound`."""
        self.check_admin()
        if name not in self.queueing.hosts:
            raise NotFound("vhost", name)
        return name

    # ------------------------------------------------------------------------------------------- fields of the body

    def text(self, name: str, default: str | None = None) -> str:
        """Return a field that is text; required without a default."""
        value = self.body.get(name, default)
        if not isinstance(value, str):
            raise InvalidInput(name, value, "text" if name in self.body else "this field, which is required")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a field that is true or false; tools send it as text too."""
        value = self.body.get(name, default)
        value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise InvalidInput(name, value, "true or false")
        return value

    def number(self, name: str, default: int) -> int:
        """Return a field that is a whole number from 0 on; tools send it as text too."""
        value = self.body.get(name, default)
        if isinstance(value, str) and value.isdecimal() and len(value) <= DIGITS_MAX:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidInput(name, value, "a whole number from 0 on")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """Return a field that is an object, empty if absent. It may be nested as deep as tables of the protocol."""
        value = self.body.get(name) or {}
        if not isinstance(value, dict):
            raise InvalidInput(name, value, "an object")
        if not _is_shallow(value, DEEPEST):
            raise InvalidInput(name, "{…", f"objects and lists that lie at most {DEEPEST} deep within each other")
        return value

    def asks(self, name: str) -> bool:
        """Return whether the query has `name=true`."""
        return self.query.get(name, "").lower() == "true"


def decoded(raw: bytes) -> Row:
    """Decode the body of a call: an object, or nothing."""
    if not raw.strip():
        return {}
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise InvalidInput("body", raw[:80], "JSON") from None
    if not isinstance(found, dict):
        raise InvalidInput("body", raw[:80], "an object of JSON")
    return found


def _is_shallow(value: Any, deepest: int) -> bool:
    """Return whether objects and lists are nested no deeper than `deepest`."""
    level = [value]
    for _ in range(deepest):
        within = [each.values() if isinstance(each, dict) else each for each in level]
        level = [inner for each in within for inner in each if isinstance(inner, dict | list)]
        if not level:
            return True
    return False


def exchange_name(part: str) -> str:
    """Return the name of an exchange from a part of a path."""
    return "" if part == DEFAULT_EXCHANGE else part


def sessions(queueing: Queueing) -> list[Session]:
    """Return all connections of AMQP."""
    return [each for each in queueing.clients if isinstance(each, Session)]
