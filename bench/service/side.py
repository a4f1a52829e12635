"""`python -m bench.service.side wherry provide PORT`, or `… call PORT COUNT UNDER_WAY`: prints what it measured."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module

from bench.measuring import quantile

BODY = bytes(range(256))


class Run:
    """One run of a caller: its rate, and how long its calls took."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._began = self._processor = self._wall_s = self._processor_s = 0.0

    def begin(self) -> None:
        """Forget the calls that warmed up."""
        self._seconds.clear()
        self._began, self._processor = time.perf_counter(), time.process_time()

    def took(self, seconds: float) -> None:
        """Note a call."""
        self._seconds.append(seconds)

    def end(self) -> Run:
        """Note the end of the last call."""
        self._wall_s, self._processor_s = time.perf_counter() - self._began, time.process_time() - self._processor
        return self

    def row(self) -> dict[str, float]:
        """Return what was measured."""
        calls = len(self._seconds)
        return {
            "calls_per_s": calls / self._wall_s,
            "p50_us": quantile(self._seconds, 0.5) * 1e6,
            "p99_us": quantile(self._seconds, 0.99) * 1e6,
            "caller_us": self._processor_s / calls * 1e6,
        }


def main() -> None:
    """Run one side."""
    name, what, port, *more = sys.argv[1:]
    side = import_module(f"bench.service.sides.{name}")
    if what == "provide":
        side.provide(int(port))
    else:
        print(json.dumps(side.call(int(port), int(more[0]), int(more[1])).row()))


if __name__ == "__main__":
    main()
