"""What a sink is, what it gets, and how it is found: an entry point in the group `wherry.metric_sinks`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qsl

from prometheus_client.core import Metric

from wherry.model.errors import InvalidInput
from wherry.node.config import masked

GROUP = "wherry.metric_sinks"
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One figure. Of a histogram `value` is the sum, `count` how many, `buckets` how many up to each bound."""

    name: str
    kind: Kind
    labels: Mapping[str, str]
    value: float
    count: int = 0
    buckets: tuple[tuple[float, int], ...] = ()
    about: str = ""


class Sink(Protocol):
    """Sends samples. All calls come from one thread, so that a sink may wait, and it may raise."""

    def open(self, options: Mapping[str, str]) -> None:
        """Open files or connections; called again after a failure."""

    def flush(self, samples: Sequence[MetricSample]) -> None:
        """Send the current samples. Counters are totals since the start."""

    def close(self) -> None:
        """Close files and connections."""


class Named(NamedTuple):
    """A sink as the configuration names it: `statsd?host=10.0.0.7&port=8125`."""

    name: str
    options: dict[str, str]
    sink: Sink


def find(text: str) -> Named:
    """Return the sink that a text of the configuration names, not yet open; `InvalidInput` lists the known sinks."""
    name, _, query = text.partition("?")
    known = {each.name: each for each in entry_points(group=GROUP)}
    if name not in known:
        raise InvalidInput("metrics.sinks", masked(text), f"one of {', '.join(sorted(known))}, as in name?option=value")
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
        kind: Any = known[name].load()
    except (ValueError, ImportError) as fault:
        raise InvalidInput(
            "metrics.sinks", masked(text), f"name?option=value, of a sink that can be loaded ({fault})"
        ) from None
    return Named(name, options, kind())


def option(options: Mapping[str, str], name: str, default: str) -> str:
    """Return an option of a sink."""
    return options.get(name, default)


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a whole number of at least 1."""
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidInput(name, text, "a whole number of at least 1")
    return int(text)


def samples_of(families: Iterable[Metric]) -> list[MetricSample]:
    """Return the figures of Prometheus, one sample for each series; a histogram is one sample."""
    result: list[MetricSample] = []
    for family in families:
        if family.type == "histogram":
            result += _histograms(family)
        elif family.type in ("counter", "gauge"):
            kind: Kind = "counter" if family.type == "counter" else "gauge"
            result += [
                MetricSample(s.name, kind, s.labels, s.value, about=family.documentation) for s in family.samples
            ]
    return result


def _histograms(family: Metric) -> list[MetricSample]:
    """Return one sample for each series; its buckets, count and sum come one after another, the sum last."""
    result: list[MetricSample] = []
    buckets: list[tuple[float, int]] = []
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            buckets.append((float(sample.labels["le"]), int(sample.value)))
        elif sample.name.endswith("_sum"):
            about, count = family.documentation, buckets[-1][1]
            result.append(
                MetricSample(family.name, "histogram", sample.labels, sample.value, count, tuple(buckets), about)
            )
            buckets = []
    return result
