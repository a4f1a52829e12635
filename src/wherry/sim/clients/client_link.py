"""A connection of the Python client on the simulated network: how it ends, and which errors are faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from wherry.broker.broker import Broker
from wherry.client.link.errors import returns
from wherry.model.errors import WherryError
from wherry.sim.clients.links import NEVER, PATIENCE_S, Gone, Refusal
from wherry.sim.world.network import SimTransport
from wherry.sim.world.wires import WireWorld

T = TypeVar("T")


class ClientLink:
    """One connection; its calls raise `Gone` when it ends, and `Refusal` for an error of the broker."""

    beat_s = 0.0
    """Seconds between heartbeats that a run sends; 0 where the client sends them itself, or the wire has none."""

    def __init__(self, world: WireWorld, name: str) -> None:
        self.world, self.name = world, name
        self.transport: SimTransport
        self.is_gone = False
        self.received_at = world.now()
        self.broker: Broker | None = None
        """The broker that the connection was made to."""

    @property
    def is_ending(self) -> bool:
        """Return whether a side has begun to close the connection, or the network has cut it."""
        return self.transport.ended_at < NEVER

    def beat(self) -> None:
        """Do nothing."""

    def drop(self) -> None:
        """Close the connection at once, without a goodbye of the protocol."""
        if hasattr(self, "transport"):
            self.transport.abort()

    async def answer(self, waiting: Awaitable[T], what: str, *, allowed: tuple[type[WherryError], ...] = ()) -> T:
        """Wait for an answer; record a fault if none comes in time, or if the broker refuses what it must not refuse.

        A refusal by a full disk, or by one of the `allowed` errors, is none. A stale lease is a refusal only while the
        connection is open: the session reports it as well for settles under way when the connection ended.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await waiting
        except TimeoutError:
            if not self.is_ending:
                self.world.wire_history.faults.append(f"answers_come: {self.name} waited {PATIENCE_S} s for {what}")
            self.world.network.cut(self.transport)
            raise Gone(f"no answer to {what}") from None
        except WherryError as fault:
            if self.is_gone or returns(fault):
                raise Gone(str(fault)) from fault
            if not (self.has_failed() or self.world.plan.disk_faults or isinstance(fault, allowed)):
                self.broken("rules_kept", f"{what}: {fault!r}")
            raise Refusal(str(fault)) from fault

    def has_failed(self) -> bool:
        """Return whether the journal of the broker has failed: then it may refuse everything."""
        return self.broker is not None and self.broker.failure is not None

    def broken(self, rule: str, what: str) -> None:
        """Record that the broker broke a rule."""
        self.world.wire_history.faults.append(f"{rule}: {self.name} at {self.world.now():.3f}: {what}")
