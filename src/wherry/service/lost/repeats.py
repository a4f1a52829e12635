"""How a provider tells a repeat: the ids of the calls that it runs, and of those that it answered, with their results.

A caller that got no answer sends the call again with the same id: while the first one runs, the second waits for it;
afterwards it gets the same result, and the method is not run again. The window is bounded by count, bytes and age, and
lives in memory: behind it, and after a restart of the provider, a repeat is a new call. It never remembers a failure: a
repeat of that is meant to run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")

ANSWERS_MAX = 4_096
ANSWER_BYTES_MAX = 16 << 20
"""Of all results together."""

ANSWERS_S = 600.0


class Repeat(NamedTuple, Generic[T]):
    """What a provider knows of the id of a call that comes in."""

    kind: Literal["new", "running", "answered"]
    result: T | None = None


_NEW: Final = Repeat[Any]("new")
_RUNNING: Final = Repeat[Any]("running")


class Repeats(Generic[T]):
    """The window of one provider.

    Examples
    --------
    >>> repeats = Repeats[bytes]()
    >>> repeats.begin("c1", now=0.0).kind
    'new'
    >>> repeats.answered("c1", b"42", size=2, now=0.1)
    >>> repeats.begin("c1", now=5.0).result
    b'42'
    """

    def __init__(
        self, answers_max: int = ANSWERS_MAX, bytes_max: int = ANSWER_BYTES_MAX, keep_s: float = ANSWERS_S
    ) -> None:
        self._answers_max, self._bytes_max, self._keep_s = answers_max, bytes_max, keep_s
        self._running: set[Hashable] = set()
        self._answers: OrderedDict[Hashable, tuple[T, int, float]] = OrderedDict()
        """Result, size and time, oldest first: a dict would look at all that were removed, to find the oldest."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._answers)

    def begin(self, call_id: Hashable, now: float) -> Repeat[T]:
        """Return whether this call is new; a new one is running from now on, until `answered` or `forget`."""
        self._trim(now)
        if call_id in self._running:
            return _RUNNING
        known = self._answers.get(call_id)
        if known is not None:
            return Repeat("answered", known[0])
        self._running.add(call_id)
        return _NEW

    def answered(self, call_id: Hashable, result: T, size: int, now: float) -> None:
        """Note the result of a call, which has so many bytes; one that is larger than the window is not kept."""
        self._running.discard(call_id)
        if size <= self._bytes_max and call_id not in self._answers:
            self._answers[call_id] = result, size, now
            self.bytes += size
        self._trim(now)

    def forget(self, call_id: Hashable) -> None:
        """Note that a call failed, or was cancelled: its repeat runs."""
        self._running.discard(call_id)

    def _trim(self, now: float) -> None:
        answers = self._answers
        while answers:
            call_id = next(iter(answers))
            _, size, at = answers[call_id]
            if len(answers) <= self._answers_max and self.bytes <= self._bytes_max and at + self._keep_s > now:
                return
            del answers[call_id]
            self.bytes -= size
