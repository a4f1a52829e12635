"""Checks what each node has after a run of the mesh: everything, once, and in the order of each origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from wherry.sim.mesh.plan import MeshPlan

if TYPE_CHECKING:
    from wherry.sim.mesh.run import MeshHistory


def check_mesh(plan: MeshPlan, history: MeshHistory) -> list[str]:
    """Return what is wrong with a run, each after the name of the rule."""
    if history.guarantees - {"flow"}:
        return [f"answers: a publish was answered {sorted(history.guarantees)}"]
    if history.overrun:
        return [f"bounded: {history.overrun} messages were kept for a peer that was not cut off behind {plan.backlog}"]
    if plan.is_calm and history.copies:
        return [f"copies: nothing failed, and {history.copies} messages came to nodes that did not need them"]
    if history.untold:
        at, peer = history.untold[0]
        return [f"told: {at} dropped the backlog of {peer}, which does not know it"]
    return [fault for name in plan.nodes for fault in _check_node(plan, history, name)]


def _check_node(plan: MeshPlan, history: MeshHistory, name: str) -> Iterator[str]:
    stored = history.stored[name]
    twice = [payload for payload, count in Counter(stored.values()).items() if count > 1]
    if twice:
        yield f"once: {name} has {len(twice)} messages more than once, such as {twice[0]}"
    by_origin: dict[str, dict[int, list[int]]] = {origin: {} for origin in plan.nodes}
    for (partition, _), payload in sorted(stored.items()):
        origin, _, number = payload.partition("/")
        by_origin[origin].setdefault(partition, []).append(int(number))
    for origin, partitions in by_origin.items():
        for partition, numbers in partitions.items():
            if numbers != sorted(numbers):
                at = next(row for row in range(1, len(numbers)) if numbers[row] < numbers[row - 1])
                yield f"order: {name} has {origin}/{numbers[at]} behind {origin}/{numbers[at - 1]} in {partition}"
        sent = {int(payload.partition("/")[2]) for payload in history.sent[origin]}
        got = {number for numbers in partitions.values() for number in numbers}
        if got - sent:
            yield f"known: {name} has {origin}/{min(got - sent)}, which was never published"
        if sent - got and not _is_excused(plan, history, origin, name):
            yield f"all: {name} lacks {len(sent - got)} messages of {origin}, the first {origin}/{min(sent - got)}"


def _is_excused(plan: MeshPlan, history: MeshHistory, origin: str, name: str) -> bool:
    """Return whether a node on the way says that it dropped a backlog: only then may messages be missing."""
    if origin == name:
        return False
    way = {origin, plan.leaves.get(origin, origin), plan.leaves.get(name, name)} - {name}
    return any(history.cut_offs.get(each) for each in way)
