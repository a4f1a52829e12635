"""Where figures are sent, again and again: statsd, JSON lines, OTLP, and sinks of other packages (docs/metrics.md)."""
