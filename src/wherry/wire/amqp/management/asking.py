"""One request of a tool: who asks, for what, and with which words; and what it gets for an answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wherry.model.errors import Forbidden, InvalidInput, NotFound
from wherry.model.key import Verb
from wherry.wire.amqp.host import Host
from wherry.wire.amqp.house import House
from wherry.wire.amqp.login import Login

EVERYTHING = "*"
"""The topic of what is no single one's."""

DEFAULT_EXCHANGE = "amq.default"
"""What the exchange without a name is called in a path."""

Row = dict[str, Any]


class Reply(NamedTuple):
    """A status, and what is told as JSON; None for nothing."""

    status: int
    value: Any | None = None
    location: str = ""


@dataclass(slots=True)
class Ask:
    """What somebody wants."""

    house: House
    login: Login
    parts: list[str]
    """The path below `/api/`, each part decoded."""
    query: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    """Why, in the words of whoever asks."""

    def check(self, verb: Verb, topic: str) -> None:
        """`Forbidden` without the right."""
        self.login.check(verb, topic)

    def check_admin(self) -> None:
        """`Forbidden` for all but those who may do everything."""
        self.login.check("admin", EVERYTHING)

    def sees(self, topic: str) -> bool:
        """Whoever may consume a topic sees it; what is no topic's everybody sees who is let in."""
        if topic == EVERYTHING:
            return True
        try:
            self.login.check("consume", topic)
        except Forbidden:
            return False
        return True

    def host(self, name: str) -> Host:
        """A virtual host, or `NotFound`."""
        found = self.house.hosts.get(name)
        if found is None:
            raise NotFound("vhost", name)
        return found

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
        value = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidInput(name, value, "a whole number from 0 on")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """A field that is an object; none counts as an empty one."""
        value = self.body.get(name) or {}
        if not isinstance(value, dict):
            raise InvalidInput(name, value, "an object")
        return value

    def asks(self, name: str) -> bool:
        """Whether the query says `name=true`."""
        return self.query.get(name, "").lower() == "true"


def exchange_name(part: str) -> str:
    """The name of an exchange that stands in a path."""
    return "" if part == DEFAULT_EXCHANGE else part
