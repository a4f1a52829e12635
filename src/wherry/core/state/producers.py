"""Idempotent producers: the repeat of a call is answered with the offsets of the first call.

The last calls of each producer of a topic are remembered. A call is identified by its first sequence number, its number
of messages and, where the producer gave one, its fingerprint. Sequence numbers only grow; gaps are allowed.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from wherry.model.calls.origin import ORIGIN
from wherry.model.errors import OutOfSequence
from wherry.model.limits import PRODUCER_CALLS_MAX

PRODUCERS_MAX = 100_000
"""Producers remembered for each topic. The one that has not published for the longest time is forgotten first.

A producer with a single call, such as an idempotency key, takes about 360 bytes.
"""

ORIGINS_MAX = 8_192
"""Origins remembered for each topic: partitions at other nodes, and those of data that a node has lost.

The largest mesh has 7 hubs with 64 leaves each, so 455 nodes, and a topic 8 partitions: 3,640 origins, and twice that
when each node has lost its data once. Beyond, the origin that has published nothing for the longest time is forgotten.
"""

RUNS_MAX = 8
"""Runs of the data of one node, of these: a node that begins anew all the time pushes out nothing but its own past.

Beyond, the run of that node from which nothing came for the longest time is forgotten, with all its partitions.
"""


class ProducerCall(NamedTuple):
    """One publish of a producer: its sequence numbers, and `partition, base, count` for each part.

    `fingerprint` is 0 where none was given; calls in older checkpoints have none. `partitions` is the number of
    partitions that the topic had, for a call of several parts: the topic may have more when the call is repeated.
    """

    first: int
    messages: int
    placed: list[int]
    fingerprint: int = 0
    partitions: int = 0


def _node_and_run(producer: str) -> tuple[str, str]:
    """Return what stands for the node and for the run in the name of an origin; any text is one in an old journal."""
    node, run, _ = (*producer.rsplit(":", 2), "", "")[:3]
    return node, run


class Producers:
    """The producers of one topic, the most recent last.

    Of an origin (a partition of the topic at another node) only the last number is remembered. Other producers do not
    push it out: a peer that was cut off for long would deliver again what it had delivered.
    """

    __slots__ = ("_calls", "_origins", "_runs")

    def __init__(self) -> None:
        self._calls: dict[str, ProducerCall | deque[ProducerCall]] = {}
        """A single call is stored without a deque, which takes 700 bytes: most producers make one call only."""
        self._origins: dict[str, int] = {}
        """The number after the last one of each origin, by the name of its producer."""
        self._runs: dict[str, dict[str, dict[str, None]]] = {}
        """The same names by node and run: the runs of each node, the most recent last."""

    def __len__(self) -> int:
        return len(self._calls)

    def next_of(self, origin: str) -> int:
        """Return the number after the last one that came from an origin."""
        return self._origins.get(origin, 0)

    def repeated(self, producer: str, first: int, count: int, fingerprint: int = 0) -> ProducerCall | None:
        """Return the earlier call that this one repeats, None for a new call; raise `OutOfSequence` for neither."""
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
        """Remember a new call."""
        if producer.startswith(ORIGIN):
            self._note_origin(producer, call.first + call.messages)
            return
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

    def _note_origin(self, producer: str, end: int) -> None:
        self._forget_origin(producer)
        node, run = _node_and_run(producer)
        runs = self._runs.get(node, {})
        if run not in runs and len(runs) >= RUNS_MAX:
            for old in list(next(iter(runs.values()))):
                self._forget_origin(old)
        if len(self._origins) >= ORIGINS_MAX:
            self._forget_origin(next(iter(self._origins)))
        self._origins[producer] = end
        runs = self._runs.setdefault(node, {})
        runs[run] = {**runs.pop(run, {}), producer: None}

    def _forget_origin(self, producer: str) -> None:
        if self._origins.pop(producer, None) is None:
            return
        node, run = _node_and_run(producer)
        runs = self._runs[node]
        del runs[run][producer]
        if not runs[run]:
            del runs[run]
        if not runs:
            del self._runs[node]

    def dump(self) -> list[tuple[str, list[ProducerCall]]]:
        """Return everything, for a checkpoint. Calls are immutable, so they are not copied."""
        origins = [(name, [ProducerCall(end - 1, 1, [])]) for name, end in self._origins.items()]
        return origins + [
            (name, [calls] if isinstance(calls, ProducerCall) else list(calls)) for name, calls in self._calls.items()
        ]

    def load(self, rows: list[tuple[str, list[ProducerCall]]]) -> None:
        """Load what `dump` returned."""
        for name, calls in rows:
            for call in calls:
                self.note(name, call)
