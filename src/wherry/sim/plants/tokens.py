"""Plants that accept tokens without a check, one for each place at which the token of a lease is checked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from wherry.broker.commit.shard import Shard
from wherry.core.decide import leasing, settling, staging
from wherry.core.state.lease import Lease, Leases
from wherry.sim.patch import patched


def without_upkeep(function: str) -> Any:
    """Skip the upkeep before a decision of this function, so that an expired lease still counts."""

    def make(upkeep: Any) -> Any:
        def skip(self: Shard, now: Any, about: Any = None) -> None:
            frame = sys._getframe(1)
            while frame is not None:
                if frame.f_code.co_qualname == function:
                    return
                frame = frame.f_back  # type: ignore[assignment]
            upkeep(self, now, about)

        return skip

    return patched(Shard, "upkeep", make)


@contextmanager
def any_offset() -> Iterator[None]:
    """Ignore offsets named under a token that its lease does not hold, instead of refusing them."""

    def make(rows_of: Any) -> Any:
        def all_of_it(lease: Lease, offsets: Any) -> Any:
            return rows_of(lease, None if offsets is None else offsets[np.isin(offsets, lease.offset)])

        return all_of_it

    with patched(settling, "rows_of", make), patched(staging, "rows_of", make):
        yield


@contextmanager
def any_token() -> Iterator[None]:
    """Take a token that was never given for the newest one."""

    def make(held: Any) -> Any:
        def newest(state: Any, token: int, consumer: str | None = None) -> Any:
            return state.leases.get(token) or (state.leases.all() or [held(state, token)])[-1]

        return newest

    with (
        patched(leasing, "held_lease", make),
        patched(staging, "held_lease", make),
    ):
        yield


def one_epoch() -> Any:
    """Begin tokens anew with each life of the broker, so that those of an earlier life are given again."""

    def make(begin: Any) -> Any:
        return lambda self, epoch: begin(self, 1)

    return patched(Leases, "__init__", make)


def half_a_stage() -> Any:
    """Commit a stage that lost its acks in a restart, without them."""
    return patched(staging, "_check_whole", lambda _: lambda stage: None)


TOKEN_PLANTS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "release revives": (partial(without_upkeep, "Settler.release"), ("release late",)),
    "renew revives": (partial(without_upkeep, "Settler.renew"), ("renew late",)),
    "stage ack revives": (partial(without_upkeep, "Settler.stage_ack"), ("stage ack late",)),
    "commit revives": (partial(without_upkeep, "PublishCalls.commit"), ("commit late",)),
    "any offset": (
        any_offset,
        ("ack foreign", "nack foreign", "dead letter foreign", "release foreign", "stage ack foreign"),
    ),
    "any token": (any_token, ("ack foreign", "ack earlier", "renew earlier")),
    "one epoch": (one_epoch, ("ack earlier", "renew earlier", "barrier")),
    "half a stage": (half_a_stage, ("commit next life",)),
}
"""A name, the plant, and the steps of the drill that must find it."""
