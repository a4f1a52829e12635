"""A connection that goes on in another protocol, and what the server asks of whoever goes on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast


class Guest(Protocol):
    """An open connection, as the server sees it."""

    def tick(self, now: float) -> None:
        """About once a second, by the steady clock: end what takes too long."""

    def finish(self) -> None:
        """The server is closing: go now if idle, else as soon as possible."""

    def abort(self) -> None:
        """Go at once."""


class Upgrade(Guest, Protocol):
    """An answer that takes the connection over: a protocol of asyncio, made and not yet begun.

    `begin` writes the answer with status 101. `rest` is what the client sent behind its request; `left` is to be called
    once, when the connection is gone.
    """

    def begin(self, transport: asyncio.Transport, rest: bytes, left: Callable[[], None]) -> None:
        """The transport is yours."""


def hand_over(transport: asyncio.Transport, upgrade: Upgrade, rest: bytes, left: Callable[[], None]) -> None:
    """Change the protocol of a transport. It pauses meanwhile: a loop chooses how to read when reading begins."""
    transport.pause_reading()
    transport.set_protocol(cast(asyncio.BaseProtocol, upgrade))
    transport.resume_reading()
    upgrade.begin(transport, rest, left)
