"""The drill: make one call, cut the power in the instant of its answer, and check that the answer still holds.

The random workload seldom cuts the power right after a certain answer. The drill does that for each call, on a slow
disk that loses whatever was not synced, while another client writes. Other steps call with a token that has ended or
was never given. A step records a sentence for each violation.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from types import FunctionType
from typing import TypeAlias, TypeVar

from wherry.broker.broker import Broker
from wherry.broker.calls.consumer import Delivery
from wherry.broker.commit import commit as committing
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.catalog.subscription import Retry, Subscription
from wherry.model.errors import WherryError
from wherry.sim.history import Acted, Seen
from wherry.sim.patch import patched
from wherry.sim.plan import RunPlan
from wherry.sim.world import loop
from wherry.sim.world.disk import DiskFaults
from wherry.sim.world.errors import BootRefused
from wherry.sim.world.world import LOST, World

T = TypeVar("T")
Step: TypeAlias = Callable[["Drill"], Awaitable[None]]

SUBSCRIPTION = "readers"
LEASE_MS = 1_000
FAR_MS = 50_000_000
"""Later than any time in a drill."""

SHOWN_CHARS = 200
"""Of an answer, in a history."""

NOTHING = RunPlan((), (), 0, 0, 0, 0.0, 0.0, disk_faults=False, clock_jumps=False, racing=False)


@dataclass
class Drill:
    """The world of one step, and the calls that steps need."""

    world: World
    step: str
    topic: str
    """A topic for this step, with a subscription."""
    found: list[str]
    _tasks: list[asyncio.Task[object]] = field(default_factory=list)

    async def ask(self, call: Callable[[Broker], Awaitable[T]]) -> T:
        """Call the broker; return its answer."""
        return await self._recorded(self.step, call)

    async def _recorded(self, client: str, call: Callable[[Broker], Awaitable[T]]) -> T:
        acted = Acted(self.world.now(), client, _name_of(call))
        self.world.history.acted.append(acted)
        try:
            answer = await self.world.call(call)
        except (*LOST, WherryError) as fault:
            acted.end, acted.result = self.world.now(), f"{type(fault).__name__}: {fault}"
            raise
        acted.end, acted.result = self.world.now(), _shown(answer)
        return answer

    async def begin(self, call: Callable[[Broker], Awaitable[object]]) -> None:
        """Start a call of another client; on return its entry is written and not synced."""
        assert self.world.broker is not None
        committer = self.world.broker.shard.committer
        before = committer.submitted

        async def ask() -> None:
            with suppress(*LOST):
                await self._recorded("another client", call)

        self._tasks.append(asyncio.create_task(ask()))
        for _ in range(1_000):
            if committer.submitted > before:
                return
            await asyncio.sleep(0)
        self.found.append(f"{self.step}: the call of the other client was not written")

    async def cut(self) -> None:
        """Cut the power, and start the broker again."""
        self.world.end_life(power=True)
        await self.world.boot()
        await self.end()

    async def end(self) -> None:
        """Wait for the calls of other clients to end."""
        await asyncio.gather(*self._tasks)
        self._tasks.clear()

    def expect(self, what: bool, words: str) -> None:
        """Record a violation unless `what` is true."""
        if not what:
            self.found.append(f"{self.step}: {words}")

    async def refused(self, call: Callable[[Broker], Awaitable[object]], by: type[WherryError], words: str) -> None:
        """Check that a call is refused with a certain error."""
        try:
            await self.ask(call)
        except by:
            return
        except WherryError as fault:
            words = f"{words}: {type(fault).__name__}: {fault}"
        self.found.append(f"{self.step}: {words}")

    # ------------------------------------------------------------------------------------------ what most steps need

    async def publish(self, payload: bytes = b"it", options: PublishOptions | None = None) -> str:
        """Publish one message; return its id once it is stored."""
        return (await self.ask(lambda broker: broker.publish(self.topic, [payload], options))).ids()[0]

    async def pull(self, subscription: str = SUBSCRIPTION, wait_ms: int = 0) -> Delivery:
        """Pull with a new consumer."""
        consumer = await self.ask(lambda broker: broker.consumer(self.topic, subscription))
        return await self.ask(lambda _: consumer.pull(10, wait_ms=wait_ms))

    async def payloads(self, subscription: str = SUBSCRIPTION) -> list[bytes]:
        """Pull with a new consumer; return the payloads."""
        return (await self.pull(subscription)).payloads()

    async def is_there(self, message_id: str, topic: str | None = None) -> bool:
        """Return whether a message is in the topic."""
        return len(await self.ask(lambda broker: broker.get(topic or self.topic, message_id))) > 0

    async def dead(self) -> list[bytes]:
        """Return the payloads of the dead letters."""
        listed = await self.ask(lambda broker: broker.dead_letters(self.topic))
        return [bytes(each) for each in listed.column("payload").to_pylist()]


def _name_of(call: Callable[[Broker], Awaitable[object]]) -> str:
    """Return the name of a call; for a lambda, the first name in it that is an attribute: the method it calls."""
    code = call.__code__ if isinstance(call, FunctionType) else None
    if code is None or code.co_name != "<lambda>":
        return getattr(call, "__name__", "call")
    return next(iter(code.co_names), "call")


def _shown(answer: object) -> str:
    if isinstance(answer, Delivery):
        return f"delivered {answer.payloads()}"
    if isinstance(answer, Published):
        return f"stored as {answer.ids()}"
    return "ok" if answer is None else repr(answer)[:SHOWN_CHARS]


def drill(
    seed: int, steps: dict[str, Step], only: Collection[str] | None = None, seen: Seen | None = None
) -> list[str]:
    """Run all steps, or `only` some, each in a world of its own; return the violations.

    The histories of the steps are in `seen`.
    """
    names = sorted(only if only is not None else steps)
    try:
        return [what for name in names for what in _run(seed, name, steps[name], seen)]
    finally:
        gc.collect()  # many small worlds, each of them a reference cycle


def _run(seed: int, name: str, step: Step, seen: Seen | None) -> list[str]:
    found: list[str] = []

    async def main() -> None:
        world = World(seed, NOTHING)
        if seen is not None:
            seen[f"drill, {name}"] = (world.history,)
        world.disk.faults = DiskFaults(delay_us_min=5_000, delay_us_max=40_000, stalls=0, keeps=0, loses=1)
        one = Drill(world, name, name.replace(" ", "-"), found)
        await world.boot()
        await _set_up(one)
        try:
            await step(one)
        except (*LOST, WherryError) as fault:
            found.append(f"{name}: {type(fault).__name__}: {fault}")
        await one.end()
        found.extend(world.history.faults)

    # each entry is one write and one sync, so later entries stay queued
    with patched(committing, "GROUP_BYTES", lambda _: 1):
        try:
            loop.run(main(), random=Random(f"{seed}/{name}"), steps_max=3_000_000, virtual_s_max=86_400.0)
        except BootRefused as fault:
            found.append(f"{name}: {fault}")
    return found


async def _set_up(one: Drill) -> None:
    config = Subscription(topic=one.topic, name=SUBSCRIPTION, lease_ms=LEASE_MS, retry=Retry(attempts=None, first_ms=0))
    await one.ask(lambda broker: broker.create_topic(one.topic))
    await one.ask(lambda broker: broker.subscribe(config))
