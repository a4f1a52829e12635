"""The handling of a message by a queue: whether it is durable, its priority, expiry and due time."""

from __future__ import annotations

from collections.abc import Callable

from wherry.model.calls.rows import Handling
from wherry.model.limits import TIME_MS_MAX
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.queue_terms import PRIORITY_STEP
from wherry.queueing.message.properties import PERSISTENT, UsedProperties
from wherry.queueing.message.table import find
from wherry.queueing.refusals import Reason, refused

DELAY = "x-delay"


def ttl_ms(known: UsedProperties) -> int | None:
    """Return how long a message may wait, by its own `expiration`."""
    text = known.expiration
    if text is None:
        return None
    if not text.isdecimal() or not text.isascii() or len(text) > 15:
        raise refused(Reason.PRECONDITION_FAILED, f"invalid expiration '{text}': allowed are milliseconds, in digits")
    return int(text)


def delay_ms(known: UsedProperties) -> int | None:
    """Return how long a message is to be delayed; None for no delay."""
    value = find(known.headers, DELAY) if known.headers else None
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 16 else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        return None
    return min(int(value), TIME_MS_MAX)


_PLAIN = (Handling(False, None, None, None), Handling(True, None, None, None))


def handling_of(queue: Queue, known: UsedProperties, due_ms: int | None, now_ms: Callable[[], int]) -> Handling:
    """Return how a queue is to handle a message."""
    persistent = queue.terms.durable and known.delivery_mode == PERSISTENT
    if queue.is_plain and due_ms is None and known.expiration is None:  # most messages
        return _PLAIN[persistent]
    most = queue.max_priority
    priority = None if most is None else PRIORITY_STEP * (255 - min(known.priority or 0, most))
    times = [each for each in (queue.ttl_ms, ttl_ms(known)) if each is not None]
    expires = None
    if times:
        shortest = min(times)
        # A message that may not wait at all is for a consumer that has room right now.
        if shortest > 0 or not queue.has_room():
            expires = min((now_ms() if due_ms is None else due_ms) + shortest, TIME_MS_MAX)
    return Handling(persistent, priority, expires, due_ms)
