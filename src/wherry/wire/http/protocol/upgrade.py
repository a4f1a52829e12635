"""Handing a connection over to another protocol, and the interface that the server needs of that protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast


class Guest(Protocol):
    """An open connection, as the server sees it."""

    def tick(self, now: float) -> None:
        """End what takes too long; called about once a second with the time of the server's clock."""

    def finish(self) -> None:
        """Close now if idle, else as soon as possible, since the server closes."""

    def abort(self) -> None:
        """Close at once."""


class Upgrade(Guest, Protocol):
    """An answer that takes over the connection: a protocol of asyncio, made and not yet begun.

    `begin` writes the answer with status 101. `rest` has the bytes that the client sent after its request; `left` must
    be called once, when the connection is closed.
    """

    def begin(self, transport: asyncio.Transport, rest: bytes, left: Callable[[], None]) -> None:
        """Begin to use the transport."""


def hand_over(transport: asyncio.Transport, upgrade: Upgrade, rest: bytes, left: Callable[[], None]) -> None:
    """Change the protocol of a transport, pausing reads meanwhile: a loop chooses how to read when reading begins."""
    transport.pause_reading()
    transport.set_protocol(cast(asyncio.BaseProtocol, upgrade))
    transport.resume_reading()
    upgrade.begin(transport, rest, left)
