"""Sinks, to which figures are flushed: statsd, JSON lines, OTLP, and sinks of other packages (docs/metrics.md)."""
