"""Brokers in turn: rounds over servers that run through a part, the median of each measure, ours beside the others."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bench import flow
from bench.figure import Figure
from bench.measuring import Measured, described, disk, medians, progress
from bench.peers.peer import Peer, served
from bench.peers.wherry import WherryNode

ROUNDS = 5

WORDS = {
    "rate": "msgs/s",
    "age": "ms from publish to arrival",
    "confirm": "ms from publish to confirm",
    "late": "ms after the due time",
    "server_us": "us of the server's processor a message",
    "server_busy": "of a core, the server",
    "clients_us": "us of the clients' processor a message",
}
"""The unit of a measure, by its name without its quantile."""


class Contender(NamedTuple):
    """A broker, and how a run of it is measured."""

    kind: type[Peer]
    measure: Callable[[Any], Measured]
    """Given the server, which runs."""
    words: str = ""
    """Its name in figures, where it is used in another way than its class describes."""

    @property
    def title(self) -> str:
        """Return what it is, and what it promises, for people."""
        return self.words or f"{self.kind.name}, {self.kind.promise}"


Contenders = Mapping[str, Contender]


class Servers:
    """The servers of one part: each is started when it is first needed, and runs until the end of the part."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[type[Peer], Peer] = {}

    def __enter__(self) -> Servers:
        self._root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=disk(), prefix="bench-lone-")))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, kind: type[Peer]) -> Peer:
        """Return the server of a kind."""
        if kind not in self._running:
            progress(f"  starting {kind.name}")
            self._running[kind] = self._stack.enter_context(served(kind, self._root / kind.__name__))
        return self._running[kind]


def in_turn(servers: Servers, step: str, contenders: Contenders, scale: int) -> dict[str, Measured]:
    """Measure the contenders that are installed, one after the other, in each of the rounds; return medians.

    A round in which another broker loses a message is printed and left out of its median; one of ours ends the run.
    """
    here = {name: each for name, each in contenders.items() if each.kind.is_installed()}
    absent = [each.kind.name for name, each in contenders.items() if name not in here]
    progress(f"{step}: {', '.join(here)}" + (f"; not installed: {', '.join(absent)}" if absent else ""))
    for each in here.values():
        servers.of(each.kind)
    rounds = max(1, ROUNDS // scale)
    runs: dict[str, list[Measured]] = {name: [] for name in here}
    for number in range(rounds):
        for name, each in here.items():
            try:
                runs[name].append(each.measure(servers.of(each.kind)))
            except flow.SideFailed as fault:
                if issubclass(each.kind, WherryNode):
                    raise
                progress(f"  round {number + 1} of {rounds}, {name}: left out: {fault}")
                continue
            progress(f"  round {number + 1} of {rounds}, {name}: {described(runs[name][-1])}")
    return {name: medians(some) for name, some in runs.items() if some}


def by_sides(module: str, case: str, count: int, *more: object) -> Callable[[Peer], Measured]:
    """Return how to measure a flow whose sides are cases of a module in `bench.lone.sides`."""

    def measure(peer: Peer) -> Measured:
        return flow.measured(flow.sides(f"bench.lone.sides.{module}", case, peer.reached_at, count, *more), count, peer)

    return measure


def compared(
    label: str, ours: str, found: Mapping[str, Measured], contenders: Contenders, skipped: Sequence[str] = ()
) -> list[Figure]:
    """Return each measure of ours against each other contender; `skipped` are ours too, or are not compared."""
    return [
        Figure(f"lone.{label}.{measure}_by_{name}", value, unit(measure), contenders[name].title, theirs[measure])
        for name, theirs in found.items()
        if name != ours and name not in skipped
        for measure, value in found[ours].items()
        if theirs.get(measure)
    ]


def unit(measure: str) -> str:
    """Return the unit of a measure, with its quantile if it has one, and without the step that it begins with."""
    for word in ("p50", "p99"):
        if measure.endswith(f"_{word}_ms"):
            return f"{WORDS[measure.removesuffix(f'_{word}_ms')]}, {word}"
    for step in ("load", "drain"):
        if measure.startswith(f"{step}_"):
            return f"{WORDS[measure.removeprefix(f'{step}_')]}, {step}"
    return WORDS[measure]
