"""The list of scenarios: what each is called, what it needs of a client, and what it gets to work with."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.amqp.clients.port import Address, Channel, Client, Connection, Declared, Refused

ALL = frozenset(
    {
        "any-expiration",  # an expiration that is no number
        "any-name",  # of a queue: more than letters and digits
        "cluster-id",
        "codes-at-opening",  # the library hands on the code with which the server refused to open a connection
        "doubles",
        "floats",
        "pipelined",  # publishing before the confirm of the last came
        "recover",
        "returns-without-confirms",
        "tx",
        "update-secret",
    }
)
"""What only some clients can do. Everything else they all can."""

FEATURES: dict[str, frozenset[str]] = {
    "pika": ALL - {"pipelined", "floats", "doubles"},
    "aio-pika": ALL
    - {"any-expiration", "any-name", "cluster-id", "codes-at-opening", "doubles", "returns-without-confirms"},
    "kombu": ALL - {"update-secret"},
    "amqplib": ALL - {"cluster-id", "codes-at-opening", "tx"},
}


class Scene:
    """What a scenario works with: connections that are closed after it, and names that no other scenario has."""

    def __init__(self, client: Client, address: Address) -> None:
        self.client, self.address = client, address
        self._token = secrets.token_hex(4)
        self._open: list[Connection] = []
        self._names: list[str] = []

    def connect(self, **changes: Any) -> Connection:
        """Open a connection of the scenario's own."""
        made = self.client.connect(self.address.but(**changes))
        self._open.append(made)
        return made

    def channel(self, *, confirms: bool = False) -> Channel:
        """Open a channel on a connection of its own."""
        return self.connect().channel(confirms=confirms)

    def name(self, word: str) -> str:
        """Return a name for a queue or an exchange; what has the name is deleted in the end."""
        made = f"{word}-{self._token}"
        self._names.append(made)
        return made

    def queue(self, channel: Channel, word: str = "queue", /, **terms: Any) -> str:
        """Declare a new queue with a name of its own, and return the name."""
        declared: Declared = channel.declare_queue(self.name(word), **terms)
        return declared.name

    def exchange(self, channel: Channel, kind: str = "direct", word: str = "", /, **terms: Any) -> str:
        """Declare a new exchange with a name of its own, and return the name."""
        made = self.name(word or kind)
        channel.declare_exchange(made, kind, **terms)
        return made

    def end(self) -> None:
        """Leave nothing behind. What cannot be cleaned up is no failure of the scenario."""
        for connection in self._open:
            with suppress(Exception):
                connection.close()
        if self._names:
            with suppress(Exception):
                last = self.client.connect(self.address)
                channel = last.channel()
                for name in self._names:
                    channel.delete_queue(name)
                    channel.delete_exchange(name)
                last.close()


@contextmanager
def refused(code: int, scope: str = "channel", text: str = "") -> Iterator[None]:
    """Check that the server closes the channel, or the connection, with this code, and these words in its text."""
    try:
        yield
    except Refused as fault:
        assert (fault.scope, fault.code) == (scope, code), fault
        assert text in fault.text, fault
    else:
        raise AssertionError(f"the {scope} was not closed with {code}")


@dataclass(frozen=True)
class Scenario:
    """One thing to show."""

    name: str
    run: Callable[[Scene], None]
    needs: frozenset[str]
    only_here: bool


SCENARIOS: dict[str, Scenario] = {}


def scenario(*needs: str, only_here: bool = False) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Put a function on the list. `needs` are features; `only_here` is for what a plain RabbitMQ does not have."""

    def add(run: Callable[[Scene], None]) -> Callable[[Scene], None]:
        assert run.__name__ not in SCENARIOS, run.__name__
        SCENARIOS[run.__name__] = Scenario(run.__name__, run, frozenset(needs), only_here)
        return run

    return add


def names_for(client: str, *, with_only_here: bool) -> list[str]:
    """Return the scenarios that a client can run."""
    return [
        each.name
        for each in SCENARIOS.values()
        if each.needs <= FEATURES[client] and (with_only_here or not each.only_here)
    ]
