"""Calls of services: a caller and a provider process over a socket, beside what else a program in Python would use."""

from __future__ import annotations

from collections.abc import Callable

from bench.figure import Figure
from bench.service import calls, records

PARTS: dict[str, Callable[[int], list[Figure]]] = {"calls": calls.figures, "records": records.figures}


def figures(scale: int) -> list[Figure]:
    """Measure all parts."""
    return [figure for measure in PARTS.values() for figure in measure(scale)]
