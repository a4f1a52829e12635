"""OTLP over HTTP, as JSON: to any collector of OpenTelemetry. No library is needed.

| option | default | |
|---|---|---|
| `url` | http://127.0.0.1:4318/v1/metrics | where to |
| `timeout_s` | 10 | for one flush |
| `header.<name>` | none | sent along, such as `header.authorization` |
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from wherry.model.errors import InvalidInput
from wherry.node.sinks.sink import MetricSample, number, option

CUMULATIVE = 2
"""Counts are totals since the start."""


class Otlp:
    """The address of a collector, and the start of the counters."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns()

    def open(self, options: Mapping[str, str]) -> None:
        """See `Sink`."""
        self._url = option(options, "url", "http://127.0.0.1:4318/v1/metrics")
        if not self._url.startswith(("http://", "https://")):
            raise InvalidInput("url", self._url, "http://… or https://…")
        self._timeout_s = number(options, "timeout_s", 10)
        sent = {key.removeprefix("header."): value for key, value in options.items() if key.startswith("header.")}
        self._headers = {**sent, "Content-Type": "application/json"}

    def flush(self, samples: Sequence[MetricSample]) -> None:
        """See `Sink`."""
        body = msgspec.json.encode(document(samples, self._began_ns, time.time_ns()))
        request = urllib.request.Request(self._url, body, self._headers)
        with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
            answer.read(1 << 16)

    def close(self) -> None:
        """See `Sink`. There is nothing to close."""


def document(samples: Sequence[MetricSample], began_ns: int, now_ns: int) -> dict[str, Any]:
    """Return an `ExportMetricsServiceRequest` in the JSON of OTLP: 64-bit numbers are text there."""
    metrics: dict[str, dict[str, Any]] = {}
    for sample in samples:
        point = {
            "attributes": _attributes(sample.labels),
            "startTimeUnixNano": str(began_ns),
            "timeUnixNano": str(now_ns),
            **_value(sample),
        }
        metric = metrics.setdefault(sample.name, _metric(sample))
        metric[_SHAPE[sample.kind]]["dataPoints"].append(point)
    scope = {"scope": {"name": "wherry", "version": version("wherry")}, "metrics": list(metrics.values())}
    resource = {"attributes": _attributes({"service.name": "wherry"})}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}


_SHAPE = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}


def _metric(sample: MetricSample) -> dict[str, Any]:
    shape: dict[str, Any] = {"dataPoints": []}
    if sample.kind != "gauge":
        shape["aggregationTemporality"] = CUMULATIVE
    if sample.kind == "counter":
        shape["isMonotonic"] = True
    return {"name": sample.name, "description": sample.about, _SHAPE[sample.kind]: shape}


def _value(sample: MetricSample) -> dict[str, Any]:
    if sample.kind != "histogram":
        return {"asDouble": sample.value}
    totals = [count for _, count in sample.buckets]
    counts = [total - before for total, before in zip(totals, [0, *totals[:-1]], strict=True)]
    return {
        "count": str(sample.count),
        "sum": sample.value,
        "explicitBounds": [bound for bound, _ in sample.buckets[:-1]],
        "bucketCounts": [str(count) for count in counts],
    }


def _attributes(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in labels.items()]
