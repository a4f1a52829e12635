"""Each row once, over many seeded runs in which processes and connections die: `python -m tests.spark.soak --runs 200`.

A seed that fails is printed, and can be run alone: `--seed 17 --runs 1`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.spark.soak import bad_rows
from tests.spark.soak.rig import LOCAL, Rig, rig
from tests.spark.soak.runs import Outcome, run


def main() -> int:
    """Run seeds, print what failed and how to see it again."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="so many runs (200)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first (1)")
    parser.add_argument("--master", default=LOCAL, help=f"`cluster` for one of our own, or an address ({LOCAL})")
    parser.add_argument("--minutes", type=float, default=60, help="begin no run after so many (60)")
    parser.add_argument("--bad-rows", type=int, default=0, help="then so many rows, of which 1 %% are bad (0)")
    parser.add_argument("--folder", type=Path, help="for what is written; a temporary one by default")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # an end in order, that leaves no process behind
        signal.signal(number, lambda *_: sys.exit(130))
    folder = given.folder or Path(tempfile.mkdtemp(prefix="wherry-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    with rig(folder, given.master) as made:
        failed = _runs(made, given)
        if given.bad_rows:
            failed += _bad_rows(made, given.bad_rows)
    print(f"what they left is in {folder}" if failed else "all well")
    return 1 if failed else 0


def _runs(made: Rig, given: argparse.Namespace) -> int:
    began = time.monotonic()
    outcomes: list[Outcome] = []
    for seed in range(given.seed, given.seed + given.runs):
        if time.monotonic() - began > given.minutes * 60:
            print(f"time is up: {given.runs - len(outcomes)} runs are left out")
            break
        outcomes.append(run(seed, made))
        print(f"{len(outcomes):>3}/{given.runs}  {outcomes[-1].line()}", flush=True)
    failed = [each for each in outcomes if each.wrong]
    for each in failed:
        print(f"seed {each.plan.seed} failed; see it again: make soak-spark SEED={each.plan.seed} RUNS=1", end="")
        print("" if given.master == LOCAL else f" MASTER={given.master}")
    struck = Counter(fault.kind for each in outcomes for fault in each.struck)
    planned = sum(len(each.plan.faults) for each in outcomes)
    strikes = ", ".join(f"{kind} {count}" for kind, count in struck.most_common())
    print(
        f"{len(outcomes)} runs in {time.monotonic() - began:.0f} s, {len(failed)} failed; "
        f"{sum(each.plan.rows for each in outcomes):,} rows; struck {struck.total()} of {planned} times: {strikes}"
    )
    return len(failed)


def _bad_rows(made: Rig, rows: int) -> int:
    began = time.monotonic()
    try:
        bad_rows.apart(made, rows)
    except AssertionError as fault:
        print(f"bad rows FAILED: {fault}")
        return 1
    print(f"{rows:,} rows, 1 % bad: all reported, mended and published once, in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
