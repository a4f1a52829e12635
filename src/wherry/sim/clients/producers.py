"""Producers of a run: plain publishes, idempotent ones that are repeated, transactions, transient messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from wherry.broker.broker import Broker
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.catalog.topic import Topic
from wherry.model.errors import NotFound, StageLost, WherryError
from wherry.model.schema import Message
from wherry.sim.clients.callbacks import URL
from wherry.sim.history import Outcome, Sent
from wherry.sim.world.world import LOST, World

KEYS = (None, "a", "b", "c")
HOURS_MS = 3_600_000


@dataclass
class TopicProducer:
    """Publishes to topics; its messages are named by its own name and a number."""

    world: World
    name: str
    random: Random
    made: int = 0
    sequence: int = 0
    placed: dict[str, list[tuple[str, int, int, int]]] = field(default_factory=dict)
    """What each commit returned, by its key: topic, partition, first offset and count of each part."""

    async def run(self, publishes: int) -> None:
        """Publish that often, with pauses."""
        for _ in range(publishes):
            await asyncio.sleep(self.random.expovariate(publishes / self.world.plan.seconds))
            topic = self.random.choice(self.world.plan.topics)
            kind = self.random.random()
            if kind < 0.15 and self.world.plan.jobs and self.world.random.random() < 0.6:
                await self.job()
            elif kind < 0.15:
                await self.transaction()
            elif kind < 0.5:
                await self.publish_once(topic)
            else:
                await self.publish(topic)

    def messages(self, topic: Topic, count: int) -> list[Message]:
        """Return new messages with random ids, keys, priorities, due times and expiries."""
        return [self._message(topic) for _ in range(count)]

    def _message(self, topic: Topic) -> Message:
        self.made += 1
        random, now_ms = self.random, self.world.clock.wall_us() // 1000
        timed = (topic.order == "timeline" or random.random() < 0.15) and not topic.flows
        name = f"{self.name}.{self.made}"
        return Message(
            payload=name.encode() + b"." * random.choice((0, 0, 50, 900)),
            id=f"id-{name}" if random.random() < 0.5 else None,
            key=random.choice(KEYS),
            priority=random.choice((0, 1, 5, 65_535)) if random.random() < 0.7 else None,
            due_ms=now_ms + random.choice((0, 300, 4_000)) if timed else None,
            expires_ms=now_ms + random.choice((1_500, HOURS_MS)) if random.random() < 0.15 else None,
        )

    async def publish(self, topic: Topic) -> None:
        """Publish once, without a repeat after a fault."""
        messages = self.messages(topic, self.random.randint(1, 6))
        partition = self.random.randrange(self.world.partitions[topic.name]) if self.random.random() < 0.3 else None
        persistent = self.random.random() > 0.1
        callback = self._callback() if persistent else None
        options = PublishOptions(partition=partition, persistent=persistent, callback=callback)
        start = self.world.now()
        answer, outcome = await self._ask(topic, messages, options)
        self._note(topic, messages, start, (outcome, answer), persistent=persistent, callback=callback is not None)

    async def publish_once(self, topic: Topic) -> None:
        """Publish with a sequence number, repeated until the broker answers, and sometimes once more."""
        messages = self.messages(topic, self.random.randint(1, 6))
        callback = self._callback()
        options = PublishOptions(producer=self.name, sequence=self.sequence, callback=callback)
        self.sequence += len(messages)
        start = self.world.now()
        answer, outcome = await self._ask(topic, messages, options)
        for _ in range(20):
            if outcome != "unknown" and not (outcome == "ok" and self.random.random() < 0.2):
                break
            again, outcome_again = await self._ask(topic, messages, options)
            if outcome_again == "ok" or outcome != "ok":
                self._same(answer, again)
                answer, outcome = again or answer, outcome_again
        self._note(topic, messages, start, (outcome, answer), persistent=True, callback=callback is not None)

    def _callback(self) -> str | None:
        return f"{URL}/{self.name}" if self.world.random.random() < 0.4 else None

    def _same(self, one: Published | None, other: Published | None) -> None:
        if one is not None and other is not None and one.ids() != other.ids():
            self.world.history.faults.append(f"dedup: a repeat of {self.name} got {other.ids()}, first {one.ids()}")

    async def _ask(
        self, topic: Topic, messages: list[Message], options: PublishOptions
    ) -> tuple[Published | None, Outcome]:
        try:
            answer = await self.world.call(lambda broker: broker.publish(topic.name, messages, options))
            if answer.mesh != topic.mesh:
                self.world.history.faults.append(f"guarantee: {topic.name} is {topic.mesh}, the answer {answer.mesh}")
            return answer, "ok"
        except LOST:
            return None, "unknown"
        except WherryError as fault:
            self.world.note("refused", str(fault))
            return None, "refused"

    async def transaction(self) -> None:
        """Stage parts for some topics, then commit until the result is known, or abort, or leave the stage open."""
        world, random = self.world, self.random
        key = f"{self.name}/tx{self.made}"
        parts = [(topic, self.messages(topic, random.randint(1, 3))) for topic in world.plan.topics]
        start = world.now()
        outcome: Outcome = "ok"
        for topic, messages in parts:
            outcome = await self._try(lambda b, t=topic, m=messages: b.stage(key, t.name, m))
            if outcome != "ok":
                break
        if outcome == "ok" and random.random() < 0.8:
            outcome = await self._commit(key)
        else:
            aborted = await self._try(lambda broker: broker.abort(key))
            outcome = "refused" if aborted == "ok" else "unknown"
        group = world.next_group()
        for topic, messages in parts:
            self._note(topic, messages, start, (outcome, None), persistent=True, group=group)

    async def _commit(self, key: str, stages: list[str] | None = None) -> Outcome:
        for _ in range(30):
            outcome = await self._try(lambda broker: self._commit_once(broker, key, stages))
            if outcome != "unknown":
                return outcome
            await asyncio.sleep(0.1)
        return "unknown"

    async def _commit_once(self, broker: Broker, key: str, stages: list[str] | None) -> None:
        placed = await broker.commit(key, stages)
        if any(placed.mesh.get(topic.name, topic.mesh) != topic.mesh for topic in self.world.plan.topics):
            self.world.history.faults.append(f"guarantee: {key} is answered as {placed.mesh}")
        if placed != self.placed.setdefault(key, placed):
            self.world.history.faults.append(f"dedup: {key} was placed at {self.placed[key]}, a repeat at {placed}")

    async def job(self) -> None:
        """Stage parts under keys of their own, then commit all of them together; sometimes repeat the whole job."""
        world, random = self.world, self.random
        key = f"{self.name}/job{self.made}"
        topics = [random.choice(world.plan.topics) for _ in range(random.randint(1, 3))]
        parts = [(topic, self.messages(topic, random.randint(1, 3))) for topic in (*world.plan.topics, *topics)]
        start, outcome = world.now(), await self._run_job(key, 0, parts)
        for batch in range(1, 3):
            # An unknown result stays unknown: an attempt without an answer may be the one that succeeded.
            if outcome == "unknown" or random.random() < 0.6:
                break
            again = await self._run_job(key, batch, parts)
            outcome = again if outcome == "refused" else outcome
        group = world.next_group()
        for topic, messages in parts:
            self._note(topic, messages, start, (outcome, None), persistent=True, group=group)

    async def _run_job(self, key: str, batch: int, parts: list[tuple[Topic, list[Message]]]) -> Outcome:
        """Stage each part until the broker confirms it, under another key each time; commit the confirmed ones.

        Stages without an answer are never committed. Nothing happens if a part is refused, since only the commit makes
        parts visible.
        """
        stages = []
        for number, (topic, messages) in enumerate(parts):
            outcome: Outcome = "unknown"
            for attempt in range(20):
                stage = f"{key}/{batch}.{number}.{attempt}"
                outcome = await self._try(lambda b, s=stage, t=topic, m=messages: b.stage(s, t.name, m))
                if outcome == "refused":
                    return "refused"
                if outcome == "ok" and self.random.random() > 0.15:
                    break
            if outcome == "unknown":
                return "refused"
            stages.append(stage)
        outcome = await self._commit(key, stages)
        if key in self.placed and outcome == "refused":
            self.world.history.faults.append(f"dedup: {key} was committed, and its repeat is refused")
        return outcome

    async def _try(self, ask: BrokerCall) -> Outcome:
        try:
            await self.world.call(ask)
        except LOST:
            return "unknown"
        except (NotFound, StageLost) as fault:
            self.world.note("stage", str(fault))
            return "refused"
        except WherryError as fault:
            self.world.note("refused", str(fault))
            return "refused"
        return "ok"

    def _note(
        self,
        topic: Topic,
        messages: list[Message],
        start: float,
        result: tuple[Outcome, Published | None],
        *,
        persistent: bool,
        group: int = 0,
        callback: bool = False,
    ) -> None:
        outcome, answer = result
        group = group or self.world.next_group()
        for row, message in enumerate(messages):
            self.world.history.sent.append(
                Sent(
                    name=name_of(message.payload),
                    topic=topic.name,
                    start=start,
                    end=self.world.now(),
                    outcome=outcome,
                    persistent=persistent,
                    key=message.key,
                    priority=message.priority,
                    due_ms=message.due_ms,
                    expires_ms=message.expires_ms,
                    partition=None if answer is None else int(answer.partition[row]),
                    offset=None if answer is None else int(answer.offset[row]),
                    group=group,
                    callback=callback,
                )
            )


class BrokerCall(Protocol):
    """A call of the broker."""

    async def __call__(self, broker: Broker) -> object: ...


def name_of(payload: bytes) -> str:
    """Return the name of a message from its padded payload."""
    return payload.rstrip(b".").decode()
