"""What a node measures: the figures of the broker, the lag of its event loop, sinks, and traces if configured."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, get_args

from wherry.broker.broker import Broker
from wherry.broker.metrics.metrics import Metrics
from wherry.model.errors import InvalidInput
from wherry.node.config import Config
from wherry.node.sinks.flusher import Flusher
from wherry.node.sinks.sink import find
from wherry.node.webhooks.calls import Calls
from wherry.node.webhooks.sender import Kind
from wherry.wire.http.protocol.server import BOUNDS, Observer, Server

if TYPE_CHECKING:
    from wherry.node.mesh.figures import MeshFailures
    from wherry.node.queries.reports import QueryReport, QueryReports
    from wherry.wire.native.sessions import Sessions as NativeSessions
    from wherry.wire.stomp.sessions import Sessions

LEAVE_S = 5.0
BEAT_S = 0.5
"""Seconds between two measurements of the lag of the event loop."""
USUAL = ("2xx", "4xx", "5xx", "unreached")


@asynccontextmanager
async def metered(broker: Broker, config: Config) -> AsyncIterator[Metrics]:
    """Measure and trace a broker until the context ends; then flush a last time."""
    metrics = Metrics(broker)
    sinks = [find(text) for text in config.metrics.sinks]
    tasks = [asyncio.create_task(_beat(metrics), name="wherry beat")]
    async with AsyncExitStack() as stack:
        if config.metrics.traces:
            _trace(broker, config.metrics.traces_url, stack)
        if sinks:
            flusher = Flusher(metrics, sinks, config.metrics.flush_s)
            stack.push_async_callback(flusher.close)
            tasks.append(asyncio.create_task(flusher.run(), name="wherry sinks"))
        try:
            yield metrics
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def observer_of(metrics: Metrics) -> Observer:
    """Return a function that records each request in the figures."""
    return lambda request, status, seconds: metrics.requested(request.endpoint, status, seconds)


def watch_server(metrics: Metrics, server: Server) -> None:
    """Add the figures of an HTTP server."""
    metrics.gauge("wherry_http_connections", "Connections open", lambda: server.connections)
    metrics.gauge("wherry_http_requests", "Requests under way", lambda: server.requests)
    metrics.gauge("wherry_http_waits", "Requests that wait for messages or for an outcome", lambda: server.waits)
    about = "Connections and requests refused since the start, by the bound that they hit"
    metrics.count("wherry_http_refused", about, ("bound",), lambda: {(each,): server.refused[each] for each in BOUNDS})


def watch_calls(metrics: Metrics, calls: Calls) -> None:
    """Add the figures of webhooks and callbacks."""
    pushers, callbacks, sender = calls
    metrics.gauge("wherry_webhook_subscriptions", "Subscriptions that are pushed to", lambda: len(pushers))
    metrics.gauge("wherry_callback_urls", "URLs with outcomes to report", lambda: len(callbacks))
    metrics.gauge("wherry_callbacks_given_up", "Outcomes that could not be reported", lambda: callbacks.given_up)
    about = "Calls made since the start, by what they sent (messages or outcomes) and by how they ended"
    metrics.count("wherry_webhook_calls", about, ("kind", "outcome"), lambda: _shown(sender.outcomes))
    about = "Subscriptions removed since the start, because their webhook was down or answered that it is gone"
    metrics.count(
        "wherry_webhook_removals", about, ("why",), lambda: {(why,): pushers.removals[why] for why in ("down", "gone")}
    )


def watch_stomp(metrics: Metrics, sessions: Sessions) -> None:
    """Add the figures of STOMP, over all transports."""
    metrics.gauge("wherry_stomp_sessions", "Sessions open", lambda: len(sessions.connected))
    metrics.gauge("wherry_stomp_held_bytes", "Bytes of frames that are not whole", lambda: sessions.partial_bytes)
    from wherry.wire.stomp.codec import COMMANDS  # noqa: PLC0415  only where it is served
    from wherry.wire.stomp.sessions import CUT_OFF_REASONS  # noqa: PLC0415

    about = "Frames of clients since the start, by command"
    metrics.count(
        "wherry_stomp_frames", about, ("command",), lambda: {(each,): sessions.frames[each] for each in COMMANDS}
    )
    about = "Clients cut off since the start, by reason"
    metrics.count(
        "wherry_stomp_cut_off",
        about,
        ("why",),
        lambda: {(why,): sessions.cut_off_counts[why] for why in CUT_OFF_REASONS},
    )


def watch_mesh(metrics: Metrics, failures: MeshFailures) -> None:
    """Add the figures of the mesh of `flow` topics."""
    from wherry.node.mesh.figures import PARTS  # noqa: PLC0415  only where it has peers

    about = "Parts of the mesh that failed since the start and began again"
    metrics.count("wherry_mesh_failures", about, ("part",), lambda: {(x,): failures.counts[x] for x in PARTS})


def watch_native(metrics: Metrics, sessions: NativeSessions) -> None:
    """Add the figures of the native wire."""
    from wherry.wire.native.codec.frames import RULES, Kind  # noqa: PLC0415  beside the sessions that use it
    from wherry.wire.native.sessions import CUT_OFF_REASONS  # noqa: PLC0415

    metrics.gauge("wherry_native_sessions", "Sessions open", lambda: len(sessions.open))
    metrics.gauge("wherry_native_held_bytes", "Bytes of frames that are not whole", lambda: sessions.partial_bytes)
    unstored = "Bytes that clients published and that are not on disk yet"
    metrics.gauge("wherry_native_unstored_bytes", unstored, lambda: sessions.intake.unstored_bytes)
    kinds = [Kind(kind) for kind, (sides, _, _) in RULES.items() if "client" in sides]
    about = "Frames of clients since the start, by kind"
    metrics.count(
        "wherry_native_frames", about, ("kind",), lambda: {(each.name,): sessions.frames[each] for each in kinds}
    )
    about = "Clients cut off since the start, by reason"
    metrics.count(
        "wherry_native_cut_off",
        about,
        ("why",),
        lambda: {(why,): sessions.cut_off_counts[why] for why in CUT_OFF_REASONS},
    )


def watch_queries(metrics: Metrics, reports: QueryReports) -> None:
    """Add the figures of the queries; those of queries with one name are added up."""

    def summed(value: Callable[[QueryReport], float | None]) -> dict[tuple[str, ...], float]:
        series: dict[tuple[str, ...], float] = {}
        for report in reports.all().values():
            found = value(report)
            if found is not None:
                series[(report.name,)] = series.get((report.name,), 0.0) + found
        return series

    def age_s(report: QueryReport) -> float | None:
        found = reports.lag_ms(report) if reports.lag(report) else 0
        return None if found is None else found / 1_000

    about = "of streaming queries of Spark since their driver began to report"
    for name, what, field in (
        ("rows", "Rows read", "rows"),
        ("rows_written", "Rows written", "rows_written"),
        ("batches", "Micro-batches", "batches"),
    ):
        metrics.count(
            f"wherry_query_{name}",
            f"{what} {about}",
            ("query",),
            lambda field=field: summed(lambda each: getattr(each, field)),  # type: ignore[misc]
        )
    metrics.count(
        "wherry_query_batch_seconds",
        f"Time of all micro-batches {about}",
        ("query",),
        lambda: summed(lambda each: each.batches_ms / 1_000),
    )
    shown = "Messages that a streaming query of Spark has not read"
    metrics.gauges_of("wherry_query_lag_messages", shown, ("query",), lambda: summed(reports.lag))
    shown = "Age of the oldest message that the subscription of a streaming query has not settled"
    metrics.gauges_of("wherry_query_lag_seconds", shown, ("query",), lambda: summed(age_s))


def _shown(outcomes: Counter[tuple[Kind, str]]) -> dict[tuple[str, ...], float]:
    """Add zeros for the usual outcomes, so that monitoring sees the first failure as an increase."""
    shown: dict[tuple[str, ...], float] = {(kind, usual): 0.0 for kind in get_args(Kind) for usual in USUAL}
    return {**shown, **{each: float(count) for each, count in outcomes.items()}}


def _trace(broker: Broker, url: str | None, stack: AsyncExitStack) -> None:
    try:
        from wherry.node import otel  # noqa: PLC0415  an extra, and half a second to import
    except ImportError as fault:
        raise InvalidInput("metrics.traces", True, f"false, or pip install 'wherry[otel]' ({fault})") from None
    provider = otel.exporting(url)
    stop = broker.trace(otel.OtelTracer(provider))
    stack.push_async_callback(_leave, provider.shutdown)
    stack.callback(stop)


async def _leave(last: Callable[[], None]) -> None:
    """Send the last spans, for at most `LEAVE_S`: a collector that does not answer must not delay the stop."""
    thread = Thread(target=last, name="wherry traces", daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, LEAVE_S)


async def _beat(metrics: Metrics) -> None:
    while True:
        due = perf_counter() + BEAT_S
        await asyncio.sleep(BEAT_S)
        metrics.loop_lag.observe(max(0.0, perf_counter() - due))
