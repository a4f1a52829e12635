"""Planted bugs for the checks at the end of a run, see `aftermath`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from wherry.broker.upkeep import backfill
from wherry.broker.upkeep.housekeeping import Housekeeper
from wherry.core.apply import catalog
from wherry.core.decide import settling
from wherry.journal.disk.reserve import SpaceReserve
from wherry.journal.disk.writer import DiskWriter
from wherry.model import ops
from wherry.sim.patch import patched


def never_reclaim() -> Any:
    """Refuse a publish that finds no room, without a checkpoint to make room."""
    return patched(Housekeeper, "_gain", lambda _: lambda self: 0)


def set_nothing_aside() -> Any:
    """Reserve no space for a checkpoint, so that other files take it."""

    def make(_: Any) -> Any:
        async def nothing(self: SpaceReserve, size: int = 0) -> None:
            return None

        return nothing

    return patched(SpaceReserve, "keep", make)


def keep_the_only_file() -> Any:
    """Never begin the only journal file again, even if nothing in it is needed."""
    return patched(DiskWriter, "_begins_again", lambda _: lambda self, before: False)


def keep_the_credit() -> Any:
    """Keep the credit of a cancelled pull, and return only its messages."""
    return patched(settling, "take_back", lambda _: lambda state, lease: settling.release(state, lease, None))


@contextmanager
def journal_what_is_in_memory() -> Iterator[None]:
    """Journal the ranks of transient messages too, when a late subscription admits them."""

    def make(_: Any) -> Any:
        return lambda state, at_us, steps: [ops.Entry(at_us, list(steps))]

    def trusting(_: Any) -> Any:
        return lambda partition, reader, offset: np.ones(len(offset), np.bool_)

    with patched(backfill, "separate", make), patched(catalog, "_known", trusting):
        yield


AFTERMATH_PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "never reclaim": (never_reclaim, 22, ("full_disk",)),
    "set nothing aside": (set_nothing_aside, 0, ("full_disk", "aftermath")),
    "keep the only file": (keep_the_only_file, 1, ("full_disk", "aftermath")),
    "keep the credit": (keep_the_credit, 0, ("credit",)),
    "journal what is in memory": (journal_what_is_in_memory, 0, ("late", "aftermath", "audit")),
}
