"""Sinks: what they are given, what they write, and what happens when one fails."""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence

import pytest
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tests.behaviour.world import VirtualClock, in_loop
from wherry.broker.metrics.metrics import Metrics
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.model.errors import InvalidInput
from wherry.node.sinks import otlp
from wherry.node.sinks.flusher import Flusher, Outlet
from wherry.node.sinks.sink import MetricSample, Named, find, number, samples_of
from wherry.node.sinks.statsd import Statsd

INFINITE = float("inf")


class Listed:
    """A sink in memory that fails when the test asks for it."""

    def __init__(self) -> None:
        self.opened, self.closed, self.flushed = 0, 0, 0
        self.failing = False
        self.thrice = threading.Event()

    def open(self, options: Mapping[str, str]) -> None:
        self.opened += 1

    def flush(self, samples: Sequence[MetricSample]) -> None:
        if self.failing:
            raise OSError("connection refused")
        self.flushed += 1
        if self.flushed == 3:
            self.thrice.set()

    def close(self) -> None:
        self.closed += 1


def test_series_become_samples():
    counter = CounterMetricFamily("c", "about c", labels=["topic"])
    counter.add_metric(["t"], 3.0)
    histogram = HistogramMetricFamily("h", "about h", labels=["route"])
    histogram.add_metric(["r"], [("1", 2.0), ("+Inf", 5.0)], 12.5)
    histogram.add_metric(["s"], [("1", 0.0), ("+Inf", 0.0)], 0.0)
    assert samples_of([counter, GaugeMetricFamily("g", "about g", 7.0), histogram]) == [
        MetricSample("c_total", "counter", {"topic": "t"}, 3.0, about="about c"),
        MetricSample("g", "gauge", {}, 7.0, about="about g"),
        MetricSample("h", "histogram", {"route": "r"}, 12.5, 5, ((1.0, 2), (INFINITE, 5)), "about h"),
        MetricSample("h", "histogram", {"route": "s"}, 0.0, 0, ((1.0, 0), (INFINITE, 0)), "about h"),
    ]


def test_statsd_sends_differences_and_tags():
    sink = Statsd()
    sink._prefix = "q."

    def lines(*samples: MetricSample) -> list[bytes]:
        return list(sink._lines(samples))

    first = MetricSample("c", "counter", {"topic": "a,b|c"}, 3.0)
    assert lines(first, MetricSample("g", "gauge", {}, 1.5)) == [b"q.c:3|c|#topic:a_b_c", b"q.g:1.5|g"]
    assert lines(first) == []
    assert lines(MetricSample("c", "counter", {"topic": "a,b|c"}, 5.0)) == [b"q.c:2|c|#topic:a_b_c"]
    assert lines(MetricSample("c", "counter", {"topic": "a,b|c"}, 1.0)) == [b"q.c:1|c|#topic:a_b_c"]
    assert lines(MetricSample("h", "histogram", {}, 0.5, 2)) == [b"q.h_count:2|c", b"q.h_sum:0.5|c"]


def test_otlp_writes_what_its_schema_defines():
    samples = [
        MetricSample("c_total", "counter", {"topic": "t"}, 3.0, about="about c"),
        MetricSample("c_total", "counter", {"topic": "u"}, 4.0, about="about c"),
        MetricSample("g", "gauge", {}, 7.0),
        MetricSample("h", "histogram", {}, 12.5, 5, ((1.0, 2), (2.0, 4), (INFINITE, 5))),
    ]
    request = ParseDict(otlp.document(samples, 1, 2), ExportMetricsServiceRequest())
    counter, gauge, histogram = request.resource_metrics[0].scope_metrics[0].metrics
    assert [(point.attributes[0].value.string_value, point.as_double) for point in counter.sum.data_points] == [
        ("t", 3.0),
        ("u", 4.0),
    ]
    assert counter.sum.is_monotonic
    assert gauge.gauge.data_points[0].as_double == 7.0
    point = histogram.histogram.data_points[0]
    assert (point.count, list(point.bucket_counts), list(point.explicit_bounds)) == (5, [2, 2, 1], [1.0, 2.0])


def test_an_unknown_sink_is_refused_by_name():
    with pytest.raises(InvalidInput, match="jsonl, otlp, statsd"):
        find("carrier-pigeon?size=2")
    with pytest.raises(InvalidInput, match="option=value"):
        find("statsd?nonsense")
    found = find("statsd?host=10.0.0.7&port=9")
    assert (found.name, found.options) == ("statsd", {"host": "10.0.0.7", "port": "9"})
    with pytest.raises(InvalidInput, match="at least 1"):
        number({"port": "none"}, "port", 1)


def test_a_sink_that_fails_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture):
    sink = Listed()
    outlet = Outlet(Named("listed", {}, sink))

    def flush() -> None:
        outlet._queue.put([])

    with caplog.at_level(logging.INFO, "wherry.metrics"):
        sink.failing = True
        flush()
        flush()
        flush()
        while sink.closed < 3:
            outlet._thread.join(0.001)
        sink.failing = False
        flush()
        outlet.join()
    assert (sink.opened, sink.flushed, sink.closed) == (4, 1, 4)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.rows("G25")
@in_loop
async def test_sinks_are_flushed_again_and_again_and_once_more_at_the_end():
    broker = await start(MemoryEngine(), None, VirtualClock())
    sink = Listed()
    flusher = Flusher(Metrics(broker), [Named("listed", {}, sink)], 0.001)
    running = asyncio.create_task(flusher.run())
    assert await asyncio.to_thread(sink.thrice.wait, 10)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    before = sink.flushed
    await flusher.close()
    assert sink.flushed > before
    assert sink.closed == 1
    await broker.close()
