"""Publish: plain, through routes, and in transactions."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

import pyarrow as pa

from wherry.broker.calls.calls import BrokerCalls
from wherry.broker.commit.batches import OPTIONS, Submittable
from wherry.broker.commit.commit import WhenDurable
from wherry.broker.commit.gathering import PATIENT_BYTES_MAX, Gathering
from wherry.broker.commit.shard import Choice
from wherry.core.decide import leasing, publishing, staging
from wherry.core.decide.volatile import joined
from wherry.model import check
from wherry.model.calls.publish import PLAIN, CommittedParts, Published, PublishOptions
from wherry.model.calls.rows import Handling, single_row
from wherry.model.catalog import routing
from wherry.model.errors import InvalidInput, WherryError
from wherry.model.ops import Entry
from wherry.model.row_batch import RowBatch
from wherry.model.schema import Publishable, compact


class PublishCalls(BrokerCalls):
    """The calls that add messages."""

    _gathering: Gathering

    @property
    def gathering(self) -> Gathering:
        """Return the gathering, which makes one batch of the messages of several callers."""
        return self._gathering

    async def publish(self, topic: str, messages: Publishable, options: PublishOptions | None = None) -> Published:
        """Publish messages to a topic; on return they are on disk (unless they are transient).

        `messages` is an Arrow batch or table with a `payload` column (and any of `id`, `key`, `priority`, `due`,
        `expires`, `headers`), a list of bytes, text or `Message`, or one of these. Arrow data is immutable, so payloads
        of a large batch are not copied: do not write into memory that Arrow data refers to.
        """
        chosen = PLAIN if options is None else options
        if not isinstance(chosen, PublishOptions):
            raise InvalidInput("options", options, "PublishOptions, or None")
        metrics = self.shard.metrics
        call = self._gathered(topic, messages, chosen)
        if call is None and self._gathering.is_open(topic):  # messages of earlier calls come before these
            call = self._gathering.publish_batch(topic, messages, chosen)
        if call is None:
            call = self._publish(topic, messages, chosen)
        return await (call if metrics is None else metrics.publishing((topic,), call))

    def _gathered(
        self, topic: str, messages: Publishable, chosen: PublishOptions
    ) -> Coroutine[Any, Any, Published] | None:
        """Return the call that publishes a single plain message together with those of other callers.

        None for messages that have to be decided alone: several messages, which are a batch already; a message with an
        id, for which the disk may have to be read while others would wait; one without a key for one of several
        partitions.
        """
        number = self.shard.state.catalog.topics.get(topic) if isinstance(topic, str) else None
        config = None if number is None else self.shard.state.topics[number].config
        row = None if config is None or not chosen.is_plain else single_row(messages)
        if config is None or row is None or row.size > min(PATIENT_BYTES_MAX, config.payload_bytes_max):
            return None
        if config.partitions > 1 and row.rows.key is None:
            return None
        persistent = config.persistent if chosen.persistent is None else chosen.persistent
        return self.gathering.publish(topic, row.rows, Handling(persistent, row.priority, row.expires, row.due))

    async def _publish(self, topic: str, messages: Publishable, chosen: PublishOptions) -> Published:
        began_us = self.shard.clock.wall_us()
        try:
            position, answer, batch = await self._submitted(topic, messages, chosen)
        except WherryError:
            # A producer that repeats a publish takes `DuplicateId` for success, so the first publish must be durable.
            await self.stored_so_far()
            raise
        await self.shard.committer.wait(position)
        self._trace(topic, batch, answer, began_us)
        return answer

    def _trace(
        self,
        topic: str,
        batch: pa.RecordBatch | RowBatch,
        answer: Published,
        began_us: int,
        position: int | None = None,
    ) -> None:
        if self.shard.tracing is not None:
            columns = batch.batch if isinstance(batch, RowBatch) else batch
            self.shard.tracing.published(topic, columns, answer, began_us, position)

    async def submit(
        self, topic: str, messages: Submittable, options: PublishOptions
    ) -> tuple[int, Published | WherryError]:
        """Publish without waiting for the disk: return the position that `stored` waits for, and the answer.

        On return the messages are in the topic and not durable yet.
        """
        began_us = self.shard.clock.wall_us()
        try:
            position, answer, batch = await self._submitted(topic, messages, options)
        except WherryError as fault:
            return self._refused(fault)
        self._trace(topic, batch, answer, began_us, position)
        return position, answer

    def submit_at_once(
        self, topic: str, messages: Submittable, options: PublishOptions
    ) -> tuple[int, Published | WherryError] | None:
        """Publish as `submit` does; return None, with nothing published, if the call has to wait for something."""
        shard = self.shard
        began_us = 0 if shard.tracing is None else shard.clock.wall_us()
        try:
            if options is OPTIONS[True] and isinstance(messages, RowBatch) and not messages.has_times:
                planned = shard.planned.publish(topic, messages)
                if planned is not None:
                    return planned
            batch, choose = self._publishing(topic, messages, options)
            decided = shard.decide_at_once(choose, self._observed(topic, batch))
        except WherryError as fault:
            return self._refused(fault)
        if decided is None:
            return None
        position, answer = self._position_and_answer(*decided)
        if shard.tracing is not None:
            self._trace(topic, batch, answer, began_us, position)
        return position, answer

    def publish_lone(self, topic: str, payload: bytes) -> tuple[int, int] | None:
        """Publish one payload by the planned way; return the position to wait for and its offset.

        Returns None, with nothing published, if the general way has to decide.
        """
        return self.shard.planned.publish_lone(topic, payload)

    def _refused(self, fault: WherryError) -> tuple[int, WherryError]:
        """Return a refusal with the position to wait for: it depends on entries of others, which must be durable."""
        return self.shard.committer.submitted, fault

    def count_refusal(self, topic: str, fault: WherryError) -> None:
        """Count a publish that was refused, for the metrics."""
        if self.shard.metrics is not None:
            self.shard.metrics.refused(topic, fault)

    async def _submitted(
        self, topic: str, messages: Submittable, options: PublishOptions
    ) -> tuple[int, Published, pa.RecordBatch | RowBatch]:
        batch, choose = self._publishing(topic, messages, options)
        decided = await self.shard.decide(choose, self._observed(topic, batch))
        return *self._position_and_answer(*decided), batch

    def _publishing(
        self, topic: str, messages: Submittable, options: PublishOptions
    ) -> tuple[pa.RecordBatch | RowBatch, Choice[Published]]:
        """Return messages as a checked batch, and the decision that publishes it."""
        if options.callback is not None:
            self.check_url("callback", options.callback)
        state = self.shard.state
        batch = _checked(messages, state.topic(topic).config.payload_bytes_max)
        return batch, lambda now: publishing.decide(state, state.topic(topic), batch, options, now.wall_us)

    def _observed(self, topic: str, batch: pa.RecordBatch | RowBatch) -> tuple[str, ...]:
        """Return the topics whose expired messages a publish may observe: those count against a bound, or have an id.

        A row batch has no ids. Messages of other topics expire with the next round (ADR 0026).
        """
        known = self.shard.state.topic(topic)
        if known.config.is_bounded or not isinstance(batch, RowBatch):
            return (topic,)
        for each in known.subscriptions.values():  # one that is behind its buffer is cut off
            if each.config.buffer_messages is not None or each.config.buffer_bytes is not None:
                return (topic,)
        return ()

    def _position_and_answer(self, position: int, answer: Published) -> tuple[int, Published]:
        """Return the position that a publish has to wait for, and its answer."""
        if answer.repeated:
            return self.shard.committer.submitted, answer
        # without an entry: its offsets depend on the reserving entry
        return position or self.shard.reserved_at, answer

    async def reserve(self, topic: str) -> None:
        """Reserve offsets for transient messages of a topic with one partition: else the first waits for the disk.

        On return the offsets are not durable yet; they become durable before anything that is written later.
        """
        state = self.shard.state
        await self.shard.decide(lambda now: (publishing.reserve(state.topic(topic), [(0, 0)], now.wall_us), None))

    def is_stored(self, position: int) -> bool:
        """Return whether everything up to a position of `submit` is durable."""
        return position <= self.shard.committer.durable

    def when_stored(self, position: int, call: WhenDurable) -> None:
        """Call once everything up to a position of `submit` is durable, or the journal failed."""
        self.shard.committer.when_durable(position, call)

    async def stored(self, position: int) -> None:
        """Wait until everything up to a position of `submit` is durable."""
        await self.shard.committer.wait(position)

    async def publish_route(
        self, route: str, messages: Publishable, *, routing_key: str = "", headers: dict[str, str] | None = None
    ) -> dict[str, Published]:
        """Publish through a route: a copy for each topic that matches, all of them or none."""
        state = self.shard.state
        check.text("routing_key", routing_key)
        check.headers("headers", headers)
        names = routing.targets(state.catalog.route(route), routing_key, headers or {}, state.catalog.routes)
        metrics = self.shard.metrics
        call = self._publish_all(names, messages)
        return await (call if metrics is None else metrics.publishing(names, call))

    async def _publish_all(self, names: Sequence[str], messages: Publishable) -> dict[str, Published]:
        """Publish a copy for each topic, all of them or none."""
        state = self.shard.state
        began_us = self.shard.clock.wall_us()
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

        answers = await self._durable(choose, *names)
        for name, answer in answers.items() if batch is not None else ():
            self._trace(name, batch, answer, began_us)
        return answers

    async def stage(self, key: str, topic: str, messages: Publishable, *, partition: int | None = None) -> None:
        """Stage messages under a key; they are durable, and not visible before `commit`."""
        await self._durable(self._staging(key, topic, messages, partition), topic)

    async def submit_stage(self, key: str, topic: str, messages: Publishable, *, partition: int | None = None) -> int:
        """Stage messages under a key; return the position that `stored` waits for, before they are durable."""
        position, _ = await self.shard.decide(self._staging(key, topic, messages, partition), (topic,))
        return position

    def _staging(self, key: str, topic: str, messages: Publishable, partition: int | None) -> Choice[None]:
        state = self.shard.state
        batch = compact(messages, state.topic(topic).config.payload_bytes_max)

        def choose(now: leasing.Now) -> tuple[list[Entry], None]:
            return staging.stage_publish(state, key, state.topic(topic), batch, partition, now.wall_us), None

        return choose

    async def commit(self, key: str, stages: Sequence[str] | None = None) -> CommittedParts:
        """Make everything under a key visible at once; return `(topic, partition, first offset, count)` for each part.

        With `stages`, what is staged under those keys becomes visible together, and `key` names the commit: several
        writers stage for themselves, and one of them commits for all. The same key again is a success that does
        nothing and gives the same answer; what was staged a second time for it is thrown away.
        """
        state = self.shard.state
        if stages is not None and (isinstance(stages, str) or not isinstance(stages, Sequence)):
            raise InvalidInput("stages", stages, "a list of keys, or None")

        def choose(now: leasing.Now) -> tuple[list[Entry], staging.Committed]:
            return staging.commit(state, key, now.wall_us, stages)

        position, committed = await self._decided(choose)
        committed.end_leases(state)
        self.shard.wake()
        await self.shard.committer.wait(position or self.shard.committer.submitted)
        placed = committed.placed.reshape(-1, 4).tolist()
        configs = {topic.number: topic.config for topic in state.topics.values()}
        names = {number: configs[number].name if number in configs else "" for number, *_ in placed}
        mesh = {configs[number].name: configs[number].mesh for number in names if number in configs}
        return CommittedParts([(names[t], p, b, c) for t, p, b, c in placed], mesh)

    async def abort(self, key: str) -> None:
        """Throw away what is staged under a key."""
        await self._durable(lambda now: (staging.abort(self.shard.state, key, now.wall_us), None))


def _checked(messages: Submittable, payload_bytes_max: int) -> pa.RecordBatch | RowBatch:
    """Return messages as a checked batch. Of a row batch only the sizes of the payloads are unchecked."""
    if not isinstance(messages, RowBatch):
        return compact(messages, payload_bytes_max)
    if messages.size > payload_bytes_max and max(map(len, messages.values["payload"])) > payload_bytes_max:
        return compact(messages.batch, payload_bytes_max)
    return messages
