"""Dead letters: look at them, send them back at a rate, throw them away, and see who did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pyarrow as pa

from wherry.broker import browse
from wherry.broker.face import Face
from wherry.core import deadletters, leasing
from wherry.core.deadletters import DeadFilter
from wherry.core.state import Deed
from wherry.model import check
from wherry.model.ops import Entry

REDRIVES_A_SECOND = 10
"""Steps a second of a redrive with a rate."""


class Undertaker(Face):
    """The calls about dead letters."""

    async def dead_letters(self, topic: str, wanted: DeadFilter | None = None) -> pa.RecordBatch:
        """Dead letters with the whole message, the reason, the last error, attempts and times."""
        return await browse.dead_letters(self.shard, self.shard.state.topic(topic), wanted or DeadFilter())

    def each_dead(self, topic: str, wanted: DeadFilter | None = None) -> AsyncIterator[pa.RecordBatch]:
        """The same in batches, however many there are."""
        return browse.dead_blocks(self.shard, self.shard.state.topic(topic), wanted or DeadFilter())

    async def redrive(
        self, topic: str, wanted: DeadFilter | None = None, *, by: str = "", rate: int | None = None
    ) -> int:
        """Send dead letters back to wait again; how many. Those that are not dead any more are not touched.

        With a `rate`, at most so many a second: what made them die may not bear all of them at once. `by` says who
        asked for it, in `audit`.
        """
        chosen = wanted or DeadFilter()
        if rate is None:
            return await self._redrive(topic, chosen, by)
        check.integer("rate", rate, 1, 1 << 40)
        # Only what is dead by now: what dies again on the way must not be sent round and round.
        now_ms = self.shard.now().wall_ms + 1
        chosen = replace(chosen, to_ms=now_ms if chosen.to_ms is None else min(chosen.to_ms, now_ms))
        done = 0
        while done < chosen.limit:
            step = min(chosen.limit - done, max(1, rate // REDRIVES_A_SECOND))
            count = await self._redrive(topic, replace(chosen, limit=step), by)
            done += count
            if count < step:
                break
            await asyncio.sleep(step / rate)
        return done

    async def _redrive(self, topic: str, wanted: DeadFilter, by: str) -> int:
        state = self.shard.state

        def choose(now: leasing.Now) -> tuple[list[Entry], int]:
            known = state.topic(topic)
            groups = deadletters.select(state, known, wanted)
            return deadletters.redrive(state, known, groups, by, now.wall_us), _total(groups)

        return await self._durable(choose)

    def audit(self, topic: str) -> list[Deed]:
        """Who sent dead letters of a topic back or threw them away, when and how many; the last ones, newest last."""
        return list(self.shard.state.topic(topic).deeds)

    async def discard(self, topic: str, wanted: DeadFilter, *, by: str = "") -> int:
        """Throw dead letters away; how many."""
        state = self.shard.state

        def choose(now: leasing.Now) -> tuple[list[Entry], int]:
            known = state.topic(topic)
            groups = deadletters.select(state, known, wanted)
            return deadletters.discard(state, known, groups, by, now.wall_us), _total(groups)

        return await self._durable(choose)


def _total(groups: list[deadletters.DeadGroup]) -> int:
    return sum(len(group.offsets) for group in groups)
