"""Planted bugs where messages expire in rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wherry.broker.commit import shard
from wherry.broker.commit.room import JournalRoom
from wherry.core.decide import removing, upkeep
from wherry.sim.patch import patched


@contextmanager
def wait_for_the_round() -> Iterator[None]:
    """Have the topics of a decision expire only with the round: a pull before the round gets expired messages.

    Rounds are ten minutes apart, since few pulls come within the milliseconds between two rounds.
    """

    def make(due: Any) -> Any:
        def later(state: Any, now: Any, entropy: Any, room: Any, about: Any, forwarder: Any) -> Any:
            return due(state, now, entropy, room, None if about is None else (), forwarder)

        return later

    far = [patched(shard, name, lambda _: 600_000) for name in ("ROUND_MIN_MS", "ROUND_MS")]
    with far[0], far[1], patched(upkeep, "due", make):
        yield


def forget_beyond_the_bound() -> Any:
    """Take one partition into a round, and forget that others are due."""

    def make(gathered: Any) -> Any:
        def first(state: Any, places: Any, now_ms: int, most: int) -> Any:
            while len(places) > 1:
                state.expiry_times.forget(*places.pop())
            return gathered(state, places, now_ms, most)

        return first

    return patched(upkeep, "gathered", make)


def keep_for_others() -> Any:
    """Let a message that one subscription holds as it expires wait for the other subscriptions."""
    return patched(removing, "_withdrawal_ops", lambda _: lambda *_: [])


def expire_without_room() -> Any:
    """Journal what has expired in one entry, whether the entry fits or not."""
    return patched(JournalRoom, "admits_expiry", lambda _: lambda self, size: True)


EXPIRY_PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "wait for the round": (wait_for_the_round, 0, ("nothing_expired",)),
    "forget beyond the bound": (forget_beyond_the_bound, 0, ("nothing_expired",)),
    "keep for others what one holds": (keep_for_others, 85, ("nothing_expired",)),
    "expire without room": (expire_without_room, 4, ("aftermath", "full_disk", "DiskFull", "TooLarge")),
}
