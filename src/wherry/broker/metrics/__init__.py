"""Measurements: counters, statistics, the Prometheus text, and traces."""
