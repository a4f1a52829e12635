"""The gate: check the key and count the calls, before anything of a call is read.

Flight gives each call a thread, and the thread of a writer waits for the first message before the server's method runs.
So the key is checked, and calls are counted, where a call begins.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pyarrow import flight

from wherry.model import limits
from wherry.model.catalog.key import Verb
from wherry.model.errors import Forbidden, InvalidInput, LimitReached
from wherry.wire.flight.faults import sends_errors

Guard: TypeAlias = Callable[[Mapping[str, str], Verb, str], str]
"""Returns the caller's name, by its headers, if it has the right on the topic; raises `Unauthorized` or `Forbidden`."""

Wait: TypeAlias = Callable[[Mapping[str, str]], None]
"""Waits, in the thread of a call, for what its headers need before they can be checked; nearly always for nothing."""

Check: TypeAlias = Callable[[], None]
"""Raises once the caller has lost its right."""

CALLS_MAX = 256
"""Most calls at a time; each has a thread, and some batches in memory."""

CALLS_OF_ONE_MAX = 64
"""Most calls at a time of one key, so that no client keeps all others out."""


def no_wait(headers: Mapping[str, str]) -> None:
    """Wait for nothing: all that a check needs is there."""


def check_length(authorization: str) -> None:
    """Refuse a token that gRPC would drop in some calls and not in others: it begins by chance, from 8,192 bytes on."""
    most = limits.FLIGHT_KEY_CHARS_MAX
    if len(authorization) > most:
        allowed = f"at most {most:,} over Flight, since gRPC allows 8 KB of headers: a token with fewer claims, or HTTP"
        raise InvalidInput("authorization", f"{len(authorization):,} characters", allowed)


class Visit(flight.ServerMiddleware):  # type: ignore[misc]
    """One call, from its headers to its end."""

    def __init__(self, gate: Gate, headers: Mapping[str, str], caller: str) -> None:
        self._gate = gate
        self.headers = headers
        self.caller = caller
        """The name of the key; empty where keys are off."""

    def call_completed(self, exception: BaseException | None) -> None:
        """Stop counting the call, whether it succeeded or failed."""
        self._gate.leave(self.caller)


class Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Checks and counts calls as they begin."""

    def __init__(self, guard: Guard, wait: Wait = no_wait) -> None:
        self._guard, self._wait = guard, wait
        self._lock = threading.Lock()
        self._inside: Counter[str] = Counter()

    @property
    def calls(self) -> int:
        """Return how many calls are under way."""
        with self._lock:
            return self._inside.total()

    @sends_errors
    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> Visit:
        """Check and count a call. Of several headers of one name the last counts, as over HTTP.

        Only here a call may wait for a key: it has a thread of its own, and has not yet come to the event loop.
        """
        last = {name.lower(): values[-1] for name, values in headers.items() if values}
        texts = {name: value for name, value in last.items() if isinstance(value, str)}
        check_length(texts.get("authorization", ""))
        self._wait(texts)
        caller = self._caller(texts)
        self._enter(caller)
        return Visit(self, texts, caller)

    def _caller(self, headers: Mapping[str, str]) -> str:
        """Return the caller's name, whatever its rights."""
        try:
            return self._guard(headers, "publish", "*")
        except Forbidden as fault:
            return fault.name

    def _enter(self, caller: str) -> None:
        with self._lock:
            inside = self._inside.total()
            if inside >= CALLS_MAX:
                raise LimitReached("calls at a time", CALLS_MAX, inside + 1)
            if caller and self._inside[caller] >= CALLS_OF_ONE_MAX:
                raise LimitReached("calls at a time of one key", CALLS_OF_ONE_MAX, self._inside[caller] + 1)
            self._inside[caller] += 1

    def leave(self, caller: str) -> None:
        """Stop counting a call."""
        with self._lock:
            self._inside[caller] -= 1
            if not self._inside[caller]:
                del self._inside[caller]
