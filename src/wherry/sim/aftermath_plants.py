"""Bugs planted for what is tried after a run, see `aftermath`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wherry.broker.housekeeping import Housekeeper
from wherry.core import settling
from wherry.journal.disk_writer import DiskWriter
from wherry.journal.reserve import Reserve
from wherry.sim.patch import patched


def never_reclaim() -> Any:
    """A publish that finds no room is refused, and nobody writes a checkpoint for its sake."""
    return patched(Housekeeper, "_gain", lambda _: lambda self: 0)


def set_nothing_aside() -> Any:
    """The space for a checkpoint is merely what is free, and others take it."""

    def make(_: Any) -> Any:
        async def nothing(self: Reserve, size: int = 0) -> None:
            return None

        return nothing

    return patched(Reserve, "keep", make)


def keep_the_only_file() -> Any:
    """A journal of one file stays full, whatever of it is needed."""
    return patched(DiskWriter, "_begins_again", lambda _: lambda self, before: False)


def keep_the_credit() -> Any:
    """A pull that is given up gives its messages back, and not its credit."""
    return patched(settling, "take_back", lambda _: lambda state, token: settling.release(state, token, None))


AFTERMATH_PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "never reclaim": (never_reclaim, 1, ("full_disk",)),
    "set nothing aside": (set_nothing_aside, 0, ("full_disk", "aftermath")),
    "keep the only file": (keep_the_only_file, 1, ("full_disk", "aftermath")),
    "keep the credit": (keep_the_credit, 0, ("credit",)),
}
