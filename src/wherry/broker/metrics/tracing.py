"""Traces: what happens to a message becomes spans of the trace that its own headers name (W3C trace context).

    publish ─► wait ─► deliver ─► settle                     acked
                                  settle ─► retry ─► deliver …    failed, and came again
                                  settle ─► dead letter      its attempts were used up

Only messages with a `traceparent` cost anything; messages of one call and one parent share a span. The `Tracer` that
records spans is passed in: there is no OpenTelemetry here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wherry.core.state.bodies import Cold
from wherry.core.state.state import SubscriptionState
from wherry.model import ops
from wherry.model.calls.publish import Published
from wherry.model.errors import WherryError
from wherry.model.ops import Entry, from_ranges
from wherry.model.schema import edges, integers

if TYPE_CHECKING:
    from wherry.broker.commit.shard import Shard

P = ParamSpec("P")
Int64: TypeAlias = npt.NDArray[np.int64]
Value: TypeAlias = str | int
TracedPlace: TypeAlias = tuple[int, int, int]
"""Subscription, partition, offset."""

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

TRACED_MAX = 1_000
"""Messages of one batch that are traced; further ones are not."""
HELD_MAX = 100_000
"""Traced messages remembered from delivery to settle; beyond it the oldest are forgotten, and end without a span."""


_log = logging.getLogger("wherry.tracing")


class Parent(NamedTuple):
    """The trace context that a message carries, as it stands in its headers."""

    traceparent: str
    tracestate: str = ""


class TraceSpan(NamedTuple):
    """One event of messages with the same parent. Times are Unix microseconds."""

    name: str
    parent: Parent
    start_us: int
    end_us: int
    attributes: Mapping[str, Value]
    error: str = ""


class Tracer(Protocol):
    """Receives ended spans."""

    def span(self, span: TraceSpan) -> None:
        """Record it. Called from the event loop: it must not wait, nor raise."""


class TracedMessage(NamedTuple):
    """A traced message that a consumer holds, or that will come again."""

    parent: Parent
    failed_us: int = 0


def _harmless(method: Callable[Concatenate[Tracing, P], None]) -> Callable[Concatenate[Tracing, P], None]:
    """Let a failure end the tracing, and not the publish or settle that is traced."""

    @wraps(method)
    def guarded(self: Tracing, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            _log.exception("tracing failed, and is off until the next start")
            self.stop()

    return guarded


class Tracing:
    """Reports to a tracer what happens to the messages of a shard, from its construction."""

    def __init__(self, shard: Shard, tracer: Tracer) -> None:
        self._shard = shard
        self._tracer = tracer
        self._held: dict[TracedPlace, TracedMessage] = {}
        shard.tracing = self

    def stop(self) -> None:
        """Stop reporting."""
        self._shard.tracing = None
        self._held.clear()

    @_harmless
    def published(
        self, topic: str, batch: pa.RecordBatch, answer: Published, began_us: int, position: int | None = None
    ) -> None:
        """Record a publish that is durable, or will be at a position of the journal."""
        if "headers" not in batch.schema.names or answer.repeated:
            return
        now_us, spans = self._shard.clock.wall_us(), []
        for parent, rows in parents(batch.column("headers")).items():
            row = rows[0]
            attributes = _about("publish", topic, len(rows), int(answer.partition[row]), int(answer.offset[row]))
            spans.append(TraceSpan(f"publish {topic}", parent, began_us, now_us, attributes))
        if position is None:
            for span in spans:
                self._tracer.span(span)
        elif spans:
            _ = self._shard.keep(self._end(spans, position))

    @_harmless
    def delivered(self, subscription: SubscriptionState, batch: pa.RecordBatch, leased_us: int) -> None:
        """Record messages that are handed over."""
        found = parents(batch.column("headers")) if "headers" in batch.schema.names else None
        if not found:
            return
        now_us, topic = self._shard.clock.wall_us(), subscription.config.topic
        partition, offset, attempt = (batch.column(name).to_numpy() for name in ("partition", "offset", "attempt"))
        published = integers(batch, "published", 0)
        for parent, rows in found.items():
            row = rows[0]
            attributes = _about("deliver", topic, len(rows), int(partition[row]), int(offset[row]))
            attributes |= {"wherry.subscription": subscription.config.name, "wherry.attempt": int(attempt[row])}
            places = [(subscription.number, int(partition[each]), int(offset[each])) for each in rows]
            before = self._held.get(places[0])
            if before is not None and before.failed_us:
                waited = TraceSpan(f"retry {topic}", parent, before.failed_us, leased_us, attributes)
            else:
                waited = TraceSpan(f"wait {topic}", parent, int(published[rows].min()), leased_us, attributes)
            self._tracer.span(waited)
            self._tracer.span(TraceSpan(f"deliver {topic}", parent, leased_us, now_us, attributes))
            self._hold(places, TracedMessage(parent))

    @_harmless
    def written(self, entry: Entry, position: int) -> None:
        """Record what an applied entry ends, as spans, once the entry is durable."""
        spans: list[TraceSpan] = []
        for op in entry.ops:
            match op:
                case ops.Settle(outcome="expired"):  # no consumer did anything
                    for each in self._among(op.subscription, op.partition, from_ranges(op.ranges)):
                        del self._held[op.subscription, op.partition, each]
                case ops.Settle() if self._held:
                    spans += self._settled(op.subscription, op.partition, from_ranges(op.ranges), entry.at_us)
                case ops.Fail() if self._held:
                    spans += self._settled(op.subscription, op.partition, op.offsets, entry.at_us, op.error or "failed")
                case ops.Bury():
                    if op.failed and self._held:
                        why = op.error or op.reason
                        spans += self._settled(op.subscription, op.partition, op.offsets, entry.at_us, why, dead=True)
                    spans += self._died(op.topic, op.partition, op.offsets, entry.at_us, op.reason)
                case ops.Publish() if op.dead:
                    offset = np.arange(op.base, op.base + op.count)
                    spans += self._died(op.topic, op.partition, offset, entry.at_us, op.dead)
        if spans:
            _ = self._shard.keep(self._end(spans, position))

    async def _end(self, spans: list[TraceSpan], position: int) -> None:
        with suppress(WherryError):  # the journal failed: none of it happened
            await self._shard.committer.wait(position)
            self._report(spans, self._shard.clock.wall_us())

    @_harmless
    def _report(self, spans: list[TraceSpan], now_us: int) -> None:
        for span in spans:
            self._tracer.span(span._replace(end_us=now_us))

    def _settled(
        self, number: int, partition: int, offset: Int64, at_us: int, error: str = "", *, dead: bool = False
    ) -> Iterable[TraceSpan]:
        """Return the traced messages among those that left their leases; failed ones are kept until they come again."""
        rows: dict[Parent, list[int]] = {}
        for each in self._among(number, partition, offset):
            held = self._held.pop((number, partition, each))
            rows.setdefault(held.parent, []).append(each)
            if error and not dead:
                self._held[number, partition, each] = TracedMessage(held.parent, at_us)
        for parent, found in rows.items():
            config = self._shard.state.subscriptions[number].config
            attributes = _about("settle", config.topic, len(found), partition, found[0])
            attributes |= {"wherry.subscription": config.name, "wherry.outcome": "failed" if error else "done"}
            yield TraceSpan(f"settle {config.topic}", parent, at_us, at_us, attributes, error)

    def _among(self, number: int, partition: int, offset: Int64) -> list[int]:
        """Return the traced messages among these, found from the shorter side."""
        if len(offset) <= len(self._held):
            return [each for each in offset.tolist() if (number, partition, each) in self._held]
        here = [place[2] for place in self._held if place[:2] == (number, partition)]
        return np.array(here, np.int64)[np.isin(here, offset)].tolist()

    def _died(self, number: int, partition: int, offset: Int64, at_us: int, reason: str) -> Iterable[TraceSpan]:
        """Return the trace contexts of dead letters from their headers; bodies on disk are not read for this."""
        try:
            batch = self._shard.store.take(number, partition, offset, ("headers",))
        except Cold:
            return
        topic = self._shard.state.topics[number].config.name
        for parent, rows in parents(batch.column("headers")).items():
            attributes = _about("dead letter", topic, len(rows), partition, int(offset[rows[0]]))
            yield TraceSpan(f"dead letter {topic}", parent, at_us, at_us, attributes, reason)

    def _hold(self, places: list[TracedPlace], held: TracedMessage) -> None:
        for place in places:
            self._held.pop(place, None)
            self._held[place] = held
        while len(self._held) > HELD_MAX:
            del self._held[next(iter(self._held))]


def _about(operation: str, topic: str, count: int, partition: int, offset: int) -> dict[str, Value]:
    """Return attributes by the conventions for messaging; partition and offset are of the first message."""
    about: dict[str, Value] = {
        "messaging.system": "wherry",
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
        "wherry.offset": offset,
    }
    return about if count == 1 else about | {"messaging.batch.message_count": count}


def parents(headers: pa.Array) -> dict[Parent, Int64]:
    """Return rows by the trace context they carry, the first `TRACED_MAX` that carry one; none for most batches."""
    if headers.null_count == len(headers):
        return {}
    pairs = edges(headers)
    names = headers.keys.slice(pairs[0], pairs[-1] - pairs[0])
    hits = np.flatnonzero(pc.equal(names, TRACEPARENT))[:TRACED_MAX]
    if len(hits) == 0:
        return {}
    rows = np.searchsorted(pairs - pairs[0], hits, "right") - 1
    states = _values(headers, TRACESTATE, pairs) if pc.any(pc.equal(names, TRACESTATE)).as_py() else {}
    texts = headers.items.take(pa.array(hits + pairs[0])).dictionary_encode()
    codes = texts.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    groups = np.split(rows[order], np.flatnonzero(np.diff(codes[order])) + 1)
    return {
        Parent(text, states.get(int(group[0]), "")): group
        for text, group in zip(texts.dictionary.to_pylist(), groups, strict=True)
    }


def _values(headers: pa.Array, name: str, pairs: Int64) -> dict[int, str]:
    """Return the value of a header by row, for rows that have it."""
    hits = np.flatnonzero(pc.equal(headers.keys.slice(pairs[0], pairs[-1] - pairs[0]), name))[:TRACED_MAX]
    rows = np.searchsorted(pairs - pairs[0], hits, "right") - 1
    return dict(zip(rows.tolist(), headers.items.take(pa.array(hits + pairs[0])).to_pylist(), strict=True))
