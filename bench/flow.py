"""Flows between client processes, called sides, that run the same code against any server.

A side is `python -m MODULE CASE ROLE PORT COUNT [MORE …]`. It prepares, prints `ready`, waits for a line, works, and
prints one line of JSON: when it began and ended, its processor time, and what its work found.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.measuring import Measured, quantile
from bench.peers.peer import Peer

SIDE_S = 120.0
"""For a side to prepare, and for it to work: a flow that lost a message must end."""

SAMPLE_MAX = 20_000
"""Values of one kind that a side reports, evenly over its run: its line has to be read at once."""

Side = subprocess.Popen[str]
Sides = dict[str, Side]
Found = Mapping[str, Any] | None
Work = Callable[[], Found]
Prepare = Callable[..., Work]
"""Given a port, a count and more texts: prepares, and returns what there is to do."""

Steps = Callable[..., Iterator[Found] | AsyncIterator[Found]]
"""A side as a generator: prepares, yields, works, and yields what it found; then it tidies up."""


# ------------------------------------------------------------------------------------------------- starting and waiting


def sides(module: str, case: str, port: int, count: int, *more: object, before: str | None = None) -> Sides:
    """Start both sides of a case, and wait until they are ready; `before`: by the sources of another commit."""
    env = None if before is None else {**os.environ, "PYTHONPATH": before}
    words = [sys.executable, "-m", module, case]
    made = {
        role: subprocess.Popen(
            [*words, role, str(port), str(count), *map(str, more)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        for role in ("consume", "produce")
    }
    try:
        for each in made.values():
            line(each)
    except SideFailed:
        _end(made)
        raise
    return made


class SideFailed(RuntimeError):
    """A side that did not come to its end: it lost messages, or its connection."""


def line(side: Side) -> str:
    """Return the next line of a side, which must not take longer than `SIDE_S`."""
    assert side.stdout is not None
    ready, _, _ = select.select([side.stdout], [], [], SIDE_S)
    text = side.stdout.readline() if ready else ""
    if not text:
        raise SideFailed(f"a side {'ended without a word' if ready else 'took too long'}: {side.args!r}")
    return text


def results(some: Sides) -> dict[str, dict[str, Any]]:
    """Let sides work, and wait for their ends; return what each reported."""
    with _working(some):
        return _reports(some)


@contextmanager
def _working(some: Sides) -> Iterator[None]:
    """Let sides work; at the end wait until they have tidied up, and end those that have not."""
    try:
        for side in some.values():
            assert side.stdin is not None
            side.stdin.write("go\n")
            side.stdin.flush()
        yield
        for side in some.values():
            side.wait(SIDE_S)
    finally:
        _end(some)


def _reports(some: Sides) -> dict[str, dict[str, Any]]:
    return {role: json.loads(line(side)) for role, side in some.items()}


def _end(some: Sides) -> None:
    for side in some.values():
        if side.poll() is None:
            side.kill()
            side.wait()
        for pipe in (side.stdin, side.stdout):
            if pipe is not None:
                pipe.close()


# ------------------------------------------------------------------------------------------------------------ measuring


def together(some: Sides, count: int) -> float:
    """Return messages a second while both sides work at the same time, from the first sent to the last received."""
    return count / _seconds(results(some))


def measured(some: Sides, count: int, peer: Peer) -> Measured:
    """Let sides work at the same time; return the rate, quantiles of what they timed, and the processor a message.

    A list of milliseconds that a side reports as `age` becomes `age_p50_ms` and `age_p99_ms`.
    """
    before = peer.processor_s()
    with _working(some):
        reports = _reports(some)
        spent = peer.processor_s() - before  # what the sides do when they tidy up does not count
    seconds = _seconds(reports)
    found = {"rate": count / seconds}
    for report in reports.values():
        for name, values in report["found"].items():
            found |= {f"{name}_{word}_ms": quantile(values, share) for word, share in (("p50", 0.5), ("p99", 0.99))}
    found["server_us"] = spent / count * 1e6
    found["server_busy"] = spent / seconds
    found["clients_us"] = sum(report["cpu"] for report in reports.values()) / count * 1e6
    return found


def _seconds(reports: Mapping[str, Mapping[str, float]]) -> float:
    return max(each["ended"] for each in reports.values()) - reports["produce"]["began"]


# ----------------------------------------------------------------------------------------------------- inside of a side


def play(prepare: Prepare) -> None:
    """Be one side: prepare, wait for the start, work, and report."""
    work = prepare(*_given())
    _report(work)


def play_steps(side: Steps) -> None:
    """Be one side that is a generator; an asynchronous one runs by uvloop, as the client of Wherry advises."""
    steps: Any = side(*_given())
    if not hasattr(steps, "__anext__"):
        _step_by_step(lambda: next(steps, None))
        return
    import uvloop  # noqa: PLC0415  only sides with a loop need it

    async def step() -> Found:
        found: Found = await anext(steps, None)
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        _step_by_step(lambda: runner.run(step()))


def _step_by_step(step: Work) -> None:
    step()
    _report(step)
    step()


def _given() -> tuple[Any, ...]:
    return (int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])


def _report(work: Work) -> None:
    _print_line("ready")
    sys.stdin.readline()
    began, cpu = time.monotonic(), time.process_time()
    found = work() or {}
    ended, cpu = time.monotonic(), time.process_time() - cpu
    sampled = {name: values[:: len(values) // SAMPLE_MAX + 1] for name, values in found.items()}
    _print_line(json.dumps({"began": began, "ended": ended, "cpu": cpu, "found": sampled}))


def _print_line(text: str) -> None:
    """Print a line of any length; `print` itself would cut it at a full pipe where PYTHONUNBUFFERED is set."""
    with os.fdopen(sys.stdout.fileno(), "w", closefd=False) as out:
        out.write(text + "\n")
