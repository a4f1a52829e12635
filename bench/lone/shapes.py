"""The shapes of the parts, which all brokers share: names, sizes and paces."""

from __future__ import annotations

RATE = 1_000
"""Messages a second of a flow that is paced."""

QUEUES = 1_000
QUEUES_A_CONNECTION = 250
"""A connection of the native wire has at most 256 streams."""

DELAY_COUNT, DELAY_S = 20_000, 5
DELAY_LEAD_S = 1.0
"""Until the first message of a timeline is due: all of them are published by then."""

DELAY_QUEUES, DELAY_FIRST_MS, DELAY_STEP_MS = 40, 500, 50
"""Queues whose messages expire after 500, 550, … 2,450 ms, and then go to `LATE`."""
LATE = "late"

PRIORITIES = 65_536
PULL = 1_000

SUBSCRIBERS = 10


def queue(number: int) -> str:
    """Return the name of one of many queues."""
    return f"queue-{number}"


def subscriber(number: int) -> str:
    """Return the name of one of several subscriptions."""
    return f"subscriber-{number}"


def delay_queue(number: int) -> tuple[str, int]:
    """Return the name of one of the queues whose messages expire, and after how many milliseconds."""
    ttl_ms = DELAY_FIRST_MS + number % DELAY_QUEUES * DELAY_STEP_MS
    return f"delay-{ttl_ms}", ttl_ms
