"""Messages by id and by content: get, cancel, amend, browse, search, list what is scheduled."""

from __future__ import annotations

import pyarrow as pa

from wherry.broker.calls import browse
from wherry.broker.calls.calls import BrokerCalls
from wherry.core.decide import amending
from wherry.model.calls.amendment import Amended, Amendment
from wherry.model.calls.listing import Page, Search
from wherry.model.errors import InvalidInput


class MessageCalls(BrokerCalls):
    """The calls that read messages without taking them, and change those that wait."""

    async def cancel(self, topic: str, *message_ids: str) -> None:
        """Cancel waiting messages, all or none; raise `NotWaiting` if one is on lease or settled."""
        if not message_ids:
            raise InvalidInput("message_ids", message_ids, "at least one id")
        state = self.shard.state
        await self._durable(
            lambda now: (amending.cancel(state, state.topic(topic), list(message_ids), now.wall_us), None), topic
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
        """Change a waiting message: `amend("jobs", id, due_ms=…, version=1)`; raise for a stale version."""
        try:
            wanted = change if change is not None else Amendment(**fields)  # type: ignore[arg-type]
        except TypeError:
            allowed = "payload, priority, due_ms, expires_ms, headers"
            raise InvalidInput("fields", sorted(fields), allowed) from None
        state = self.shard.state
        return await self._durable(
            lambda now: amending.amend(state, state.topic(topic), message_id, wanted, version, now.wall_us), topic
        )

    async def get(self, topic: str, message_id: str) -> pa.RecordBatch:
        """Return one message by id, as a batch of one row; empty if the message is not in the topic any more."""
        return await browse.by_id(self.shard, self.shard.state.topic(topic), message_id)

    async def state_of(self, topic: str, subscription: str, message_id: str) -> str:
        """Return what a message is for a subscription: waiting, scheduled, leased, dead or settled."""
        state = self.shard.state
        found = await browse.find(self.shard, state.topic(topic), message_id)
        reader = state.subscription(topic, subscription).readers[found.partition]
        found_as = reader.state_of(found.offset, self.shard.now().wall_ms)
        await self.stored_so_far()
        return found_as

    async def browse(self, topic: str, *, partition: int = 0, start: int = 0, limit: int = 1_000) -> pa.RecordBatch:
        """Return messages of a partition by offset, without consuming them."""
        return await browse.browse(self.shard, self.shard.state.topic(topic), partition, start, limit)

    async def browse_page(
        self,
        topic: str,
        partition: int,
        start: int,
        limit: int,
        *,
        after: str | None = None,
        bytes_max: int | None = None,
    ) -> Page:
        """Return one page of the messages of a partition; `after` overrides `partition` and `start`."""
        known = self.shard.state.topic(topic)
        return await browse.browse_page(self.shard, known, partition, start, limit, after=after, bytes_max=bytes_max)

    async def search(self, topic: str, wanted: Search | None = None, /, **fields: object) -> pa.RecordBatch:
        """Return messages by key, headers or time: `search("jobs", key="user-7", limit=10)`."""
        try:
            chosen = wanted if wanted is not None else Search(**fields)  # type: ignore[arg-type]
        except TypeError:
            raise InvalidInput("fields", sorted(fields), "key, headers, from_ms, to_ms, limit") from None
        if not isinstance(chosen, Search):
            raise InvalidInput("wanted", chosen, "a Search, or its fields by name")
        return await browse.search(self.shard, self.shard.state.topic(topic), chosen)

    async def search_page(
        self, topic: str, wanted: Search, *, after: str | None = None, bytes_max: int | None = None
    ) -> Page:
        """Return one page of the messages that match."""
        known = self.shard.state.topic(topic)
        return await browse.search_page(self.shard, known, wanted, after=after, bytes_max=bytes_max)

    async def scheduled(
        self, topic: str, subscription: str, *, from_ms: int | None = None, to_ms: int | None = None, limit: int = 1_000
    ) -> pa.RecordBatch:
        """Return what a subscription will get in a time range, soonest first."""
        known = self.shard.state.topic(topic)
        return await browse.scheduled(self.shard, known, subscription, from_ms, to_ms, limit)

    async def scheduled_page(
        self,
        topic: str,
        subscription: str,
        *,
        from_ms: int | None,
        to_ms: int | None,
        limit: int,
        after: str | None = None,
        bytes_max: int | None = None,
    ) -> Page:
        """Return one page of what will be handed to a subscription in a time range, soonest first."""
        known = self.shard.state.topic(topic)
        return await browse.scheduled_page(
            self.shard, known, subscription, from_ms, to_ms, limit, after=after, bytes_max=bytes_max
        )
