"""Operators, who cancel, amend, redrive, browse, put keys and write checkpoints; and the faults of a run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from math import inf
from random import Random

from wherry.broker.broker import Broker
from wherry.model.calls.stats import TopicStats
from wherry.model.catalog.key import Key, Right
from wherry.model.errors import WherryError
from wherry.sim.history import Changed, Grown, Keyed, Outcome, Redriven, Sampled, Sent
from wherry.sim.world.world import CAPACITY_BYTES, LOST, World

PARTITIONS_MAX = 5


@dataclass
class Operator:
    """An operator at a console."""

    world: World
    random: Random

    async def run(self) -> None:
        """Do something at random times until the run ends."""
        often = (self.change, self.sample)
        rarely = (self.grow,) if self.world.plan.growing else ()
        doings = (*often, *often, self.redrive, self.look, self.checkpoint, self.keys, *rarely)
        while not self.world.ending:
            await asyncio.sleep(self.random.expovariate(3))
            try:
                await self.random.choice(doings)()
            except LOST:
                continue
            except WherryError as fault:
                self.world.note("operator", str(fault))

    async def change(self) -> None:
        """Cancel or amend a message that was published recently."""
        known = [sent for sent in self.world.history.sent[-30:] if sent.outcome == "ok" and sent.offset is not None]
        if not known:
            return
        sent = self.random.choice(known)
        if self.random.random() < 0.5:
            await self._cancel(sent)
        else:
            await self._amend(sent)

    async def _cancel(self, sent: Sent) -> None:
        await self._try("cancel", sent, None)

    async def _amend(self, sent: Sent) -> None:
        due_ms = self.world.clock.wall_us() // 1000 + self.random.choice((0, 700))
        await self._try("amend", sent, due_ms)

    async def _try(self, kind: str, sent: Sent, due_ms: int | None) -> None:
        start = self.world.now()
        message_id = f"id-{sent.name}"
        outcome: Outcome = "ok"
        try:
            if kind == "cancel":
                await self.world.call(lambda broker: broker.cancel(sent.topic, message_id))
            else:
                await self.world.call(lambda broker: broker.amend(sent.topic, message_id, due_ms=due_ms))
        except LOST:
            outcome = "unknown"
        except WherryError as fault:
            self.world.note(kind, str(fault))
            outcome = "refused"
        self.world.history.changed.append(
            Changed(
                kind="cancel" if kind == "cancel" else "amend",
                name=sent.name,
                topic=sent.topic,
                start=start,
                end=self.world.now(),
                outcome=outcome,
                due_ms=due_ms,
            )
        )

    async def redrive(self) -> None:
        """Redrive all dead letters of a topic."""
        topic = self.random.choice(self.world.plan.topics)
        start = self.world.now()
        self.world.history.redriven.append(Redriven(topic.name, start, float("inf")))
        await self.world.call(lambda broker: broker.redrive(topic.name, by="sim"))
        self.world.history.redriven[-1].end = self.world.now()

    async def sample(self) -> None:
        """Record the statistics of a topic."""
        topic, start = self.random.choice(self.world.plan.topics), self.world.now()

        async def ask(broker: Broker) -> TopicStats:
            return broker.stats(topic.name)

        stats = await self.world.call(ask)
        self.world.note("stats", stats)
        self.world.history.sampled.append(
            Sampled(
                topic=topic.name,
                at=self.world.now(),
                messages=stats.messages,
                messages_max=topic.messages_max,
                dead=stats.dead,
                dead_max=topic.dead_messages_max,
                start=start,
                partitions=stats.partitions,
            )
        )

    async def grow(self) -> None:
        """Add a partition to a topic, up to a few."""
        name, start = self.random.choice(self.world.plan.topics).name, self.world.now()
        more = self.world.partitions[name] + 1
        if more > PARTITIONS_MAX:
            return
        grown = Grown(name, more, start, float("inf"), "unknown")
        self.world.history.grown.append(grown)
        await self.world.call(lambda broker: broker.create_topic(name, partitions=more))
        grown.end, grown.outcome = self.world.now(), "ok"
        self.world.partitions[name] = more

    async def look(self) -> None:
        """Browse, search and list, which must change nothing."""
        topic = self.random.choice(self.world.plan.topics)
        await self.world.call(lambda broker: broker.browse(topic.name, limit=20))
        await self.world.call(lambda broker: broker.search(topic.name, key="a", limit=5))
        for config in self.world.plan.subscriptions:
            await self.world.call(lambda b, c=config: b.scheduled(c.topic, c.name))  # type: ignore[misc]

    async def keys(self) -> None:
        """Put or delete an API key, then list the keys."""
        public_id = f"key0000{self.random.randrange(4)}"
        keyed = Keyed("put" if self.random.random() < 0.6 else "delete", public_id, self.world.now())
        self.world.history.keyed.append(keyed)
        now_ms = self.world.clock.wall_us() // 1000
        rights = (Right("admin", self.random.choice(("*", "topic-*"))),)
        key = Key(id=public_id, digest=bytes(32), name="sim", rights=rights, created_ms=now_ms)
        try:
            if keyed.kind == "put":
                await self.world.call(lambda broker: broker.put_key(key))
            else:
                await self.world.call(lambda broker: broker.delete_key(public_id))
        except LOST:
            raise
        except WherryError as fault:
            self.world.note(keyed.kind, str(fault))
            keyed.outcome = "refused"
        else:
            keyed.outcome = "ok"

        async def ask(broker: Broker) -> list[str]:
            listed = broker.keys()
            return [key.id for key in listed]

        keyed.listed = await self.world.call(ask)

    async def checkpoint(self) -> None:
        """Write a checkpoint."""
        await self.world.call(lambda broker: broker.checkpoint())


@dataclass
class Nemesis:
    """Causes faults: power cuts, kills, clean restarts, a failing or full disk, jumps of the clock, pauses."""

    world: World
    random: Random

    async def run(self) -> None:
        """Cause faults at random times until the run ends."""
        plan = self.world.plan
        while not self.world.ending:
            await asyncio.sleep(self.random.expovariate(4))
            if self.world.ending:
                return
            if self.random.random() < plan.crashes / 4:
                await self.crash()
                if self.world.ending:  # a clean stop takes time, and `heal` may have been called meanwhile
                    return
            if plan.clock_jumps and self.random.random() < 0.1:
                self.jump()
            if plan.disk_faults and self.random.random() < 0.2:
                self.disk_fault()
            if plan.pauses and self.random.random() < 0.15:
                seconds = self.random.choice((0.05, 0.3, 2.0))
                self.world.acted("nemesis", f"pause the broker for {seconds} s")
                await self.world.pause(seconds)

    async def crash(self) -> None:
        """Cut the power, kill the broker or stop it cleanly; the supervisor starts it again."""
        kind = self.random.random()
        if kind < 0.2:
            await self.world.close()
        else:
            self.world.end_life(power=kind < 0.7)

    def jump(self) -> None:
        """Set the clock forward or back."""
        by_ms = self.random.choice((-60_000, -500, 500, 60_000))
        self.world.acted("nemesis", f"set the clock by {by_ms} ms")
        self.world.clock.jump(by_ms)

    def disk_fault(self) -> None:
        """Give the disk faults for a while."""
        disk = self.world.disk
        kind = self.random.choice(("slow", "sync", "write", "full", "well", "well"))
        self.world.note("disk", kind)
        self.world.acted("nemesis", f"disk: {kind}")
        self._end_fault()
        if kind == "slow":
            disk.faults = replace(disk.faults, delay_us_max=100_000)
        elif kind == "sync":
            disk.faults = replace(disk.faults, sync_fails=0.02)
        elif kind == "write":
            disk.faults = replace(disk.faults, write_fails=0.02)
        elif kind == "full":
            disk.capacity_bytes = CAPACITY_BYTES - disk.free_bytes()
            self.world.history.full.append((self.world.now(), inf))

    def heal(self) -> None:
        """End the faults of the disk."""
        self.world.acted("nemesis", "no more faults")
        self._end_fault()

    def _end_fault(self) -> None:
        self.world.disk.faults = self.world.usual_faults
        self.world.disk.capacity_bytes = CAPACITY_BYTES
        full = self.world.history.full
        if full and full[-1][1] == inf:
            full[-1] = (full[-1][0], self.world.now())
