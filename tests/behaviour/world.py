"""What the behaviour tests share: a clock that stands still, and a broker that can be closed, crashed and opened again.

A test is an async function under `@in_loop` (a real loop, real files, the clock moved by hand) or `@in_virtual_time`
(the simulator's loop, a broker in memory, the clock of the loop: for pulls that wait).
"""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import wherry
from wherry.broker.opening import start
from wherry.core.inspect.audit import audit
from wherry.core.state import snapshot
from wherry.journal import codec
from wherry.journal.disk.disk import DiskEngine
from wherry.journal.disk.real_files import PARTIAL_SUFFIX, RealFiles
from wherry.journal.memory import MemoryEngine
from wherry.model import ops
from wherry.sim.world import loop as sim

START_MS = 1_800_000_000_000
"""The virtual now of every test: in January 2027."""

RESTARTS = ("closed", "crashed", "checkpointed and crashed")
"""Ways to go through a restart: recovery from a last checkpoint, from the journal alone, and from both."""

TestBody: TypeAlias = Callable[..., Awaitable[None]]


class VirtualClock:
    """A `wherry.Clock` that the tests advance."""

    def __init__(self, seed: int = 7) -> None:
        self._wall_us = START_MS * 1000
        self._steady_ms = 1_000
        self._random = np.random.default_rng(seed)

    def wall_us(self) -> int:
        return self._wall_us

    def steady_ms(self) -> int:
        return self._steady_ms

    def entropy(self, count: int) -> npt.NDArray[np.float64]:
        return self._random.random(count)

    @property
    def now_ms(self) -> int:
        return self._wall_us // 1000

    def advance(self, ms: int) -> None:
        """Advance both clocks."""
        self._wall_us += ms * 1000
        self._steady_ms += ms

    def set_wall(self, ms: int) -> None:
        """Set the wall clock as an administrator may; the steady clock does not change."""
        self._wall_us = ms * 1000


class LoopClock(VirtualClock):
    """The time of the running (simulated) loop."""

    def wall_us(self) -> int:
        return START_MS * 1000 + int(asyncio.get_running_loop().time() * 1e6)

    def steady_ms(self) -> int:
        return self.wall_us() // 1000 - START_MS

    @property
    def now_ms(self) -> int:
        return self.wall_us() // 1000


class Home:
    """Where a broker lives: a directory that outlasts it.

    At every end of a broker its whole state is audited; after a crash the state must be the one before it, by digest.
    """

    def __init__(self, root: Path, clock: VirtualClock) -> None:
        self.clock = clock
        self.path = root / "broker"
        self._root = root
        self._copies = 0
        self._broker: wherry.Broker | None = None

    async def open(self, *, cache_bytes: int = 64 << 20) -> wherry.Broker:
        """Start a broker on the directory."""
        files = RealFiles(self.path)
        self._broker = await start(self._engine(files), files, self.clock, cache_bytes=cache_bytes)
        return self._broker

    @staticmethod
    def _engine(files: RealFiles) -> DiskEngine:
        """Make an engine with small journal files, since a crash copies them."""
        return DiskEngine(files, file_bytes=4 << 20, entry_bytes_max=3 << 20, reserve_bytes=1 << 20)

    async def close(self) -> None:
        """Audit the state, and close the broker."""
        if self._broker is not None:
            broker, self._broker = self._broker, None
            audit(broker.shard.state)
            await broker.close()

    async def again(self, how: str = "crashed", *, cache_bytes: int = 64 << 20) -> wherry.Broker:
        """Restart the broker. A crash is the directory as it is, copied under the open broker."""
        assert self._broker is not None
        if how.startswith("checkpointed"):
            await self._broker.checkpoint()
        committer = self._broker.shard.committer
        await committer.wait(committer.submitted)  # entries that no call waited for, such as the end of a lease
        left = snapshot.digest(self._broker.shard.state)
        if how != "closed":
            self.path = self._copy()
        await self.close()
        broker = await self.open(cache_bytes=cache_bytes)
        assert snapshot.digest(broker.shard.state) == left, "the state after the restart is not the one before it"
        audit(broker.shard.state)
        return broker

    def _copy(self) -> Path:
        self._copies += 1
        partial = shutil.ignore_patterns(f"*{PARTIAL_SUFFIX}")  # a partial file may get its name while we copy
        return Path(shutil.copytree(self.path, self._root / f"copy-{self._copies}", ignore=partial))

    async def journal(self) -> list[ops.AnyOp]:
        """Return every operation that the journal has now."""
        engine = self._engine(RealFiles(self._copy()))
        writer = await engine.open()
        found = [op async for record in engine.read(1) for op in codec.decode(record.body).ops]
        await writer.close()
        return found

    def disk_holds(self, needle: bytes) -> bool:
        """Return whether some file of the directory has these bytes."""
        return any(needle in path.read_bytes() for path in self.path.rglob("*") if path.is_file())


def in_loop(test: TestBody) -> Callable[..., None]:
    """Run an async test to its end; its `home` is closed behind it."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        async def main() -> None:
            try:
                await test(**fixtures)
            finally:
                for each in fixtures.values():
                    if isinstance(each, Home):
                        await each.close()

        asyncio.run(main())

    return run


def in_virtual_time(test: TestBody) -> Callable[..., None]:
    """Run an async test on the simulator's loop with a broker in memory: `test(broker, clock)`."""

    def run() -> None:
        async def main() -> None:
            clock = LoopClock()
            broker = await start(MemoryEngine(), None, clock)
            try:
                await test(broker, clock)
            finally:
                await broker.close()

        sim.run(main())

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run


async def drain(consumer: wherry.Consumer, *, batch: int = 1_000) -> list[bytes]:
    """Return everything that is ready, acked as it comes."""
    seen: list[bytes] = []
    while True:
        delivery = await consumer.pull(batch)
        if not len(delivery):
            return seen
        seen += delivery.payloads()
        await delivery.ack()


async def reader_of(broker: wherry.Broker, topic: str, name: str = "readers", /, **fields: object) -> wherry.Consumer:
    """Make a subscription, and return a consumer of it."""
    await broker.subscribe(topic, name, **fields)
    return await broker.consumer(topic, name)


def bodies(count: int, prefix: str = "m") -> list[bytes]:
    """Return so many different small messages."""
    return [f"{prefix}{number}".encode() for number in range(count)]
