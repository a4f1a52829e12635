"""`python -m wherry.sim --seeds 1000`, or `--seed 42` to see one run again."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from os import cpu_count
from pathlib import Path

from wherry.sim.drill.drill import drill
from wherry.sim.drill.drill_steps import STEPS
from wherry.sim.run import run
from wherry.sim.wire_run import run_wires

SHOWN_MAX = 10


def main() -> int:
    """Run seeds, print what failed and how to see it again."""
    parser = argparse.ArgumentParser(prog="python -m wherry.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one seed and show its plan")
    parser.add_argument("--seeds", type=int, default=100, help="run so many seeds (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed)
    return _many(range(given.first, given.first + given.seeds))


def _one(seed: int) -> int:
    result, wired, drilled = run(seed), run_wires(seed), drill(seed, STEPS)
    print(f"seed {seed}: {result.plan}")
    print(
        f"sent {len(result.history.sent)}, delivered {len(result.history.got)}, settled {len(result.history.settled)}, "
        f"dead {len(result.history.buried)}, lives {len(result.history.lives)}, trace {result.trace}"
    )
    ways = result.ways
    if result.plan.ways is not None:
        print(
            f"routed {len(ways.routed)}, delivered {len(ways.got)}, bound {len(ways.bound)}, "
            f"purged {sum(each.count for each in ways.purged)}, forwarded {sum(each.count for each in ways.forwarded)}"
        )
    seen = wired.history
    print(f"over wires: {wired.plan}")
    print(
        f"sent {len(seen.sent)}, delivered {len(seen.got)}, settled {len(seen.settled)}, lives {len(seen.lives)}, "
        f"trace {wired.trace}"
    )
    violations = (*result.violations, *wired.violations, *drilled)
    for violation in violations:
        print(f"  {violation}")
    return 1 if violations else 0


def try_seed(seed: int) -> list[str]:
    """What is wrong with a seed; a run that ends in an exception is wrong as well."""
    return try_run(seed) + try_wires(seed) + _tried(lambda: drill(seed, STEPS))


def try_run(seed: int) -> list[str]:
    """The same without the drill, whose steps are the same for every seed but for their timing, and without wires."""
    return _tried(lambda: run(seed).violations)


def try_wires(seed: int) -> list[str]:
    """The same for the part of a seed that goes over wires."""
    return _tried(lambda: run_wires(seed).violations)


def _tried(part: Callable[[], list[str]]) -> list[str]:
    try:
        return part()
    except Exception as fault:
        return list(_causes(fault))


def _causes(fault: BaseException) -> Iterator[str]:
    if isinstance(fault, BaseExceptionGroup):
        for each in fault.exceptions:
            yield from _causes(each)
        return
    last = traceback.extract_tb(fault.__traceback__)[-1]
    yield f"{type(fault).__name__}: {fault} ({last.name}, line {last.lineno} of {Path(last.filename).name})"


def _many(seeds: range) -> int:
    started = time.monotonic()
    failed = 0
    with ProcessPoolExecutor(cpu_count() or 1) as pool:
        for done, (seed, violations) in enumerate(zip(seeds, pool.map(try_seed, seeds, chunksize=4), strict=True), 1):
            if violations:
                failed += 1
                print(f"\rseed {seed} failed; see it again with: make sim SEED={seed}")
                for violation in violations[:SHOWN_MAX]:
                    print(f"  {violation}")
            if sys.stderr.isatty() or done == len(seeds):
                print(f"\r{done} of {len(seeds)} seeds, {failed} failed", end="", file=sys.stderr, flush=True)
    print(f"\n{len(seeds)} seeds in {time.monotonic() - started:.0f} s: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
