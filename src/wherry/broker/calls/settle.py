"""The end of leases, by fencing token: what deliveries do in process, and what wires do for their clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.broker.commit.shard import Shard
from wherry.core.decide import leasing, settling, staging
from wherry.core.decide.settling import Ending, Failure
from wherry.core.decide.volatile import separate
from wherry.core.state.bodies import Cold, together
from wherry.model.calls.lease import LeasePart
from wherry.model.ops import AnyOp

Int64: TypeAlias = npt.NDArray[np.int64]


Step: TypeAlias = Callable[[Ending, int, Int64 | None], list[AnyOp]]
"""How one part is settled: its operations, and in the ending what leaves its lease."""


PURGE_STEP = 65_536
"""Messages that one entry of a purge settles."""


class Settler:
    """Settles parts of leases: all parts of a call or none, durable on return."""

    __slots__ = ("_shard",)

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def ack(self, parts: Sequence[LeasePart]) -> None:
        """Done with these messages."""
        state = self._shard.state
        await self._settle(parts, lambda ending, token, offsets: settling.ack(state, ending, token, offsets))

    async def nack(self, parts: Sequence[LeasePart], delay_ms: int | None, error: str) -> None:
        """These failed."""
        shard = self._shard

        def step(ending: Ending, token: int, offsets: Int64 | None) -> list[AnyOp]:
            failure = Failure(error, shard.now().wall_ms, shard.clock.entropy, delay_ms)
            return settling.nack(shard.state, ending, token, offsets, failure)

        await self._settle(parts, step)

    async def dead_letter(self, parts: Sequence[LeasePart], reason: str, error: str) -> None:
        """Give up on these at once."""
        state = self._shard.state

        def step(ending: Ending, token: int, offsets: Int64 | None) -> list[AnyOp]:
            return settling.dead_letter(state, ending, token, offsets, reason, error)

        await self._settle(parts, step)

    def release(self, parts: Sequence[LeasePart]) -> None:
        """Hand these back untouched."""
        self._checked(parts)
        for token, offsets in parts:
            settling.release(self._shard.state, token, offsets)
        self._shard.turnstile.turn()

    def take_back(self, tokens: Sequence[int]) -> None:
        """Whoever was to get these is gone: what is still on lease waits again."""
        shard = self._shard
        if shard.committer.failure is None:
            for token in [token for token in tokens if shard.state.leases.get(token) is not None]:
                settling.take_back(shard.state, token)
            shard.turnstile.turn()

    def still_held(self, parts: Iterable[LeasePart]) -> list[LeasePart]:
        """Return parts without what is on lease no more: it went with its topic, or was settled over another wire."""
        found: list[LeasePart] = []
        for token, offsets in parts:
            lease = self._shard.state.leases.get(token)
            if lease is not None:
                kept = lease.offset if offsets is None else offsets[np.isin(offsets, lease.offset)]
                if len(kept):
                    found.append((token, kept))
        return found

    def renew(self, tokens: Sequence[int], lease_ms: int | None) -> None:
        """More time for all of these leases."""
        self._checked([(token, None) for token in tokens])
        for token in tokens:
            leasing.renew(self._shard.state, token, lease_ms, self._shard.now())

    async def stage_ack(self, key: str, parts: Sequence[LeasePart]) -> None:
        """Ack when the stage is committed; the leases must still hold then."""
        shard = self._shard
        await shard.admit_settle(1)
        self._checked(parts)
        position = 0
        for token, offsets in parts:
            entries = staging.stage_settle(shard.state, key, token, offsets, shard.now().wall_us)
            if entries:
                position = shard.commit(entries)
                staging.note_settle(shard.state, key, token, offsets)
        # Where the stage was there before, others have written it, and it must be durable just the same.
        await shard.committer.wait(position or shard.committer.submitted)

    async def purge(self, topic: str, subscription: str) -> int:
        """Settle what is ready by now, unread; what is published meanwhile stays."""
        shard = self._shard
        partitions = shard.state.subscription(topic, subscription).topic.partitions
        ends = {number: partition.next_offset for number, partition in partitions.items()}
        done, count = 0, -1
        colds: list[Cold] = []
        while count and (step := min(PURGE_STEP, self._ready(topic, subscription))):
            await shard.admit_settle(step)
            now = shard.now()
            shard.upkeep(now)
            try:
                steps, count = settling.purge(shard.state.subscription(topic, subscription), ends, step, now.wall_ms)
            except Cold as cold:  # where keys keep their order, who is next depends on them
                colds = together(colds, cold)
                await shard.store.load(*colds)
                continue
            await shard.committer.wait(shard.commit(separate(shard.state, now.wall_us, steps)))
            done += count
        # That nothing is left rests on what others have written, which must be durable just the same.
        await shard.committer.wait(shard.committer.submitted)
        return done

    def _ready(self, topic: str, subscription: str) -> int:
        now_ms = self._shard.now().wall_ms
        readers = self._shard.state.subscription(topic, subscription).readers.values()
        return sum(reader.counts(now_ms, reader.start).ready for reader in readers)

    async def _settle(self, parts: Sequence[LeasePart], step: Step) -> None:
        metrics = self._shard.metrics
        call = self._settle_now(parts, step)
        await (call if metrics is None else metrics.settling(call))

    async def _settle_now(self, parts: Sequence[LeasePart], step: Step) -> None:
        shard = self._shard
        await shard.admit_settle(sum(self._count(part) for part in parts))
        self._checked(parts)
        ending = Ending()
        steps = [op for token, offsets in parts for op in step(ending, token, offsets)]
        position = shard.commit(separate(shard.state, shard.now().wall_us, steps))
        ending.carry_out(shard.state)
        shard.turnstile.turn()  # buffers have room and keys are free again
        await shard.committer.wait(position)

    def _count(self, part: LeasePart) -> int:
        lease = self._shard.state.leases.get(part[0])
        return len(part[1]) if part[1] is not None else len(lease.offset) if lease is not None else 0

    def _checked(self, parts: Sequence[LeasePart]) -> None:
        """All leases hold all of it at this moment, before any is touched."""
        shard = self._shard
        shard.committer.check()
        shard.upkeep(shard.now())
        for token, offsets in parts:
            settling.rows_of(leasing.held(shard.state, token), offsets)
