"""One look a second at what the broker counts anyway, shared by all who watch. While nobody watches, nothing runs.

A look never touches a message. Where there is very much to look at, looks are rarer: they take at most a fiftieth of
the time of the loop, however many watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from time import monotonic, perf_counter
from typing import NamedTuple

import msgspec

from wherry.broker.metrics.metrics import Metrics, uncollected
from wherry.broker.port.port import BrokerPort
from wherry.model.calls.stats import BrokerFigures, TopicFigures
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.protocol.server import Server

LOOK_S = 1.0
SHARE = 50
"""A look that took this long is followed by a pause of so many times that."""

VIEWERS_MAX = 64
TOPICS_MAX = 1_000
"""Topics with figures of their own; how many more there are is told."""

TOPICS_A_TURN = 50
"""Topics looked at before others of the loop get their turn."""


class Latency(msgspec.Struct):
    """How many took how long: `counts` by upper bound in seconds, one more for those above the last."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]


class Tally(msgspec.Struct):
    """One count that only grows since the start, such as of clients of a wire that were cut off, by why."""

    name: str
    about: str
    labels: dict[str, str]
    value: float


class NodeFigures(msgspec.Struct):
    """The broker as a whole, for those who may consume all topics. `refused` counts requests by the bound they hit.

    `gauges` and `tallies` are what the other parts of a node count, by the names of `/metrics`; tallies of nought are
    left out.
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


class Figures(msgspec.Struct):
    """All counts of one moment. Counters only grow: two moments make a rate."""

    at_ms: int
    broker: NodeFigures | None
    topics: list[TopicFigures]
    left_off: int
    """Topics beyond the first thousand."""


class Sample(NamedTuple):
    """A look, and the bytes that all who may see everything share."""

    figures: Figures
    whole: bytes
    made_s: float


class Sampler:
    """Looks once a second while somebody watches."""

    def __init__(self, broker: BrokerPort, server: Server) -> None:
        self._broker, self._server = broker, server
        self._looking = asyncio.Lock()
        self._latest: Sample | None = None
        self._next: asyncio.Future[Sample] | None = None
        self._task: asyncio.Task[None] | None = None
        self._cost_s = 0.0
        self.viewers = 0
        self.looks = 0
        """How many there were: it does not grow with the number of viewers."""

    async def look(self) -> Sample:
        """The figures of now, at most a second old; those who ask at once share one look."""
        async with self._looking:
            if self._latest is None or monotonic() - self._latest.made_s >= self._pause_s():
                self._latest = await self._sample()
            return self._latest

    async def next(self, wait_ms: int) -> Sample:
        """The next look, or at once the last one."""
        if not wait_ms or self._next is None:
            return await self.look()
        return await asyncio.shield(self._next)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While somebody watches; `busy` where too many do."""
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
            told, self._next = self._next, asyncio.get_running_loop().create_future()
            if told is not None and not told.done():
                told.set_result(self._latest)

    def _pause_s(self) -> float:
        return max(LOOK_S, self._cost_s * SHARE)

    async def _sample(self) -> Sample:
        with uncollected():
            return await self._seen()

    async def _seen(self) -> Sample:
        broker = self._broker
        self.looks += 1
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
        figures = Figures(now_ms, self._node(counts), topics, max(0, counts.topics - TOPICS_MAX))
        whole = msgspec.json.encode(figures)
        self._cost_s = spent + perf_counter() - began
        return Sample(figures, whole, monotonic())

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


def cut(figures: Figures, names: Iterable[str]) -> bytes:
    """What somebody sees who may consume these topics only."""
    seen = frozenset(names)
    return msgspec.json.encode(Figures(figures.at_ms, None, [each for each in figures.topics if each.name in seen], 0))
