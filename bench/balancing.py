"""What a choice of an instance costs, with 3 and with 1,000 instances, and what is kept of peers that are idle."""

from __future__ import annotations

import random
import statistics
import time
import tracemalloc

from bench.figure import Figure
from wherry.mesh.instance import Instance
from wherry.service.balancing.kinds import KINDS, balancer_of
from wherry.service.balancing.set_aside import SetAside
from wherry.service.balancing.sticky import Sticky

CHOICES = 100_000
ROUNDS = 5
SECONDS = 0.005
BUDGET_US = {3: 2.0, 1_000: 5.0}
"""Of a choice, by the number of instances."""

PEERS = 10_000


def figures(scale: int) -> list[Figure]:
    """Return everything about balancers."""
    result: list[Figure] = []
    for count, budget_us in BUDGET_US.items():
        for kind in KINDS:
            chosen_us, reported_us = _costs(kind, _instances(count), CHOICES // scale)
            name = f"balancing.{kind}_{count}"
            result.append(Figure(f"{name}_choice", chosen_us, "us a choice", f"{budget_us:.0f} us", budget_us))
            result.append(Figure(f"{name}_report", reported_us, "us a call, began and ended", "5 us", 5.0))
    result += [
        Figure(f"balancing.split_{count}", _split_ms(count), "ms after a change", "100 ms", 100.0)
        for count in (20, 1_000)
    ]
    result.append(Figure("balancing.idle_bytes", _idle_bytes(PEERS // scale), "bytes an idle peer", "1 KiB", 1024.0))
    return result


def _instances(count: int) -> tuple[Instance, ...]:
    return tuple(Instance(service="billing", id=f"i{at:05}", url="http://10.0.0.1:7080") for at in range(count))


def _called(kind: str, there: tuple[Instance, ...]) -> SetAside:
    """Return a balancer that has called each instance."""
    balancer = balancer_of(kind)
    balancer.choose(there, session=None, chance=0.5, now=0.0)
    for at, each in enumerate(there):
        balancer.began(each.id, at * SECONDS)
        balancer.ended(each.id, (at + 1) * SECONDS, SECONDS, True)
    return balancer


def _costs(kind: str, there: tuple[Instance, ...], choices: int) -> tuple[float, float]:
    """Return the microseconds of a choice, and of the two reports of a call: medians of several rounds."""
    balancer = _called(kind, there)
    chance = random.Random(1)
    chances = [chance.random() for _ in range(choices)]
    names = [each.id for each in chance.choices(there, k=choices)]
    for _ in there:  # by speed, each is chosen once first
        balancer.choose(there, session=None, chance=0.5, now=60.0)
    chosen, reported = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for each in chances:
            balancer.choose(there, session="customer-7", chance=each, now=60.0)
        between = time.perf_counter()
        for name in names:
            balancer.began(name, 60.0)
            balancer.ended(name, 60.0 + SECONDS, SECONDS, True)
        chosen.append(between - began)
        reported.append(time.perf_counter() - between)
    return statistics.median(chosen) / choices * 1e6, statistics.median(reported) / choices * 1e6


def _split_ms(count: int) -> float:
    """Return the milliseconds of the first choice by session after the instances changed."""
    taken = []
    for _ in range(ROUNDS):
        there = _instances(count)
        balancer = Sticky()
        began = time.perf_counter()
        balancer.choose(there, session="customer-7", chance=0.5, now=0.0)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


def _idle_bytes(peers: int) -> float:
    """Return the bytes that are kept of each peer that was called once: statistics, and its place in the balancer."""
    there = _instances(peers)
    tracemalloc.start()
    balancer = _called("fastest", there)
    found = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(balancer.speeds) == peers
    return found / peers
