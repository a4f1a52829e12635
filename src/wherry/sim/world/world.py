"""The world of one run: a disk, a clock, and a broker process that dies and is started again.

Clients survive. They reach the broker through `call`, wait while it is down, and get `Killed` if the result of their
call is unknown.
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
from wherry.sim.history import Acted, History, Life
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

QUICK_EACH = 5
"""The disk of every fifth seed is quick: the loop itself makes most small writes."""

LOST = (Killed, WriterFailed, Closed, Fenced)
"""After these errors a client does not know whether its call took effect."""


class World:
    """One run of a plan."""

    def __init__(self, seed: int, plan: RunPlan) -> None:
        self.seed = seed
        self.plan = plan
        self.partitions = {topic.name: topic.partitions for topic in plan.topics}
        """A lower bound of the partitions of each topic, as clients know it: a topic may grow."""
        self.history = History()
        self.route_history = History(lives=self.history.lives)
        """The history of the clients of routes, which have topics and messages of their own."""
        self.random = Random(f"{seed}/clients")
        self.clock = SimClock(Random(f"{seed}/clock"))
        self._trace = hashlib.blake2b(digest_size=16)
        self._disk_random = Random(f"{seed}/disk")
        self.usual_faults = DiskFaults(quick=0.75 if seed % QUICK_EACH == QUICK_EACH - 1 else 0.0)
        """The faults of the disk while no operator changes them."""
        self.disk = SimDisk(self._disk_random, self.usual_faults, capacity_bytes=CAPACITY_BYTES, on_event=self.note)
        self.broker: Broker | None = None
        self._process: Process | None = None
        self._up = asyncio.Event()
        self._groups = 0
        self.deliveries = 0
        self._cuts_left = plan.cuts
        self._cut_random = Random(f"{seed}/cuts")
        self.ending = False
        self.closing = False
        """A clean stop is under way: the supervisor does not start the broker before it ends."""

    def note(self, *what: object) -> None:
        """Add to the trace, which must be the same in two runs of one seed."""
        self._trace.update(repr(what).encode())

    def trace(self) -> str:
        """Return a fingerprint of all that happened."""
        return self._trace.hexdigest()

    def acted(self, client: str, what: str) -> None:
        """Record something for readers of the history; checkers do not read it."""
        self.history.acted.append(Acted(self.now(), client, what, self.now()))

    def now(self) -> float:
        """Return virtual seconds."""
        return asyncio.get_running_loop().time()

    def next_group(self) -> int:
        """Return a number for messages that are published together."""
        self._groups += 1
        return self._groups

    def next_delivery(self) -> int:
        """Return a number for a delivery."""
        self.deliveries += 1
        return self.deliveries

    async def boot(self) -> None:
        """Start the broker on the files of the disk; repeat it while the disk fails."""
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
        # Upkeep may have changed the state already; then it is not the recovered state any more.
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
        """Return the digest of the durable state in memory, and audit the state."""
        assert self.broker is not None
        state = self.broker.shard.state
        try:
            audit(state)
        except AssertionError as fault:
            self.history.faults.append(f"audit: {fault}")
        return snapshot.digest(state)

    def end_life(self, *, power: bool) -> None:
        """Kill the broker now, between two callbacks. With `power`, unsynced writes are lost too."""
        if self._process is None or self.broker is None:
            return
        life = self.history.lives[-1]
        committer = self.broker.shard.committer
        if committer.failure is None and committer.durable == committer.submitted:
            life.left = self.digest()
        life.end, life.ended_by = self.now(), "power cut" if power else "kill"
        self.note("down", power)
        self._up.clear()
        self.broker = None
        if power:
            self.disk.crash()
        else:
            self.disk.kill()
        self._process.kill()

    async def pause(self, seconds: float) -> None:
        """Pause the broker, as a machine that sleeps."""
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
        """Stop the broker cleanly."""
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
            life.end, life.ended_by = self.now(), "clean stop"
            self._process.kill()
            self.disk.kill()

    async def call(self, ask: Callable[[Broker], Awaitable[T]]) -> T:
        """Call the broker once it is up. Raise what the broker raises, or one of `LOST`."""
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

        Only while an entry is written and not synced: then the answer is false if it did not wait for the sync.
        """
        committer = broker.shard.committer
        if self.broker is not broker or not self._cuts_left or committer.durable == committer.submitted:
            return
        if not self.ending and self._cut_random.random() < CUT_CHANCE:
            self._cuts_left -= 1
            self.end_life(power=True)

    @property
    def life(self) -> int:
        """Return the epoch of this life of the broker."""
        return self.history.lives[-1].number
