"""What every client library can do, in one set of words: scenarios are written once, in these, and run on each of them.

Scenarios run inside the environment of a client, so nothing here may need more than the standard library.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlsplit

PATIENCE_S = 10.0
"""How long something that must come may take. Nothing is asserted about it: it only ends what would hang."""

QUIET_S = 0.25
"""How long to look for something that must not come."""


@dataclass(frozen=True)
class Address:
    """Where a broker is, and the user to log in as."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    heartbeat_s: int = 0

    @classmethod
    def of(cls, url: str) -> Address:
        """Return the address in a URL; what the URL leaves out is as RabbitMQ has it."""
        parts = urlsplit(url)
        return cls(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 5672,
            user=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
            vhost=unquote(parts.path[1:]) or "/",
        )

    def but(self, **changes: Any) -> Address:
        return replace(self, **changes)


class Refused(Exception):
    """The server closed a channel or the connection."""

    def __init__(self, scope: str, code: int, text: str) -> None:
        super().__init__(f"{scope} closed: {code} {text}")
        self.scope, self.code, self.text = scope, code, text


@dataclass
class Message:
    """A message that was delivered, got or returned. `properties` has only those that came over the wire."""

    body: bytes
    exchange: str = ""
    key: str = ""
    properties: dict[str, Any] = field(default_factory=dict)
    tag: int = 0
    redelivered: bool = False
    consumer: str = ""
    left: int = 0
    code: int = 0
    text: str = ""

    @property
    def headers(self) -> dict[str, Any]:
        found: dict[str, Any] = self.properties.get("headers") or {}
        return found


@dataclass(frozen=True)
class Declared:
    """The server's answer to the declaration of a queue."""

    name: str
    messages: int
    consumers: int


class Channel(ABC):
    """A channel. What the server closes raises `Refused` here, at the latest in the next call that has an answer."""

    adds: frozenset[str] = frozenset()
    """The properties that the library sets by itself."""

    def __init__(self) -> None:
        self.arrived: deque[Message] = deque()
        self.returned: deque[Message] = deque()
        self.cancelled: deque[str] = deque()

    @abstractmethod
    def pump(self, seconds: float) -> None:
        """Let the client take in what came, for about so long."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Declared: ...

    @abstractmethod
    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; return how many messages it had."""

    @abstractmethod
    def purge(self, name: str) -> int: ...

    @abstractmethod
    def bind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None: ...

    @abstractmethod
    def unbind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None: ...

    @abstractmethod
    def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None: ...

    @abstractmethod
    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None: ...

    @abstractmethod
    def bind_exchange(
        self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None: ...

    @abstractmethod
    def unbind_exchange(
        self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None: ...

    @abstractmethod
    def publish(
        self, exchange: str, key: str, body: bytes = b"", *, mandatory: bool = False, **properties: Any
    ) -> bool:
        """Publish; return whether it was confirmed, True at once on a channel without confirms."""

    @abstractmethod
    def publish_all(self, exchange: str, key: str, bodies: list[bytes]) -> list[bool]:
        """Publish without waiting between them, then wait for every confirm."""

    @abstractmethod
    def qos(self, count: int, *, whole_channel: bool = False) -> None:
        """Bound unsettled messages per consumer, or for all consumers of the channel."""

    @abstractmethod
    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        """Consume, and return the tag of the new consumer; its messages come into `arrived`."""

    @abstractmethod
    def cancel(self, tag: str) -> None: ...

    @abstractmethod
    def get(self, queue: str, *, no_ack: bool = False) -> Message | None: ...

    @abstractmethod
    def ack(self, tag: int, *, multiple: bool = False) -> None: ...

    @abstractmethod
    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None: ...

    @abstractmethod
    def reject(self, tag: int, *, requeue: bool = True) -> None: ...

    @abstractmethod
    def recover(self) -> None:
        """Return everything unacknowledged to its queue."""

    @abstractmethod
    def tx_select(self) -> None: ...

    @abstractmethod
    def tx_commit(self) -> None: ...

    @abstractmethod
    def tx_rollback(self) -> None: ...

    # ------------------------------------------------------------------ the same for every client

    def next(self) -> Message:
        """Return the next message that was delivered here."""
        return self._awaited(self.arrived, "no message came")

    def take(self, count: int) -> list[Message]:
        """Return the next so many messages."""
        return [self.next() for _ in range(count)]

    def bodies(self, count: int) -> list[bytes]:
        """Return the bodies of the next so many messages."""
        return [message.body for message in self.take(count)]

    def next_returned(self) -> Message:
        """Return the next message that came back to its publisher."""
        return self._awaited(self.returned, "nothing was returned")

    def next_cancelled(self) -> str:
        """Return the tag of the next consumer that the server cancelled."""
        return self._awaited(self.cancelled, "no consumer was cancelled")

    def is_quiet(self) -> bool:
        """Return whether nothing is delivered for a moment."""
        end = time.monotonic() + QUIET_S
        while not self.arrived and time.monotonic() < end:
            self.pump(0.05)
        return not self.arrived

    def _awaited(self, box: deque[Any], missing: str) -> Any:
        end = time.monotonic() + PATIENCE_S
        while not box:
            assert time.monotonic() < end, missing
            self.pump(0.1)
        return box.popleft()

    def drain(self, queue: str) -> list[Message]:
        """Take all messages that wait in a queue."""
        found = []
        while (message := self.get(queue, no_ack=True)) is not None:
            found.append(message)
        return found

    def count(self, queue: str) -> int:
        """Return how many messages are ready in a queue."""
        return self.declare_queue(queue, passive=True).messages

    def until_count(self, queue: str, messages: int) -> None:
        """Wait until so many messages are ready in a queue."""
        end = time.monotonic() + PATIENCE_S
        while (now := self.count(queue)) != messages:
            assert time.monotonic() < end, f"{now} messages are ready, not {messages}"
            self.pump(0.02)


class Connection(ABC):
    """A connection that is open."""

    server_properties: dict[str, Any]
    channel_max: int
    frame_max: int
    heartbeat_s: int

    @abstractmethod
    def channel(self, *, confirms: bool = False) -> Channel: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def is_open(self) -> bool: ...

    @abstractmethod
    def idle(self, seconds: float) -> None:
        """Do nothing but what keeps the connection alive."""

    @abstractmethod
    def update_secret(self, secret: str, reason: str) -> None: ...


class Client(ABC):
    """A client library."""

    @abstractmethod
    def connect(self, address: Address) -> Connection:
        """Raises `Refused` with the code that the server gave."""
