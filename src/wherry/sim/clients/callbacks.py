"""A client that reports outcomes to producers, asks for fates at random times, and waits for some.

It forgets some reports, like a sender of webhooks that dies between a call and its record: then it reports them again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

import numpy as np

from wherry.broker.broker import Broker
from wherry.model.calls.fate import Outcome
from wherry.model.calls.publish import Published
from wherry.model.errors import WherryError
from wherry.sim.history import Asked, ReportedOutcome, Sent
from wherry.sim.world.world import LOST, World

URL = "http://sim/told"
ROUNDS_MAX = 200


@dataclass
class OutcomeClient:
    """Reports outcomes and asks for fates."""

    world: World
    random: Random

    async def run(self) -> None:
        """Report, ask and wait at random times until the run ends."""
        while True:
            await asyncio.sleep(self.random.expovariate(3))
            try:
                await self.random.choice((self.report, self.report, self.ask, self.wait))()
            except LOST:
                continue
            except WherryError as fault:
                self.world.note("outcome client", str(fault))

    async def report(self, *, forgetful: float = 0.3) -> int:
        """Report some outcomes; return how many. With the chance `forgetful`, do not record that they are reported."""
        limit = self.random.choice((1, 5, 100))

        async def unreported(broker: Broker) -> list[Outcome]:
            return broker.unreported(limit)

        outcomes = await self.world.call(unreported)
        for each in outcomes:
            self.world.note("heard", each)
            place = (each.topic, each.partition, each.offset)
            self.world.history.reported.append(ReportedOutcome(place, each.fate, self.world.now()))
        if outcomes and self.random.random() >= forgetful:
            await self.world.call(lambda broker: broker.reported(outcomes))
        return len(outcomes)

    def _known(self) -> list[Sent]:
        return [sent for sent in self.world.history.sent[-60:] if sent.outcome == "ok" and sent.offset is not None]

    async def ask(self) -> None:
        """Ask for the fate of a message that was published recently."""
        if known := self._known():
            await self.ask_for(self.random.choice(known))

    async def ask_for(self, sent: Sent) -> None:
        """Ask for the fate of one message by the partition and offset of its publish."""
        start = self.world.now()
        fate = (await self.world.call(lambda broker: broker.fate(sent.topic, f"{sent.partition}-{sent.offset}"))).fate
        self._note(sent, fate, start)

    async def wait(self) -> None:
        """Wait until all messages of one publish are delivered, or have ended."""
        if not (known := self._known()):
            return
        first = self.random.choice(known)
        together = [sent for sent in known if sent.group == first.group and sent.topic == first.topic]
        published = Published(
            np.array([sent.partition for sent in together], np.int64),
            np.array([sent.offset for sent in together], np.int64),
        )
        until, timeout_ms = self.random.choice(("delivered", "settled")), self.random.choice((0, 200, 3_000))
        start = self.world.now()
        fates = await self.world.call(
            lambda broker: broker.outcome(first.topic, published, until=until, timeout_ms=timeout_ms)  # type: ignore[arg-type]
        )
        for sent, fate in zip(together, fates.words(), strict=True):
            self._note(sent, fate, start)

    def _note(self, sent: Sent, fate: str, start: float) -> None:
        self.world.note("asked", sent.name, fate)
        self.world.history.asked.append(Asked(sent.name, fate, start, self.world.now()))

    async def finish(self) -> None:
        """Report all outcomes that are left, then ask for the fate of every message."""
        for _ in range(ROUNDS_MAX):
            if not await self.report(forgetful=0):
                break
        else:
            self.world.history.faults.append("report: there is always another outcome to report")
        for sent in self.world.history.sent:
            if sent.outcome == "ok" and sent.offset is not None:
                await self.ask_for(sent)
