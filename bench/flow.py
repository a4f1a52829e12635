"""A flow between two processes, a producer and a consumer, that run the same code against any server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

from bench.http import _line as line

Sides = dict[str, subprocess.Popen[str]]


def sides(module: str, case: str, port: int, count: int) -> Sides:
    """Both sides of a case, ready to begin."""
    command = [sys.executable, "-m", module, case]
    made = {
        role: subprocess.Popen(
            [*command, role, str(port), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for role in ("consume", "produce")
    }
    for side in made.values():
        line(side)
    return made


def told(some: Sides) -> dict[str, dict[str, float]]:
    """Start sides, and wait for their ends: when each began and ended."""
    for side in some.values():
        assert side.stdin is not None
        side.stdin.write("go\n")
        side.stdin.flush()
    found = {role: json.loads(line(side)) for role, side in some.items()}
    for side in some.values():
        side.wait()
    return found


def together(some: Sides, count: int) -> float:
    """Messages a second while both sides work at the same time, from the first sent to the last received."""
    found = told(some)
    return count / (max(each["ended"] for each in found.values()) - found["produce"]["began"])


def play(prepare: Callable[[int, int], Callable[[], None]]) -> None:
    """One side, given a port and a count: prepare, wait for the word, do the work, tell when it began and ended."""
    work = prepare(int(sys.argv[3]), int(sys.argv[4]))
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    work()
    print(json.dumps({"began": began, "ended": time.monotonic()}), flush=True)
