"""Those who want to know what became of messages: one who tells producers, asks at random times, and waits for some.

It is forgetful, as a sender of webhooks may be that dies between a call and its note of it: then it tells again.
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
from wherry.sim.history import Asked, Heard, Sent
from wherry.sim.world.world import LOST, World

URL = "http://sim/told"
ROUNDS_MAX = 200


@dataclass
class OutcomeClient:
    """Tells and asks."""

    world: World
    random: Random

    async def run(self) -> None:
        """Now and then, until the run ends."""
        while True:
            await asyncio.sleep(self.random.expovariate(3))
            try:
                await self.random.choice((self.report, self.report, self.ask, self.wait))()
            except LOST:
                continue
            except WherryError as fault:
                self.world.note("outcome client", str(fault))

    async def report(self, *, forgetful: float = 0.3) -> int:
        """Tell what there is to tell; how much it was."""
        limit = self.random.choice((1, 5, 100))

        async def unreported(broker: Broker) -> list[Outcome]:
            return broker.unreported(limit)

        outcomes = await self.world.call(unreported)
        for each in outcomes:
            self.world.note("heard", each)
            place = (each.topic, each.partition, each.offset)
            self.world.history.heard.append(Heard(place, each.fate, self.world.now()))
        if outcomes and self.random.random() >= forgetful:
            await self.world.call(lambda broker: broker.reported(outcomes))
        return len(outcomes)

    def _known(self) -> list[Sent]:
        return [sent for sent in self.world.history.sent[-60:] if sent.outcome == "ok" and sent.offset is not None]

    async def ask(self) -> None:
        """What became of a message that was published not long ago."""
        if known := self._known():
            await self.ask_for(self.random.choice(known))

    async def ask_for(self, sent: Sent) -> None:
        """What became of one message, by the place it was published at."""
        start = self.world.now()
        fate = (await self.world.call(lambda broker: broker.fate(sent.topic, f"{sent.partition}-{sent.offset}"))).fate
        self._note(sent, fate, start)

    async def wait(self) -> None:
        """For all that was published together, some way or all the way."""
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
