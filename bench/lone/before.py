"""The same flows by the sources of another commit, in the same run: `make bench ONLY=lone.before BEFORE=<commit>`.

Node and clients of that commit run from `build/before`; what is measured with is that of this tree.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from bench import flow
from bench.figure import Figure
from bench.lone.turns import Contender, Servers, compared, in_turn
from bench.measuring import Measured, disk, progress
from bench.peers.peer import Peer
from bench.peers.wherry import WherryNode

FLOWS: dict[str, tuple[int, int | None]] = {
    "lone": (3_000, 1_000),
    "batches": (500_000, None),
    "messages": (200_000, None),
}
"""Messages, and how many a second: None for as fast as it goes."""


def sources() -> Path:
    """Return the folder with the sources of the other commit."""
    return disk() / "before" / "src"


class WherryBefore(WherryNode):
    """A node of the other commit."""

    name = "Wherry before"

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(sources())}


def figures(scale: int) -> list[Figure]:
    """Measure each flow, now and before; nothing where no commit is named."""
    commit = os.environ.get("BEFORE")
    if not commit:
        progress("lone.before: left out, no commit is named (BEFORE=<commit>)")
        return []
    _unpack(commit)
    result: list[Figure] = []
    with Servers() as servers:
        for case, (count, rate) in FLOWS.items():
            contenders = {
                "now": Contender(WherryNode, _by_worker(case, count // scale, rate, None)),
                commit: Contender(WherryBefore, _by_worker(case, count // scale, rate, str(sources()))),
            }
            found = in_turn(servers, f"lone.before, {case}", contenders, scale)
            result += compared(f"before.{case}", "now", found, contenders)
    return result


def _by_worker(case: str, count: int, rate: int | None, before: str | None) -> Callable[[Peer], Measured]:
    paced = () if rate is None else (rate,)
    return lambda peer: flow.measured(
        flow.sides("bench.worker", case, peer.port, count, *paced, before=before), count, peer
    )


def _unpack(commit: str) -> None:
    archive = subprocess.run(["git", "archive", commit, "src"], capture_output=True, check=True).stdout
    shutil.rmtree(sources().parent, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(sources().parent, filter="data")
