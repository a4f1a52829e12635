"""Samples of the broker's counts, one a second, shared by all viewers. While there is no viewer, nothing runs.

A sample reads no message. Where there are very many topics, samples are rarer: they take at most a fiftieth of the time
of the loop, however many viewers there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import NamedTuple

import msgspec

from wherry.broker.metrics.metrics import Metrics, uncollected
from wherry.broker.port.port import BrokerPort
from wherry.model.calls.stats import BrokerFigures, TopicFigures
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.protocol.server import Server

SAMPLE_S = 1.0
SHARE = 50
"""The pause after a sample, in multiples of the time that the sample took."""

VIEWERS_MAX = 64
TOPICS_MAX = 1_000
"""Most topics with figures of their own; `left_off` counts the others."""

TOPICS_A_TURN = 50
"""Topics sampled before other tasks of the loop get their turn."""


class Latency(msgspec.Struct):
    """How many took how long: `counts` by upper bound in seconds, and one more for those above the last bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]


class Tally(msgspec.Struct):
    """One count that only grows since the start, such as clients of a wire that were cut off, by reason."""

    name: str
    about: str
    labels: dict[str, str]
    value: float


class NodeFigures(msgspec.Struct):
    """The broker as a whole, for callers that may consume all topics. `refused` counts requests by the bound they hit.

    `gauges` and `tallies` are the counts of the other parts of a node, by the names of `/metrics`; tallies that are
    zero are left out.
    """

    leases: int
    journal_bytes: int
    pending_bytes: int
    entries: int
    cache_bytes: int
    cache_bytes_max: int
    trouble: bool
    failed: bool
    connections: int
    requests: int
    waits: int
    refused: dict[str, int]
    latency: dict[str, Latency]
    gauges: dict[str, float]
    tallies: list[Tally]


class FiguresView(msgspec.Struct):
    """All counts of one moment. Counters only grow: two moments make a rate."""

    at_ms: int
    broker: NodeFigures | None
    topics: list[TopicFigures]
    left_off: int
    """Topics beyond the first thousand."""


class FiguresSample(NamedTuple):
    """One sample, and its JSON, which all viewers with a right to every topic share."""

    figures: FiguresView
    whole: bytes
    made_s: float


class Sampler:
    """Takes a sample once a second while there are viewers."""

    def __init__(self, broker: BrokerPort, server: Server) -> None:
        self._broker, self._server = broker, server
        self._looking = asyncio.Lock()
        self._latest: FiguresSample | None = None
        self._next: asyncio.Future[FiguresSample] | None = None
        self._task: asyncio.Task[None] | None = None
        self._cost_s = 0.0
        self.viewers = 0
        self.taken = 0
        """How many samples were taken: the number does not grow with the number of viewers."""

    async def latest(self) -> FiguresSample:
        """Return figures that are at most a second old; concurrent callers share one sample."""
        async with self._looking:
            if self._latest is None or self._server.clock() - self._latest.made_s >= self._pause_s():
                self._latest = await self._sample()
            return self._latest

    async def next(self, wait_ms: int) -> FiguresSample:
        """Wait for the next sample and return it; return the last one at once if `wait_ms` is 0."""
        if not wait_ms or self._next is None:
            return await self.latest()
        return await asyncio.shield(self._next)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Count a viewer, and sample while there is one; `busy` where there are too many."""
        if self.viewers >= VIEWERS_MAX:
            raise HttpError("busy", f"{VIEWERS_MAX} watch the figures already, which is the bound")
        self.viewers += 1
        if self._task is None:
            self._next = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(), name="wherry figures")
        try:
            yield
        finally:
            self.viewers -= 1
            if not self.viewers:
                self._task.cancel()
                self._task = self._next = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s())
            async with self._looking:
                self._latest = await self._sample()
            ready, self._next = self._next, asyncio.get_running_loop().create_future()
            if ready is not None and not ready.done():
                ready.set_result(self._latest)

    def _pause_s(self) -> float:
        return max(SAMPLE_S, self._cost_s * SHARE)

    async def _sample(self) -> FiguresSample:
        with uncollected():
            return await self._seen()

    async def _seen(self) -> FiguresSample:
        broker = self._broker
        self.taken += 1
        began, spent, now_ms = perf_counter(), 0.0, broker.now_ms()
        topics: list[TopicFigures] = []
        names = broker.first_topics(TOPICS_MAX)
        for place in range(0, len(names), TOPICS_A_TURN):
            some = names[place : place + TOPICS_A_TURN]
            topics += broker.topic_figures(some)
            if len(some) == TOPICS_A_TURN:
                spent += perf_counter() - began
                await asyncio.sleep(0)
                began = perf_counter()
        topics.sort(key=lambda each: each.name)
        counts = broker.figures()
        figures = FiguresView(now_ms, self._node(counts), topics, max(0, counts.topics - TOPICS_MAX))
        whole = msgspec.json.encode(figures)
        self._cost_s = spent + perf_counter() - began
        return FiguresSample(figures, whole, self._server.clock())

    def _node(self, counts: BrokerFigures) -> NodeFigures:
        metrics, server = self._broker.metrics, self._server
        return NodeFigures(
            leases=counts.leases,
            journal_bytes=counts.journal_bytes,
            pending_bytes=counts.pending_bytes,
            entries=counts.entries,
            cache_bytes=counts.cache_bytes,
            cache_bytes_max=counts.cache_bytes_max,
            trouble=counts.trouble,
            failed=counts.failed,
            connections=server.connections,
            requests=server.requests,
            waits=server.waits,
            refused=dict(server.refused),
            latency={} if metrics is None else _latency(metrics),
            gauges={} if metrics is None else {each.name: each.read() for each in metrics.gauges},
            tallies=[] if metrics is None else _tallies(metrics),
        )


def _latency(metrics: Metrics) -> dict[str, Latency]:
    named = {"publish": metrics.publish, "delivery": metrics.delivery, "settle": metrics.settle, "sync": metrics.sync}
    return {name: Latency(each.bounds, tuple(each.counts)) for name, each in named.items()}


def _tallies(metrics: Metrics) -> list[Tally]:
    return [
        Tally(each.name, each.about, dict(zip(each.labels, labels, strict=True)), value)
        for each in metrics.counts
        for labels, value in each.read().items()
        if value
    ]


def cut(figures: FiguresView, names: Iterable[str]) -> bytes:
    """Return the figures as JSON for a caller that may consume these topics only."""
    seen = frozenset(names)
    return msgspec.json.encode(
        FiguresView(figures.at_ms, None, [each for each in figures.topics if each.name in seen], 0)
    )
