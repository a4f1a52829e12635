"""Makes the copies of dead letters: with their story in `x-death`, one for each queue that gets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.dead import DeadRow
from wherry.model.limits import ENVELOPE_BYTES_MAX
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.queue_terms import QueueTerms
from wherry.queueing.message import properties
from wherry.queueing.message.envelope import from_elsewhere, is_text, opened, prefix, texts
from wherry.queueing.message.handling import handling_of
from wherry.queueing.message.properties import UsedProperties, used_properties
from wherry.queueing.message.table import Int64, Timestamp, find, with_entries, without
from wherry.queueing.names import host_and_name

REASONS = {"expired": "expired", "overflow": "maxlen", "rejected": "rejected"}
"""Reasons of the broker, and those of RabbitMQ; any other reason means too many deliveries."""

COUNT_MAX = 1 << 62

STORIES_MAX = 1_024
"""Stories that are kept for other dead letters of the same second."""

STORIES_BYTES_MAX = 4 << 20
"""Bytes that these stories may take together."""

STORY_FACTOR = 4
"""A story takes about so many times the bytes of its envelope, with the one that the message had and its headers."""

Targets: TypeAlias = Callable[[str, str, str, UsedProperties], Sequence[Queue]]
"""Returns the queues for a message, by virtual host, exchange, routing key and properties."""

Copy: TypeAlias = tuple[str, bool, dict[str, Any]]
"""The topic of a target queue, whether the copy is persistent, and its columns without the payload."""


class _Story(NamedTuple):
    """What all copies of a dead letter have in common."""

    exchange: str
    key: str
    properties: UsedProperties
    deaths: list[dict[str, Any]]
    columns: dict[str, Any]


class Copier:
    """Makes copies of dead letters. Those that came the same way and died of the same reason in a second share a story.

    Queues are looked up for each of them: bindings may change within the second.
    """

    def __init__(self, broker: BrokerPort, targets: Targets) -> None:
        self._broker, self._targets = broker, targets
        self._stories: dict[tuple[object, ...], _Story] = {}
        self._stories_bytes = 0

    def copies(self, topic: str, terms: QueueTerms, rows: Sequence[DeadRow]) -> list[list[Copy]]:
        """Return the copies of each dead letter of a queue, without queues that would form a cycle."""
        host, queue = host_and_name(topic)
        return [self._addressed(host, self._story(topic, queue, terms, row)) for row in rows]

    def _addressed(self, host: str, story: _Story) -> list[Copy]:
        found = []
        for target in self._targets(host, story.exchange, story.key, story.properties):
            if not _is_circle(story.deaths, target.name):
                handling = handling_of(target, story.properties, None, self._broker.now_ms)
                found.append((target.topic, handling.persistent, {**story.columns, **handling.columns()}))
        return found

    def _story(self, topic: str, queue: str, terms: QueueTerms, row: DeadRow) -> _Story:
        """Return the story of a dead letter.

        If its envelope cannot be read, or is too large with the story of its death in it, the properties are made from
        its headers.
        """
        reason = REASONS.get(row.reason, "delivery_limit")
        if terms.holds_nothing and reason == "expired":  # it expired at once, since no consumer had room
            reason = "maxlen"
        alike = (topic, terms.dead_exchange, terms.dead_key, reason, row.died_ms // 1_000, row.envelope)
        story = self._stories.get(alike) if row.envelope is not None else None
        if story is not None:
            return story
        origin = opened(row.envelope)
        story = None if origin is None else _told(origin, queue, terms, reason, row)
        if story is None or len(story.columns["envelope"]) > ENVELOPE_BYTES_MAX:
            return _told(("", queue, from_elsewhere(row.headers, row.id)), queue, terms, reason, row)
        self._keep(alike, story)
        return story

    def _keep(self, alike: tuple[object, ...], story: _Story) -> None:
        """Keep a story; forget all others first, if they are too many or too large with it."""
        size = STORY_FACTOR * len(story.columns["envelope"])
        if len(self._stories) >= STORIES_MAX or self._stories_bytes + size > STORIES_BYTES_MAX:
            self._stories.clear()
            self._stories_bytes = 0
        self._stories[alike] = story
        self._stories_bytes += size


def _told(origin: tuple[str, str, bytes], queue: str, terms: QueueTerms, reason: str, row: DeadRow) -> _Story:
    """Return the story of a dead letter that came by `origin`: exchange, routing key and properties."""
    exchange, key, raw = origin
    known = used_properties(raw)
    death = {"queue": queue, "reason": reason, "exchange": exchange, "routing-keys": [key]}
    deaths = _with_death(find(known.headers, "x-death"), death, known.expiration, row.died_ms // 1_000)
    headers = with_entries(known.headers, {"x-death": deaths, **_first(known.headers, death)})
    to, to_key = terms.dead_exchange or "", key if terms.dead_key is None else terms.dead_key
    if terms.dead_key is not None:  # the CC keys belong to the route that the message took before
        headers = without(headers, ("CC",))
    known = used_properties(properties.replaced(properties.replaced(raw, "headers", headers), "expiration", None))
    columns = {
        "envelope": prefix(to, to_key) + known.raw,
        "key": to_key if to and is_text(to_key) else None,
        "headers": texts(known),
    }
    return _Story(to, to_key, known, deaths, columns)


def _first(headers: bytes, death: dict[str, Any]) -> dict[str, Any]:
    """Return headers with the first queue and reason, unless the message has them already."""
    found = {f"x-first-death-{part}": death[part] for part in ("queue", "reason", "exchange")}
    return {name: value for name, value in found.items() if find(headers, name) is None}


def _with_death(known: Any, death: dict[str, Any], expiration: str | None, died_s: int) -> list[dict[str, Any]]:
    """Return `x-death` of a message, the newest first; a second death here for the same reason raises its count."""
    deaths = [each for each in known if isinstance(each, dict)] if isinstance(known, list) else []
    for each in deaths:
        if (each.get("queue"), each.get("reason")) == (death["queue"], death["reason"]):
            count = each.get("count")
            count = count if isinstance(count, int) and 0 <= count < COUNT_MAX else 0
            again = {**each, "count": Int64(count + 1)}
            return [again, *(other for other in deaths if other is not each)]
    new = {"count": Int64(1), "reason": death["reason"], "queue": death["queue"]}
    new |= {"time": Timestamp(died_s), "exchange": death["exchange"]}
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
