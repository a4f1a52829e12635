"""Run the simulator: `python -m wherry.sim --seeds 1000`, or `--seed 42` to repeat one seed.

Each seed has three parts: the run in process, the run over wires, and the drill. The output names the part that failed.
"""

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
    """Run seeds; print the violations of each that failed, and the command that repeats it."""
    parser = argparse.ArgumentParser(prog="python -m wherry.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one seed and show its plan")
    parser.add_argument("--seeds", type=int, default=100, help="run so many seeds (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed)
    return _many(range(given.first, given.first + given.seeds))


def try_seed(seed: int) -> list[str]:
    """Return the violations of all three parts of a seed, each after the name of its part."""
    return _by_part(run=try_run(seed), wires=try_wires(seed), drill=try_drill(seed))


def try_run(seed: int) -> list[str]:
    """Return the violations of the run in process."""
    return _tried(lambda: run(seed).violations)


def try_wires(seed: int) -> list[str]:
    """Return the violations of the run over wires."""
    return _tried(lambda: run_wires(seed).violations)


def try_drill(seed: int) -> list[str]:
    """Return the violations of the drill, whose steps differ from seed to seed only in their timing."""
    return _tried(lambda: drill(seed, STEPS))


def _tried(part: Callable[[], list[str]]) -> list[str]:
    """Return the violations of a part; one that ends in an exception has failed as well."""
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


def _by_part(**parts: list[str]) -> list[str]:
    return [f"{part}: {violation}" for part, violations in parts.items() for violation in violations]


def _one(seed: int) -> int:
    print(f"seed {seed}")
    violations = _by_part(
        run=_tried(lambda: _show_run(seed)), wires=_tried(lambda: _show_wires(seed)), drill=try_drill(seed)
    )
    for violation in violations:
        print(f"  {violation}")
    return 1 if violations else 0


def _show_run(seed: int) -> list[str]:
    """Run a seed in process and print its plan and counts; return the violations."""
    result = run(seed)
    history, ways = result.history, result.ways
    print(f"run: {result.plan}")
    print(
        f"  sent {len(history.sent)}, delivered {len(history.got)}, settled {len(history.settled)}, "
        f"dead {len(history.buried)}, lives {len(history.lives)}, trace {result.trace}"
    )
    if result.plan.ways is not None:
        print(
            f"  routed {len(ways.routed)}, delivered {len(ways.got)}, bound {len(ways.bound)}, "
            f"purged {sum(each.count for each in ways.purged)}, forwarded {sum(each.count for each in ways.forwarded)}"
        )
    return result.violations


def _show_wires(seed: int) -> list[str]:
    """Run a seed over wires and print its plan and counts; return the violations."""
    result = run_wires(seed)
    history = result.history
    print(f"wires: {result.plan}")
    print(
        f"  sent {len(history.sent)}, delivered {len(history.got)}, settled {len(history.settled)}, "
        f"lives {len(history.lives)}, trace {result.trace}"
    )
    return result.violations


def _many(seeds: range) -> int:
    started = time.monotonic()
    failed = 0
    with ProcessPoolExecutor(cpu_count() or 1) as pool:
        for done, (seed, violations) in enumerate(zip(seeds, pool.map(try_seed, seeds, chunksize=4), strict=True), 1):
            if violations:
                failed += 1
                print(f"\rseed {seed} failed; repeat it with: make sim SEED={seed}")
                for violation in violations[:SHOWN_MAX]:
                    print(f"  {violation}")
            if sys.stderr.isatty() or done == len(seeds):
                print(f"\r{done} of {len(seeds)} seeds, {failed} failed", end="", file=sys.stderr, flush=True)
    print(f"\n{len(seeds)} seeds in {time.monotonic() - started:.0f} s: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
