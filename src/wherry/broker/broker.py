"""The broker, in process: what every wire, client and test calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.broker import backfill, browse
from wherry.broker.browse import Search
from wherry.broker.consumer import Consumer
from wherry.broker.housekeeping import Housekeeper
from wherry.broker.settle import Settler
from wherry.broker.shard import Shard
from wherry.core import amending, deadletters, leasing, publishing, routing, staging, stats
from wherry.core.amending import Amended, Amendment
from wherry.core.assignment import make as make_assignment
from wherry.core.catalog import check_change
from wherry.core.deadletters import DeadFilter
from wherry.core.publishing import Published, PublishOptions
from wherry.core.state import Deed
from wherry.core.stats import TopicStats
from wherry.core.volatile import joined
from wherry.model import check, ops
from wherry.model.errors import AlreadyExists, InvalidInput, StorageError, WherryError
from wherry.model.ops import Entry
from wherry.model.route import Route
from wherry.model.schema import Publishable, compact
from wherry.model.subscription import Subscription
from wherry.model.topic import Topic

Int64: TypeAlias = npt.NDArray[np.int64]


REDRIVES_A_SECOND = 10
"""Steps a second of a redrive with a rate."""


class Broker:
    """Topics, subscriptions, messages. Made by `wherry.open`; every method that changes something is durable on return.

    Every method checks its input: what is wrong raises `InvalidInput` with the field, the value and what is allowed.
    """

    def __init__(self, shard: Shard, housekeeper: Housekeeper) -> None:
        self.shard = shard
        self._housekeeper = housekeeper
        self._settler = Settler(shard)
        self._background = asyncio.create_task(self._run_housekeeper(), name="wherry housekeeping")
        self._consumers = 0

    async def _run_housekeeper(self) -> None:
        try:
            await self._housekeeper.run()
        except WherryError as fault:
            self.shard.committer.fail(fault)

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Write what is queued and a last checkpoint, then let go of the directory."""
        self._background.cancel()
        await asyncio.gather(self._background, return_exceptions=True)
        if self.shard.committer.failure is None:
            await self._housekeeper.last_checkpoint()
        await self.shard.committer.close()
        await self.shard.writer.close()

    async def checkpoint(self) -> None:
        """Write a checkpoint now, so that recovery has little to read."""
        try:
            await self._housekeeper.checkpoint()
        except OSError as fault:
            raise StorageError(f"no checkpoint was written, and nothing is lost by it: {fault}") from fault

    # Topics, subscriptions, routes.

    async def create_topic(self, topic: Topic | str, /, **fields: object) -> Topic:
        """Create a topic from a `Topic`, or from a name and its fields. Creating the same again is no error.

        A topic that exists may be given other bounds and retention this way; its order and partitions stay.
        """
        wanted = _built(Topic, topic, fields, name="name").checked()

        def choose(now: leasing.Now) -> tuple[list[Entry], Topic]:
            catalog = self.shard.state.catalog
            number = catalog.topics.get(wanted.name)
            if number is None:
                catalog.check_room()
                number = catalog.next_number
            else:
                known = self.shard.state.topics[number].config
                if known == wanted:
                    return [], wanted
                check_change(known, wanted)
            return [Entry(now.wall_us, [ops.PutTopic(number, wanted)])], wanted

        return await self._durable(choose)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages, subscriptions and dead letters."""

        def choose(now: leasing.Now) -> tuple[list[Entry], None]:
            return [Entry(now.wall_us, [ops.DeleteTopic(self.shard.state.catalog.topic(name))])], None

        await self._durable(choose)

    async def subscribe(
        self, subscription: Subscription | str, name: str | None = None, /, **fields: object
    ) -> Subscription:
        """Create a subscription: `subscribe("jobs", "workers", lease_ms=60_000)`. The same again is no error."""
        if name is not None:
            fields = {"name": name, **fields}
        if fields.get("durable") is False and "start" not in fields:
            fields["start"] = "latest"
        wanted = _built(Subscription, subscription, fields, name="topic").checked()
        make_assignment(wanted.assignment, 1)

        def choose(now: leasing.Now) -> tuple[list[Entry], Subscription]:
            return self._new_subscription(wanted, now), wanted

        await self._durable(choose)
        state = self.shard.state.subscription(wanted.topic, wanted.name)
        await backfill.run(self.shard, state)
        return wanted

    def _new_subscription(self, wanted: Subscription, now: leasing.Now) -> list[Entry]:
        state = self.shard.state
        topic = state.topic(wanted.topic)
        for known in topic.subscriptions.values():
            if known.config.name == wanted.name:
                if known.config != wanted:
                    raise AlreadyExists(
                        "subscription", f"{wanted.topic}/{wanted.name}", _difference(known.config, wanted)
                    )
                return []
        state.catalog.check_room()
        starts = np.zeros(max(topic.partitions, default=0) + 1, np.int64)
        for number, partition in topic.partitions.items():
            starts[number] = _start(wanted, partition.next_offset, partition.directory.first_published_from)
        if wanted.durable:
            number = state.catalog.next_number
        else:
            state.last_ephemeral -= 1
            number = state.last_ephemeral
        op = ops.PutSubscription(number, topic.number, wanted, starts)
        return [Entry(now.wall_us, [op], volatile=not wanted.durable)]

    async def unsubscribe(self, topic: str, name: str) -> None:
        """Delete a subscription; its progress and dead letters go with it."""
        subscription = self.shard.state.subscription(topic, name)
        await self.shard.admit_settle(1)
        position = self.shard.remove_subscription(subscription, "")
        await self.shard.committer.wait(position)

    async def put_route(self, route: Route) -> Route:
        """Create or change a route."""
        if not isinstance(route, Route):
            raise InvalidInput("route", route, "a Route")
        route.checked()

        def choose(now: leasing.Now) -> tuple[list[Entry], Route]:
            self.shard.state.catalog.check_room()
            return [Entry(now.wall_us, [ops.PutRoute(route)])], route

        return await self._durable(choose)

    async def delete_route(self, name: str) -> None:
        """Delete a route."""

        def choose(now: leasing.Now) -> tuple[list[Entry], None]:
            self.shard.state.catalog.route(name)
            return [Entry(now.wall_us, [ops.DeleteRoute(name)])], None

        await self._durable(choose)

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return sorted((topic.config for topic in self.shard.state.topics.values()), key=lambda topic: topic.name)

    def routes(self) -> list[Route]:
        """All routes, by name."""
        return sorted(self.shard.state.catalog.routes.values(), key=lambda route: route.name)

    # Publishing.

    async def publish(self, topic: str, messages: Publishable, options: PublishOptions | None = None) -> Published:
        """Publish messages to a topic; on return they are on disk (unless they are transient).

        `messages` is an Arrow batch or table with a `payload` column (and any of `id`, `key`, `priority`, `due`,
        `expires`, `headers`), a list of bytes, text or `Message`, or one of these.
        """
        chosen = PublishOptions() if options is None else options
        if not isinstance(chosen, PublishOptions):
            raise InvalidInput("options", options, "PublishOptions, or None")
        state = self.shard.state
        batch = compact(messages, state.topic(topic).config.payload_bytes_max)

        def choose(now: leasing.Now) -> tuple[list[Entry], Published]:
            return publishing.decide(state, state.topic(topic), batch, chosen, now.wall_us)

        position, answer = await self.shard.decide(choose)
        if answer.repeated:
            position = self.shard.committer.submitted
        await self.shard.committer.wait(position)
        return answer

    async def publish_route(
        self, route: str, messages: Publishable, *, routing_key: str = "", headers: dict[str, str] | None = None
    ) -> dict[str, Published]:
        """Publish through a route: a copy for each topic that matches, all of them or none."""
        state = self.shard.state
        names = routing.targets(state.catalog.route(route), routing_key, headers or {})
        for name in names:
            state.topic(name)
        sizes = [state.topic(name).config.payload_bytes_max for name in names]
        batch = compact(messages, min(sizes)) if sizes else None

        def choose(now: leasing.Now) -> tuple[list[Entry], dict[str, Published]]:
            entries: list[Entry] = []
            answers = {}
            for name in names if batch is not None else ():
                new, answers[name] = publishing.decide(state, state.topic(name), batch, PublishOptions(), now.wall_us)
                entries += new
            lasting = [entry for entry in entries if not entry.volatile]
            return joined([*lasting, *(entry for entry in entries if entry.volatile)]), answers

        return await self._durable(choose)

    # Transactions.

    async def stage(self, key: str, topic: str, messages: Publishable, *, partition: int | None = None) -> None:
        """Put messages aside under a key; they are durable, and nobody sees them before `commit`."""
        state = self.shard.state
        batch = compact(messages, state.topic(topic).config.payload_bytes_max)

        def choose(now: leasing.Now) -> tuple[list[Entry], None]:
            return staging.stage_publish(state, key, state.topic(topic), batch, partition, now.wall_us), None

        await self._durable(choose)

    async def commit(self, key: str) -> list[tuple[str, int, int, int]]:
        """Make everything under a key visible at once: `(topic, partition, first offset, count)` for each part.

        The same key again is a success that does nothing and gives the same answer.
        """
        state = self.shard.state

        def choose(now: leasing.Now) -> tuple[list[Entry], staging.Committed]:
            return staging.commit(state, key, now.wall_us)

        position, committed = await self.shard.decide(choose)
        committed.end_leases(state)
        await self.shard.committer.wait(position or self.shard.committer.submitted)
        names = {topic.number: topic.config.name for topic in state.topics.values()}
        return [(names.get(t, ""), p, b, c) for t, p, b, c in committed.placed.reshape(-1, 4).tolist()]

    async def abort(self, key: str) -> None:
        """Throw away what lies under a key."""
        await self._durable(lambda now: (staging.abort(self.shard.state, key, now.wall_us), None))

    # Consuming.

    async def consumer(
        self,
        topic: str,
        subscription: str,
        consumer_id: str | None = None,
        *,
        buffer_messages: int | None = None,
        buffer_bytes: int | None = None,
    ) -> Consumer:
        """Join a subscription. The buffer is the most that this consumer will ever hold unsettled."""
        self.shard.committer.check()
        self._consumers += 1
        name = consumer_id if consumer_id is not None else f"consumer-{self._consumers}"
        state = self.shard.state.subscription(topic, subscription)
        joined_as = leasing.join(state, name, buffer_messages, buffer_bytes)
        self.shard.wake(state.topic)
        return Consumer(self.shard, state, joined_as)

    # Settling by token, for those who are not in this process.

    async def ack(self, token: int, offsets: Sequence[int] | None = None) -> None:
        """Done with messages of a lease; `StaleLease` if it does not hold them any more."""
        await self._settler.ack([(token, _offsets(offsets))])

    async def nack(
        self, token: int, offsets: Sequence[int] | None = None, *, delay_ms: int | None = None, error: str = ""
    ) -> None:
        """Messages of a lease failed: they come back by the retry policy, or after `delay_ms`."""
        await self._settler.nack([(token, _offsets(offsets))], delay_ms, error)

    async def dead_letter(
        self, token: int, offsets: Sequence[int] | None = None, *, reason: str = "rejected", error: str = ""
    ) -> None:
        """Give up on messages of a lease at once."""
        await self._settler.dead_letter([(token, _offsets(offsets))], reason, error)

    async def release(self, token: int, offsets: Sequence[int] | None = None) -> None:
        """Hand messages of a lease back untouched: they wait again, no attempt counted."""
        self._settler.release([(token, _offsets(offsets))])

    async def renew(self, token: int, lease_ms: int | None = None) -> None:
        """More time for a lease."""
        self._settler.renew([token], lease_ms)

    async def stage_ack(self, key: str, token: int, offsets: Sequence[int] | None = None) -> None:
        """Ack when the stage `key` is committed; the lease must still hold then."""
        await self._settler.stage_ack(key, [(token, _offsets(offsets))])

    # Messages by id.

    async def cancel(self, topic: str, *message_ids: str) -> None:
        """Cancel waiting messages, all of them or none; `NotWaiting` if one is out or done."""
        if not message_ids:
            raise InvalidInput("message_ids", message_ids, "at least one id")
        state = self.shard.state
        await self._durable(
            lambda now: (amending.cancel(state, state.topic(topic), list(message_ids), now.wall_us), None)
        )

    async def amend(
        self,
        topic: str,
        message_id: str,
        change: Amendment | None = None,
        /,
        *,
        version: int | None = None,
        **fields: object,
    ) -> Amended:
        """Change a waiting message: `amend("jobs", id, due_ms=…, version=1)`. A stale version is refused."""
        try:
            wanted = change if change is not None else Amendment(**fields)  # type: ignore[arg-type]
        except TypeError:
            allowed = "payload, priority, due_ms, expires_ms, headers"
            raise InvalidInput("fields", sorted(fields), allowed) from None
        state = self.shard.state
        return await self._durable(
            lambda now: amending.amend(state, state.topic(topic), message_id, wanted, version, now.wall_us)
        )

    async def get(self, topic: str, message_id: str) -> pa.RecordBatch:
        """One message by id, as a batch of one row; empty if it is not in the topic any more."""
        return await browse.by_id(self.shard, self.shard.state.topic(topic), message_id)

    async def state_of(self, topic: str, subscription: str, message_id: str) -> str:
        """Where a message stands for a subscription: waiting, scheduled, leased, dead or settled."""
        state = self.shard.state
        found = await browse.find(self.shard, state.topic(topic), message_id)
        reader = state.subscription(topic, subscription).readers[found.partition]
        return reader.state_of(found.offset, self.shard.now().wall_ms)

    # Looking.

    async def browse(self, topic: str, *, partition: int = 0, start: int = 0, limit: int = 1_000) -> pa.RecordBatch:
        """Messages of a partition by offset, without consuming them."""
        return await browse.browse(self.shard, self.shard.state.topic(topic), partition, start, limit)

    async def search(self, topic: str, wanted: Search | None = None, /, **fields: object) -> pa.RecordBatch:
        """Messages by key, headers or time: `search("jobs", key="user-7", limit=10)`."""
        try:
            chosen = wanted if wanted is not None else Search(**fields)  # type: ignore[arg-type]
        except TypeError:
            raise InvalidInput("fields", sorted(fields), "key, headers, from_ms, to_ms, limit") from None
        return await browse.search(self.shard, self.shard.state.topic(topic), chosen)

    async def scheduled(
        self, topic: str, subscription: str, *, from_ms: int | None = None, to_ms: int | None = None, limit: int = 1_000
    ) -> pa.RecordBatch:
        """What will be handed to a subscription in a time range, soonest first."""
        known = self.shard.state.topic(topic)
        return await browse.scheduled(self.shard, known, subscription, from_ms, to_ms, limit)

    def stats(self, topic: str) -> TopicStats:
        """How much waits where, and how far behind each subscription is."""
        now = self.shard.now()
        self.shard.upkeep(now)
        return stats.of_topic(self.shard.state, self.shard.state.topic(topic), now.wall_ms)

    # Dead letters.

    async def dead_letters(self, topic: str, wanted: DeadFilter | None = None) -> pa.RecordBatch:
        """Dead letters with the whole message, the reason, the last error, attempts and times."""
        return await browse.dead_letters(self.shard, self.shard.state.topic(topic), wanted or DeadFilter())

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

    async def _durable(self, choose: backfill.Choice[backfill.T]) -> backfill.T:
        position, answer = await self.shard.decide(choose)
        await self.shard.committer.wait(position)
        return answer


def _offsets(given: Sequence[int] | None) -> Int64 | None:
    if given is None:
        return None
    try:
        return np.unique(np.asarray(given, np.int64))
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput("offsets", given, "offsets, or None for the whole lease") from None


def _total(groups: list[deadletters.DeadGroup]) -> int:
    return sum(len(group.offsets) for group in groups)


def _built(kind: type[backfill.T], given: object, fields: dict[str, object], *, name: str) -> backfill.T:
    """A `Topic` or `Subscription` from itself, or from a name and keyword fields."""
    if isinstance(given, kind):
        if fields:
            raise InvalidInput(next(iter(fields)), fields, f"no further fields beside a whole {kind.__name__}")
        return given
    try:
        return kind(**{name: given, **fields})
    except TypeError as fault:
        known = ", ".join(kind.__struct_fields__)  # type: ignore[attr-defined]
        raise InvalidInput(f"{kind.__name__} fields", str(fault), f"some of {known}") from None


def _difference(known: msgspec.Struct, wanted: msgspec.Struct) -> str:
    for field in known.__struct_fields__:
        before, after = getattr(known, field), getattr(wanted, field)
        if before != after:
            return f"{field} is {before!r}, not {after!r}"
    return "nothing"


def _start(wanted: Subscription, end: int, first_from: backfill.FirstFrom) -> int:
    if wanted.start == "earliest":
        return 0
    if wanted.start == "offset":
        return min(wanted.start_offset or 0, end)
    if wanted.start == "time":
        first = first_from((wanted.start_ms or 0) * 1000)
        return end if first is None else first
    return end
