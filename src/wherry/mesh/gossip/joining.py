"""How a member joins: a state exchange with a seed, then a packet that comes back. Part of the shell around the core.

State exchanges pass by TCP and probes by UDP: where only one of them passes, a member would join and be held dead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from wherry.mesh.gossip.addresses import SeedAddresses
from wherry.mesh.gossip.core import Gossip, GossipStep
from wherry.mesh.gossip.exchanging import SEED_PERIODS
from wherry.mesh.gossip.values import MemberAddress
from wherry.model.errors import InvalidInput, Unavailable

JOIN_S = 10.0
"""How long `start` tries the seeds."""

RETRY_S = 0.25

AT_ONCE_MAX = 64
"""Addresses of seeds that are tried at a time, drawn among all."""


class Joining:
    """The seeds of one member, and how it comes to know others by them."""

    def __init__(
        self,
        core: Gossip,
        seeds: SeedAddresses,
        exchange: Callable[[MemberAddress], Awaitable[None]],
        carry_out: Callable[[GossipStep], None],
    ) -> None:
        self._core, self._seeds, self._exchange, self._carry_out = core, seeds, exchange, carry_out
        self._answered = asyncio.Event()

    def received(self) -> None:
        """Note that a packet came."""
        if self._core.is_answered:
            self._answered.set()

    async def join(self) -> None:
        """Exchange states with a seed that is not this process, and hear of a member by UDP."""
        deadline = _now_s() + JOIN_S
        while self._seeds.given and not await self._meet():
            if _now_s() >= deadline:
                raise Unavailable("; ".join(map(str, self._faults[:3])) or "no seed knows a member beside this one")
            await asyncio.sleep(RETRY_S)
        while self._core.members.live and not self._core.is_answered:
            if _now_s() >= deadline:
                raise Unavailable(f"members answer over TCP, but none over UDP within {JOIN_S:g} s: see host and port")
            self._carry_out(self._core.greet())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), RETRY_S)

    async def follow(self) -> None:
        """Look now and then which addresses the names of seeds have."""
        while True:
            await asyncio.sleep(SEED_PERIODS * self._core.terms.period_ms / 1_000)
            with suppress(InvalidInput):  # none that fits for now; those of before stay
                await self._look()

    async def _meet(self) -> bool:
        """Return whether another member was met, or this one need not wait for others."""
        others = await self._look()
        self._faults: Sequence[BaseException] = await self._try(others) if others else self._seeds.faults
        core = self._core
        is_met = bool(others) and not self._faults and bool(core.members.live or core.met_itself)
        return is_met or self._seeds.own_is_one  # the first member waits for nobody

    async def _look(self) -> tuple[MemberAddress, ...]:
        others = await self._seeds.look()
        self._core.set_seeds(others)
        return others

    async def _try(self, others: Sequence[MemberAddress]) -> list[BaseException]:
        """Exchange states with the first that answers; return nothing then, and else what went wrong with each."""
        chosen = random.SystemRandom().sample(others, min(len(others), AT_ONCE_MAX))
        pending = {asyncio.ensure_future(self._exchange(seed)) for seed in chosen}
        faults: list[BaseException] = []
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                failed = [fault for task in done if (fault := task.exception()) is not None]
                if len(failed) < len(done):
                    return []
                faults += failed
        finally:
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending)
        return faults


def _now_s() -> float:
    return asyncio.get_running_loop().time()
