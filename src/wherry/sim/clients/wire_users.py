"""A client of any wire: it connects, works and parts, again and again, and records what it publishes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Generic, Protocol, TypeVar

from wherry.sim.clients.links import NEVER, Gone, Refusal
from wherry.sim.history import Outcome, Sent
from wherry.sim.wire_plan import Wire
from wherry.sim.world.network import SimTransport
from wherry.sim.world.wires import WireWorld


class UserLink(Protocol):
    """A connection, as far as it is the same on all wires."""

    name: str
    transport: SimTransport
    is_gone: bool
    received_at: float
    beat_s: float

    @property
    def is_ending(self) -> bool:
        """Return whether the connection has begun to end."""

    async def connect(self) -> None:
        """Connect and log in."""

    async def close(self) -> None:
        """Close by the protocol."""

    def drop(self) -> None:
        """Close at once."""

    def beat(self) -> None:
        """Send a heart-beat."""


L = TypeVar("L", bound=UserLink)


@dataclass
class WireUser(Generic[L]):
    """One client of a wire, with one connection at a time."""

    world: WireWorld
    name: str
    wire: Wire
    random: Random
    connections: int = 0

    async def run(self) -> None:
        """Connect and work, again and again, until the work is done."""
        while not self.is_done():
            await asyncio.sleep(self.random.uniform(0, 0.3))
            self.connections += 1
            name = f"{self.name}-{self.connections}"
            try:
                await self._once(self.link(name))
            except (Gone, Refusal) as fault:
                self.world.note("gone", name, str(fault))

    def link(self, name: str) -> L:
        """Return a connection that is not open yet."""
        raise NotImplementedError

    async def _once(self, link: L) -> None:
        beating = asyncio.create_task(self._beat(link))
        try:
            await link.connect()
            await self.work(link)
            self.leaving(min(self.world.now(), link.transport.ended_at))
            await self._part(link)
        except BaseException:
            link.drop()
            raise
        finally:
            beating.cancel()
            if hasattr(link, "transport"):  # else it was cancelled before it was connected
                self.leaving(link.transport.ended_at)

    async def _part(self, link: L) -> None:
        """Close by the protocol, without it, or one direction only."""
        how = self.random.random()
        if how < 0.4:
            await link.close()
        elif how < 0.6:
            link.transport.write_eof()
            await asyncio.sleep(self.random.uniform(0, 1))
            link.transport.close()
        else:
            link.transport.abort()

    async def _beat(self, link: L) -> None:
        """Send heart-beats, and check that the broker sends its own."""
        with suppress(Gone):
            while not link.is_gone:
                await asyncio.sleep(link.beat_s / 3 or 1.0)
                now, silent_s = self.world.now(), self.world.now() - link.received_at
                if not link.beat_s or link.is_ending:
                    continue
                link.beat()
                if silent_s > 2 * link.beat_s + 1 and self.world.paused_until < now - silent_s:
                    self.world.wire_history.faults.append(
                        f"beats_come: {link.name} received nothing for {silent_s:.1f} s"
                    )
                    return

    def is_done(self) -> bool:
        """Return whether all work is done."""
        raise NotImplementedError

    async def work(self, link: L) -> None:
        """Work over an open connection."""
        raise NotImplementedError

    def leaving(self, since: float) -> None:
        """Handle that the connection is closed, or will be soon."""

    def sent(self, sender: str, number: int, queue: str, group: int, outcome: Outcome, *, persistent: bool) -> Sent:
        """Record a message that is about to be published."""
        made = Sent(
            name=f"{sender}-{number}",
            topic=queue,
            start=self.world.now(),
            end=NEVER,
            outcome=outcome,
            persistent=persistent,
            group=group,
            sender=sender,
            number=number,
        )
        self.world.wire_history.sent.append(made)
        return made

    def body(self, sent: Sent) -> bytes:
        """Return the payload of a message: its name, padded."""
        return sent.name.encode() + b"." * self.random.choice((0, 0, 0, 200, 5_000))
