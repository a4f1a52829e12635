"""What every part of the benchmarks measures with: a disk, quantiles, processor time, and lines of progress."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

Measured = dict[str, float]
"""What one run found, by measure: the end of its name is the unit."""

_TICKS = os.sysconf("SC_CLK_TCK")


def disk() -> Path:
    """Return the build folder: a temporary folder of the system may be in memory."""
    folder = Path("build")
    folder.mkdir(exist_ok=True)
    return folder.resolve()


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that is above this share of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def medians(runs: Sequence[Measured]) -> Measured:
    """Return the median of each measure over runs that measured the same."""
    return {measure: statistics.median(run[measure] for run in runs) for measure in runs[0]}


def progress(text: str) -> None:
    """Print a line at once, so that a reader of the terminal sees how far the run is."""
    print(text, flush=True)


def described(found: Mapping[str, float]) -> str:
    """Return measures as a line for people."""
    return "  ".join(f"{measure} {short(value)}" for measure, value in found.items())


def short(value: float) -> str:
    """Return a number with as many digits as people compare."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def processor_s(pid: int) -> float:
    """Return the processor time, so far, of a process and of the processes that it started and that still run."""
    children: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rsplit(") ", 1)[1].split()
        except OSError:  # the process has ended
            continue
        one = int(each.parent.name)
        children.setdefault(int(fields[1]), []).append(one)
        spent[one] = (int(fields[11]) + int(fields[12])) / _TICKS
    total, left = 0.0, [pid]
    while left:
        one = left.pop()
        total += spent.get(one, 0.0)
        left += children.get(one, [])
    return total
