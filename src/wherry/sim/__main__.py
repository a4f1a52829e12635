"""Run the simulator: `python -m wherry.sim --seeds 1000`, or `--seed 42` to repeat one seed.

Each seed has six parts: the run in process, the run over wires, another with HTTP and the native wire among them, the
drill, members of gossip, and a mesh of several nodes with `flow` topics. The output names the part that failed.
`--part wires` runs one of them alone, and `--history` prints what its clients did, in order.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from os import cpu_count
from pathlib import Path
from textwrap import indent

from wherry.sim.drill.drill import drill
from wherry.sim.drill.drill_steps import STEPS
from wherry.sim.gossip.gossip_run import run_gossip
from wherry.sim.history import Seen
from wherry.sim.history_lines import lines
from wherry.sim.mesh.run import run_mesh
from wherry.sim.run import run
from wherry.sim.wire_run import WireResult, run_native, run_wires

PARTS = ("run", "wires", "native", "drill", "gossip", "mesh")
SHOWN_MAX = 10
FRAMES_MAX = 12
"""Calls of a traceback that are shown, the innermost ones."""


def main() -> int:
    """Run seeds; print the violations of each that failed, and the command that repeats it."""
    parser = argparse.ArgumentParser(prog="python -m wherry.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one seed and show its plan")
    parser.add_argument("--seeds", type=int, default=100, help="run so many seeds (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--part", choices=PARTS, help="run this part of each seed only")
    parser.add_argument(
        "--history", metavar="FILE", nargs="?", const="-", help="with --seed: print or write what clients did, in order"
    )
    given = parser.parse_args()
    parts = PARTS if given.part is None else (given.part,)
    if given.seed is not None:
        return _one(given.seed, parts, given.history)
    if given.history is not None:
        parser.error("--history needs --seed")
    return _many(range(given.first, given.first + given.seeds), parts)


def try_seed(seed: int, parts: Sequence[str] = PARTS) -> list[str]:
    """Return the violations of the parts of a seed, each after the name of its part."""
    tries = {
        "run": try_run,
        "wires": try_wires,
        "native": try_native,
        "drill": try_drill,
        "gossip": try_gossip,
        "mesh": try_mesh,
    }
    return [f"{part}: {violation}" for part in parts for violation in tries[part](seed)]


def try_run(seed: int) -> list[str]:
    """Return the violations of the run in process."""
    return _tried(lambda: run(seed).violations)


def try_wires(seed: int) -> list[str]:
    """Return the violations of the run over wires."""
    return _tried(lambda: run_wires(seed).violations)


def try_native(seed: int) -> list[str]:
    """Return the violations of the run with clients of the native wire."""
    return _tried(lambda: run_native(seed).violations)


def try_drill(seed: int) -> list[str]:
    """Return the violations of the drill, whose steps differ from seed to seed only in their timing."""
    return _tried(lambda: drill(seed, STEPS))


def try_gossip(seed: int) -> list[str]:
    """Return the violations of the members of gossip."""
    return _tried(lambda: run_gossip(seed).violations)


def try_mesh(seed: int) -> list[str]:
    """Return the violations of the run of several nodes with `flow` topics."""
    return _tried(lambda: run_mesh(seed).violations)


def failure(seed: int, violations: Sequence[str]) -> str:
    """Return a text for a seed that failed, by `try_seed`: the command that repeats it, and its first violations."""
    failed = {violation.partition(":")[0] for violation in violations}
    part = f" PART={failed.pop()}" if len(failed) == 1 else ""
    shown = [indent(each, "  ") for each in violations[:SHOWN_MAX]]
    more = [f"  and {len(violations) - SHOWN_MAX} more"] if len(violations) > SHOWN_MAX else []
    repeat = f"seed {seed} failed; repeat it with: make sim SEED={seed}{part} HISTORY=1"
    return "\n".join((repeat, *shown, *more))


def _tried(part: Callable[[], list[str]]) -> list[str]:
    """Return the violations of a part; one that ends in an exception has failed as well."""
    try:
        return part()
    except Exception as fault:
        return list(_causes(fault))


def _causes(fault: BaseException) -> Iterator[str]:
    """Yield each exception of a group: what it is and where it was raised, then the calls that led there."""
    if isinstance(fault, BaseExceptionGroup):
        for each in fault.exceptions:
            yield from _causes(each)
        return
    last = traceback.extract_tb(fault.__traceback__)[-1]
    calls = indent("".join(traceback.format_exception(fault, limit=-FRAMES_MAX)).rstrip(), "  ")
    where = f"({last.name}, line {last.lineno} of {Path(last.filename).name})"
    yield f"{type(fault).__name__}: {fault} {where}\n{calls}"


def _one(seed: int, parts: Sequence[str], history: str | None) -> int:
    """Run one seed; show its plan, its counts, its history if that is wanted, and its violations."""
    print(f"seed {seed}")
    shows = {
        "run": _show_run,
        "wires": _show_wires,
        "native": _show_native,
        "drill": _run_drill,
        "gossip": _show_gossip,
        "mesh": _show_mesh,
    }
    seen: Seen = {}
    found = {part: _tried(partial(shows[part], seed, seen)) for part in parts}
    if history is not None:
        _show_history(seen, history)
    violations = [f"{part}: {violation}" for part in parts for violation in found[part]]
    for violation in violations:
        print(indent(violation, "  "))
    return 1 if violations else 0


def _show_history(seen: Seen, to: str) -> None:
    """Print histories, or write them to a file. Columns: begin and end in virtual seconds, client, act, answer."""
    text = "".join(
        f"history of {name}\n" + "".join(f"{line}\n" for line in lines(*histories)) for name, histories in seen.items()
    )
    if to == "-":
        print(text, end="")
    else:
        Path(to).write_text(text)
        print(f"the history is in {to}")


def _run_drill(seed: int, seen: Seen) -> list[str]:
    return drill(seed, STEPS, seen=seen)


def _show_run(seed: int, seen: Seen) -> list[str]:
    """Run a seed in process and print its plan and counts; return the violations."""
    result = run(seed, seen)
    history, routes = result.history, result.route_history
    print(f"run: {result.plan}")
    print(
        f"  sent {len(history.sent)}, delivered {len(history.got)}, settled {len(history.settled)}, "
        f"dead {len(history.buried)}, lives {len(history.lives)}, trace {result.trace}"
    )
    if result.plan.route_plan is not None:
        print(
            f"  routed {len(routes.routed)}, delivered {len(routes.got)}, bound {len(routes.bound)}, "
            f"purged {sum(each.count for each in routes.purged)}, "
            f"forwarded {sum(each.count for each in routes.forwarded)}"
        )
    return result.violations


def _show_wires(seed: int, seen: Seen) -> list[str]:
    """Run a seed over wires and print its plan and counts; return the violations."""
    return _show_wire_result("wires", run_wires(seed, seen))


def _show_native(seed: int, seen: Seen) -> list[str]:
    """Run a seed with clients of the native wire, as `_show_wires` does."""
    return _show_wire_result("native", run_native(seed, seen))


def _show_mesh(seed: int, seen: Seen) -> list[str]:
    """Run a seed with several nodes, and print its plan, its faults and its counts; return the violations."""
    result = run_mesh(seed)
    history = result.history
    print(f"mesh: {result.plan}")
    print(
        f"  sent {sum(map(len, history.sent.values()))}, stored {sum(map(len, history.stored.values()))}, "
        f"cut off {sum(history.cut_offs.values())}, trace {result.trace}"
    )
    print(indent("\n".join(history.events), "  "))
    return result.violations


def _show_wire_result(part: str, result: WireResult) -> list[str]:
    history = result.history
    print(f"{part}: {result.plan}")
    print(
        f"  sent {len(history.sent)}, delivered {len(history.got)}, settled {len(history.settled)}, "
        f"lives {len(history.lives)}, trace {result.trace}"
    )
    return result.violations


def _show_gossip(seed: int, _: Seen) -> list[str]:
    """Run the members of gossip and print their plan and counts; return the violations."""
    result = run_gossip(seed)
    print(f"gossip: {result.plan}")
    print(
        f"  packets {result.packets}, state exchanges {result.exchanges}, agreed {result.agreed_after} periods after "
        f"the last fault, then {result.quiet_bytes:.0f} bytes of each in a period, longest {result.longest}"
    )
    return result.violations


def _many(seeds: range, parts: Sequence[str]) -> int:
    started = time.monotonic()
    failed = 0
    with ProcessPoolExecutor(cpu_count() or 1) as pool:
        tried = pool.map(partial(try_seed, parts=parts), seeds, chunksize=4)
        for done, (seed, violations) in enumerate(zip(seeds, tried, strict=True), 1):
            if violations:
                failed += 1
                print(f"\r{failure(seed, violations)}")
            if sys.stderr.isatty() or done == len(seeds):
                print(f"\r{done} of {len(seeds)} seeds, {failed} failed", end="", file=sys.stderr, flush=True)
    print(f"\n{len(seeds)} seeds in {time.monotonic() - started:.0f} s: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
