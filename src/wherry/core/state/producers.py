"""Idempotent producers: a repeat of a call is answered with the offsets of the first.

For each producer of a topic the last calls are remembered. A call is known by its first sequence number, its count
and, where the producer gave one, its fingerprint; sequence numbers only grow, gaps are allowed.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from wherry.model.errors import OutOfSequence
from wherry.model.limits import PRODUCER_CALLS_MAX

PRODUCERS_MAX = 100_000
"""Producers remembered for each topic; the one that was silent longest is forgotten first.

One with a single call, such as an idempotency key, takes about 360 bytes.
"""


class ProducerCall(NamedTuple):
    """One publish of a producer: its sequence numbers, and `partition, base, count` for each part.

    `fingerprint` is 0 where none was given. A checkpoint from before there were any has calls without it. `partitions`
    is how many the topic had, for a call of several parts: it may have more when the call is repeated.
    """

    first: int
    messages: int
    placed: list[int]
    fingerprint: int = 0
    partitions: int = 0


class Producers:
    """The producers of one topic, the most recent last."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[str, ProducerCall | deque[ProducerCall]] = {}
        """A single call stands for itself: most who name a call once never come again, and a deque is 700 bytes."""

    def __len__(self) -> int:
        return len(self._calls)

    def repeated(self, producer: str, first: int, count: int, fingerprint: int = 0) -> ProducerCall | None:
        """The earlier call that this one repeats, None if it is new; `OutOfSequence` if it is neither."""
        known = self._calls.get(producer)
        calls = (known,) if isinstance(known, ProducerCall) else known
        if not calls or first >= calls[-1].first + calls[-1].messages:
            return None
        for call in calls:
            if call.first == first:
                if call.messages != count:
                    raise OutOfSequence(producer, first, f"was used before with {call.messages} messages, now {count}")
                if fingerprint and call.fingerprint and fingerprint != call.fingerprint:
                    raise OutOfSequence(producer, first, "was used before with other messages")
                return call
        if first < calls[0].first:
            raise OutOfSequence(producer, first, f"is older than the last {len(calls)} calls, which are remembered")
        raise OutOfSequence(producer, first, "overlaps an earlier call")

    def note(self, producer: str, call: ProducerCall) -> None:
        """A new call went through."""
        calls = self._calls.pop(producer, None)
        if calls is None:
            if len(self._calls) >= PRODUCERS_MAX:
                del self._calls[next(iter(self._calls))]
            self._calls[producer] = call
            return
        if isinstance(calls, ProducerCall):
            calls = deque((calls,), PRODUCER_CALLS_MAX)
        calls.append(call)
        self._calls[producer] = calls

    def dump(self) -> list[tuple[str, list[ProducerCall]]]:
        """Everything, for a checkpoint. Calls are values, so nothing is done for each of them."""
        return [
            (name, [calls] if isinstance(calls, ProducerCall) else list(calls)) for name, calls in self._calls.items()
        ]

    def load(self, rows: list[tuple[str, list[ProducerCall]]]) -> None:
        """The way back from `dump`."""
        for name, calls in rows:
            for call in calls:
                self.note(name, call)
