"""The world of one run: a disk, a clock, and a broker process that dies and is started again.

Clients live on. They reach the broker through `call`, wait while it is down, and learn by `Killed` that they do not
know what became of their request.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from wherry.broker.broker import Broker
from wherry.broker.opening import start
from wherry.core.inspect.audit import audit
from wherry.core.state import snapshot
from wherry.journal.disk.disk import DiskEngine
from wherry.model.errors import Closed, Corrupt, Fenced, StorageError, WriterFailed
from wherry.sim.history import History, Life
from wherry.sim.plan import RunPlan
from wherry.sim.world.clock import SimClock
from wherry.sim.world.disk import DiskFaults, SimDisk
from wherry.sim.world.errors import BootRefused, Killed
from wherry.sim.world.loop import SimLoop
from wherry.sim.world.process import Process

T = TypeVar("T")

FILE_BYTES = 64 << 10
ENTRY_BYTES_MAX = 16 << 10
RESERVE_BYTES = 8 << 10
CACHE_BYTES = 48 << 10
READ_BYTES = 24 << 10
CHECKPOINT_BYTES = 24 << 10
CAPACITY_BYTES = 4 << 20

CUT_CHANCE = 0.3

LOST = (Killed, WriterFailed, Closed, Fenced)
"""After these a client does not know whether its request took effect."""


class World:
    """One run of a plan."""

    def __init__(self, seed: int, plan: RunPlan) -> None:
        self.seed = seed
        self.plan = plan
        self.partitions = {topic.name: topic.partitions for topic in plan.topics}
        """How many each topic has at least, as clients know it: a topic may grow."""
        self.history = History()
        self.ways = History(lives=self.history.lives)
        """What those saw who work with routes: its topics and messages are others."""
        self.random = Random(f"{seed}/clients")
        self.clock = SimClock(Random(f"{seed}/clock"))
        self._trace = hashlib.blake2b(digest_size=16)
        self._disk_random = Random(f"{seed}/disk")
        self.disk = SimDisk(self._disk_random, DiskFaults(), capacity_bytes=CAPACITY_BYTES, on_event=self.note)
        self.broker: Broker | None = None
        self._process: Process | None = None
        self._up = asyncio.Event()
        self._groups = 0
        self.deliveries = 0
        self._cuts_left = plan.cuts
        self._cut_random = Random(f"{seed}/cuts")
        self.ending = False
        self.closing = False
        """A clean stop is under way: nobody starts the broker again before it is over."""

    def note(self, *what: object) -> None:
        """Add to the trace: two runs of one seed must have the same."""
        self._trace.update(repr(what).encode())

    def trace(self) -> str:
        """A fingerprint of all that happened."""
        return self._trace.hexdigest()

    def now(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    def next_group(self) -> int:
        """A number for messages that are published together."""
        self._groups += 1
        return self._groups

    def next_delivery(self) -> int:
        """A number for a delivery."""
        self.deliveries += 1
        return self.deliveries

    async def boot(self) -> None:
        """Start the broker on what the disk holds; again and again while the disk refuses."""
        while self.broker is None:
            process = Process("broker")
            try:
                broker = await process.call(self._start())
            except Corrupt as fault:
                raise BootRefused(f"the broker found its own disk damaged: {fault}") from fault
            except (OSError, StorageError) as fault:
                self.note("boot failed", str(fault))
                if not isinstance(fault, Killed):
                    process.kill()
                    self.disk.kill()
                await asyncio.sleep(0.05)
                continue
            self._process, self.broker = process, broker
        life = Life(self.broker.shard.state.epoch, self.now())
        # Time may have done something already; then the state is not what was recovered any more.
        untouched = self.broker.shard.committer.submitted == self.broker.shard.opened_at
        if untouched and self.history.lives and self.history.lives[-1].left is not None:
            life.found = self.digest()
        self.history.lives.append(life)
        self.note("up", life.number)
        self._up.set()

    async def _start(self) -> Broker:
        files = self.disk.open()
        engine = DiskEngine(
            files,
            file_bytes=FILE_BYTES,
            reserve_bytes=RESERVE_BYTES,
            entry_bytes_max=ENTRY_BYTES_MAX,
            new_seed=lambda: self._disk_random.getrandbits(32),
        )
        return await start(
            engine,
            files,
            self.clock,
            cache_bytes=CACHE_BYTES,
            read_bytes=READ_BYTES,
            checkpoint_bytes=CHECKPOINT_BYTES,
            owner="sim",
        )

    def digest(self) -> str:
        """Of the durable state as it is in memory now; the state is audited on the way."""
        assert self.broker is not None
        state = self.broker.shard.state
        try:
            audit(state)
        except AssertionError as fault:
            self.history.faults.append(f"audit: {fault}")
        return snapshot.digest(state)

    def end_life(self, *, power: bool) -> None:
        """The broker dies now, between two callbacks. With `power`, unsynced writes go with it."""
        if self._process is None or self.broker is None:
            return
        life = self.history.lives[-1]
        committer = self.broker.shard.committer
        if committer.failure is None and committer.durable == committer.submitted:
            life.left = self.digest()
        life.end = self.now()
        self.note("down", power)
        self._up.clear()
        self.broker = None
        if power:
            self.disk.crash()
        else:
            self.disk.kill()
        self._process.kill()

    async def pause(self, seconds: float) -> None:
        """Stop the broker for a while, as a machine that is put to sleep; it goes on late."""
        process = self._process
        if process is None:
            return
        process.paused = True
        await asyncio.sleep(seconds)
        self.go_on(process)

    def go_on(self, process: Process) -> None:
        """End a pause."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.go_on(process)

    async def close(self) -> None:
        """A clean stop."""
        if self.broker is None or self._process is None:
            return
        self._up.clear()
        broker, self.broker = self.broker, None
        life = self.history.lives[-1]
        self.closing = True
        try:
            await self._process.call(broker.close())
            if broker.shard.committer.durable == broker.shard.committer.submitted:
                life.left = snapshot.digest(broker.shard.state)
        except (Killed, OSError, StorageError, Closed):
            pass
        finally:
            self.closing = False
            life.end = self.now()
            self._process.kill()
            self.disk.kill()

    async def call(self, ask: Callable[[Broker], Awaitable[T]]) -> T:
        """Ask the broker something, once it is up. Raises what the broker raises, or one of `LOST`."""
        while self.broker is None or self._process is None:
            await self._up.wait()
        broker, process = self.broker, self._process

        async def inside() -> T:
            return await ask(broker)

        try:
            answer = await process.call(inside())
        except (WriterFailed, Fenced) as fault:
            self.note("failed", str(fault))
            if self.broker is broker:
                self.end_life(power=False)
            raise
        self._cut_behind(broker)
        return answer

    def _cut_behind(self, broker: Broker) -> None:
        """Cut the power in the instant in which an answer has left the broker, some of the times.

        Only while something is written and not synced: then the answer is worth nothing if it did not wait for it.
        """
        committer = broker.shard.committer
        if self.broker is not broker or not self._cuts_left or committer.durable == committer.submitted:
            return
        if not self.ending and self._cut_random.random() < CUT_CHANCE:
            self._cuts_left -= 1
            self.end_life(power=True)

    @property
    def life(self) -> int:
        """The epoch of this run of the broker."""
        return self.history.lives[-1].number
