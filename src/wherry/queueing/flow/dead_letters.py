"""Moves dead letters from their queue to the dead-letter exchange that the queue names.

They are dead letters of the broker first, durable with their reason. Then they are published again and removed in one
step, so that a crash neither loses nor doubles them; only copies too large for one step may be doubled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.dead import DeadFilter
from wherry.model.calls.publish import PublishOptions
from wherry.model.errors import LimitReached, TooLarge, WherryError
from wherry.model.limits import ENVELOPE_BYTES_MAX
from wherry.model.schema import MESSAGE
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.queue_terms import QueueTerms, terms_of
from wherry.queueing.message import properties
from wherry.queueing.message.envelope import from_elsewhere, is_text, opened, prefix, texts
from wherry.queueing.message.handling import handling_of
from wherry.queueing.message.properties import UsedProperties, used_properties
from wherry.queueing.message.table import Int64, Timestamp, find, with_entries, without
from wherry.queueing.names import SUBSCRIPTION, host_and_name

BLOCK = 1_000
"""Dead letters moved in one step."""

SIDE_BY_SIDE = 16
"""Queues whose dead letters are moved at the same time: they share the syncs that each step waits for."""

BLOCK_BYTES = 4 << 20
MARGIN_BYTES = 1 << 20
"""Bytes of a journal entry for what is not body. Copies that do not fit into one entry are published one by one."""

COLUMNS = ["payload", "envelope", "headers", "id", "reason", "died"]
"""What a copy is made of."""

COUNT_MAX = 1 << 62

REASONS = {"expired": "expired", "overflow": "maxlen", "rejected": "rejected"}
"""Reasons of the broker, and those of RabbitMQ; any other reason means too many deliveries."""

PAUSE_S = 5.0
"""The pause before another try, when a target queue does not take them or the move failed."""

_log = logging.getLogger("wherry.queueing")

Targets = Callable[[str, str, str, UsedProperties], Sequence[Queue]]
"""Returns the queues for a message, by virtual host, exchange, routing key and properties."""


class DeadLetterMover:
    """Moves the dead letters of all queues that name an exchange for them."""

    def __init__(self, broker: BrokerPort, targets: Targets) -> None:
        self._broker, self._targets = broker, targets
        self._pending: dict[str, None] = {}
        self._noted = asyncio.Event()

    def note(self, topic: str) -> None:
        """Schedule the move of a topic's new dead letters."""
        self._pending[topic] = None
        self._noted.set()

    async def run(self) -> None:
        """Move dead letters for ever, beginning with those from before this start."""
        self._pending.update(dict.fromkeys(self._broker.topics_with_dead_letters()))
        while True:
            while self._pending:
                topics = list(islice(self._pending, SIDE_BY_SIDE))  # those that have waited longest
                for topic in topics:
                    del self._pending[topic]
                await asyncio.gather(*map(self._move_all, topics))
            self._noted.clear()
            await self._noted.wait()

    async def _move_all(self, topic: str) -> None:
        size = self._broker.topic_size(topic)
        if size is None or size.dead == 0:
            return
        terms = terms_of(self._broker.topic(topic))
        if terms.dead_exchange is None:  # such a queue keeps its dead letters
            return
        try:
            # "" has the dead letters of no subscription: they did not fit, or expired before there was a subscription.
            for subscription in (SUBSCRIPTION, ""):
                while await self._move_some(topic, subscription, terms):
                    pass
        except WherryError as fault:
            if self._broker.has_topic(topic):  # otherwise its dead letters were deleted with it
                _log.info("dead letters could not be moved yet", extra={"topic": topic, "why": str(fault)})
                self._try_later(topic)
        except Exception:
            _log.exception("moving dead letters failed", extra={"topic": topic})
            self._try_later(topic)

    def _try_later(self, topic: str) -> None:
        asyncio.get_running_loop().call_later(PAUSE_S, self.note, topic)

    async def _move_some(self, topic: str, subscription: str, terms: QueueTerms) -> int:
        """Move a block of dead letters, or as many of its first as one step holds; return how many."""
        limit = BLOCK
        while True:
            try:
                return await self._move(topic, DeadFilter(subscription=subscription, limit=limit), terms)
            except (LimitReached, TooLarge):
                if limit == 1:
                    raise
                limit = max(1, limit // 8)

    async def _move(self, topic: str, wanted: DeadFilter, terms: QueueTerms) -> int:
        subscription = wanted.subscription
        found = (await self._broker.dead_page(topic, wanted, bytes_max=BLOCK_BYTES)).batch
        if found.num_rows == 0:
            return 0
        host, queue = host_and_name(topic)
        to: dict[tuple[str, bool], list[dict[str, Any]]] = {}
        alike: dict[tuple[object, ...], list[tuple[str, bool, dict[str, Any]]]] = {}
        for row in found.select(COLUMNS).to_pylist():
            kind = _kind(row)
            copies = None if kind is None else alike.get(kind)
            if copies is None:
                copies = self._copies(host, queue, terms, row)
                if kind is not None:
                    alike[kind] = copies
            for target, persistent, message in copies:
                to.setdefault((target, persistent), []).append({**message, "payload": row["payload"]})
        calls = [(target, _batch(messages), persistent) for (target, persistent), messages in to.items()]
        offsets = tuple(found.column("offset").to_pylist())
        these = DeadFilter(subscription=subscription, partition=0, offsets=offsets)
        most = self._broker.entry_bytes_max - MARGIN_BYTES
        if found.num_rows == 1 and sum(batch.nbytes for _, batch, _ in calls) > most:
            for target, batch, persistent in calls[:-1]:  # a crash before the last one publishes these twice
                await self._broker.publish(target, batch, PublishOptions(persistent=persistent))
            calls = calls[-1:]
        return await self._broker.forward(topic, these, calls, by="dead-letter exchange")

    def _copies(
        self, host: str, queue: str, terms: QueueTerms, row: dict[str, Any]
    ) -> list[tuple[str, bool, dict[str, Any]]]:
        """Return the copies of a dead letter, one for each target queue, without queues that would form a cycle.

        If its envelope cannot be read, or is too large with the story of its death in it, the properties are made from
        its headers.
        """
        origin = opened(row["envelope"])
        copies = None if origin is None else self._copies_with(origin, host, queue, terms, row)
        if copies is None or any(len(message["envelope"]) > ENVELOPE_BYTES_MAX for _, _, message in copies):
            plain = ("", queue, from_elsewhere(row["headers"], row["id"]))
            copies = self._copies_with(plain, host, queue, terms, row)
        return copies

    def _copies_with(
        self, origin: tuple[str, str, bytes], host: str, queue: str, terms: QueueTerms, row: dict[str, Any]
    ) -> list[tuple[str, bool, dict[str, Any]]]:
        """Return the copies of a dead letter that came by `origin`: exchange, routing key and properties."""
        exchange, key, raw = origin
        known = used_properties(raw)
        reason = REASONS.get(row["reason"], "delivery_limit")
        if terms.holds_nothing and reason == "expired":  # it expired at once, since no consumer had room
            reason = "maxlen"
        death = {"queue": queue, "reason": reason, "exchange": exchange, "routing-keys": [key]}
        deaths = _with_death(find(known.headers, "x-death"), death, known.expiration, row["died"])
        headers = with_entries(known.headers, {"x-death": deaths, **_first(known.headers, death)})
        to, to_key = terms.dead_exchange or "", key if terms.dead_key is None else terms.dead_key
        if terms.dead_key is not None:  # the CC keys belong to the route that the message took before
            headers = without(headers, ("CC",))
        known = used_properties(properties.replaced(properties.replaced(raw, "headers", headers), "expiration", None))
        message = {
            "payload": row["payload"],
            "envelope": prefix(to, to_key) + known.raw,
            "key": to_key if to and is_text(to_key) else None,
            "headers": texts(known),
        }
        result = []
        for target in self._targets(host, to, to_key, known):
            if not _is_circle(deaths, target.name):
                handling = handling_of(target, known, None, self._broker.now_ms)
                result.append((target.topic, handling.persistent, {**message, **handling.columns()}))
        return result


def _kind(row: dict[str, Any]) -> tuple[object, ...] | None:
    """Return what the copies of a dead letter depend on beside its payload; None if they depend on more.

    Most dead letters of a queue came the same way and died of the same reason in the same second.
    """
    if row["envelope"] is None:
        return None
    return row["envelope"], row["reason"], int(row["died"].timestamp())


def _first(headers: bytes, death: dict[str, Any]) -> dict[str, Any]:
    """Return headers with the first queue and reason, unless the message has them already."""
    found = {f"x-first-death-{part}": death[part] for part in ("queue", "reason", "exchange")}
    return {name: value for name, value in found.items() if find(headers, name) is None}


def _with_death(known: Any, death: dict[str, Any], expiration: str | None, died: datetime) -> list[dict[str, Any]]:
    """Return `x-death` of a message, the newest first; a second death here for the same reason raises its count."""
    deaths = [each for each in known if isinstance(each, dict)] if isinstance(known, list) else []
    for each in deaths:
        if (each.get("queue"), each.get("reason")) == (death["queue"], death["reason"]):
            count = each.get("count")
            count = count if isinstance(count, int) and 0 <= count < COUNT_MAX else 0
            again = {**each, "count": Int64(count + 1)}
            return [again, *(other for other in deaths if other is not each)]
    new = {"count": Int64(1), "reason": death["reason"], "queue": death["queue"]}
    new |= {"time": Timestamp(int(died.timestamp())), "exchange": death["exchange"]}
    new["routing-keys"] = death["routing-keys"]
    if expiration is not None:
        new["original-expiration"] = expiration
    return [new, *deaths]


def _is_circle(deaths: list[dict[str, Any]], queue: str) -> bool:
    """Return whether a message would come to a queue again without a client having sent or rejected it between."""
    for number, each in enumerate(deaths):
        if each.get("queue") == queue:
            return all(step.get("reason") != "rejected" for step in deaths[: number + 1])
    return False


def _batch(messages: list[dict[str, Any]]) -> pa.RecordBatch:
    kept = [name for name in messages[0] if any(each.get(name) is not None for each in messages)]
    return pa.RecordBatch.from_arrays(
        [pa.array([each.get(name) for each in messages], MESSAGE.field(name).type) for name in kept], names=kept
    )
