"""One request of a tool: who asks, for what, and with which words; and what it gets for an answer."""

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
"""The topic of what is no single one's: only who may do everything may do it."""

DEFAULT_EXCHANGE = "amq.default"
"""What the exchange without a name is called in a path."""

BODY_BYTES_MAX = 1 << 20
"""Of the body of a call, but for those that carry a message or everything at once."""

DIGITS_MAX = 19
"""Of a number that is sent as text: more do not fit into 64 bits, and some thousands take long to read."""

SEES_ALL = frozenset({"monitoring", ADMINISTRATOR})
"""Tags of those who see what is in every virtual host, and everybody's connections."""

Row = dict[str, Any]


class Reply(NamedTuple):
    """A status, and what is told as JSON; None for nothing."""

    status: int
    value: Any | None = None
    location: str = ""


@dataclass(slots=True)
class Ask:
    """What somebody wants."""

    queueing: Queueing
    login: Login
    parts: list[str]
    """The path below `/api/`, each part decoded."""
    query: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""
    """The body as it came."""
    reason: str = ""
    """Why, in the words of whoever asks."""
    known: Row | None = None
    """What is in the body, once that was read."""

    @property
    def body(self) -> Row:
        """What is in the body. It is decoded when somebody looks: a call asks for its right before it does."""
        if self.known is None:
            self.known = decoded(self.raw)
        return self.known

    def check(self, verb: Verb, topic: str) -> None:
        """`Forbidden` without the right."""
        self.login.check(verb, topic)

    def check_admin(self) -> None:
        """`Forbidden` for all but those who may do everything."""
        self.login.check("admin", EVERYTHING)

    @property
    def sees_all(self) -> bool:
        """Whether it is shown what is others' too."""
        return not SEES_ALL.isdisjoint(self.login.tags)

    def sees(self, topic: str) -> bool:
        """Whoever may consume a topic sees it."""
        try:
            self.login.check("consume", topic)
        except Forbidden:
            return False
        return True

    def sees_host(self, name: str) -> bool:
        """Whoever may do something in a virtual host sees it, and its exchanges."""
        return self.login.has_some(("publish", "consume", "admin"), name)

    def host(self, name: str) -> VirtualHost:
        """A virtual host that whoever asks is let into, as over AMQP; `NotFound` or `Forbidden`."""
        return self.queueing.enter(name, self.login)

    def check_known(self, name: str) -> str:
        """The name of a virtual host, for administrators, who need not be let into it; `NotFound`."""
        self.check_admin()
        if name not in self.queueing.hosts:
            raise NotFound("vhost", name)
        return name

    # ------------------------------------------------------------------------------------------- fields of the body

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is text; required without a default."""
        value = self.body.get(name, default)
        if not isinstance(value, str):
            raise InvalidInput(name, value, "text" if name in self.body else "this field, which is required")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A field that is true or false; tools send it as text too."""
        value = self.body.get(name, default)
        value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise InvalidInput(name, value, "true or false")
        return value

    def number(self, name: str, default: int) -> int:
        """A field that is a whole number from 0 on; tools send it as text too."""
        value = self.body.get(name, default)
        if isinstance(value, str) and value.isdecimal() and len(value) <= DIGITS_MAX:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidInput(name, value, "a whole number from 0 on")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """A field that is an object; none counts as an empty one. As deep as the protocol has tables, and no deeper."""
        value = self.body.get(name) or {}
        if not isinstance(value, dict):
            raise InvalidInput(name, value, "an object")
        if not _is_shallow(value, DEEPEST):
            raise InvalidInput(name, "{…", f"objects and lists that lie at most {DEEPEST} deep within each other")
        return value

    def asks(self, name: str) -> bool:
        """Whether the query says `name=true`."""
        return self.query.get(name, "").lower() == "true"


def decoded(raw: bytes) -> Row:
    """What a call brings: an object, or nothing."""
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
    """Whether no more than so many objects and lists lie within each other."""
    level = [value]
    for _ in range(deepest):
        within = [each.values() if isinstance(each, dict) else each for each in level]
        level = [inner for each in within for inner in each if isinstance(inner, dict | list)]
        if not level:
            return True
    return False


def exchange_name(part: str) -> str:
    """The name of an exchange that stands in a path."""
    return "" if part == DEFAULT_EXCHANGE else part


def sessions(queueing: Queueing) -> list[Session]:
    """All connections by AMQP."""
    return [each for each in queueing.clients if isinstance(each, Session)]
