"""Where figures are sent to, again and again: statsd, JSON lines, OTLP, and what others write (docs/metrics.md)."""
