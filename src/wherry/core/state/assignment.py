"""Which consumer pulls from which partition, as consumers join and leave.

A strategy gets every join and leave, and returns the partitions of a consumer, most preferred first. A join or leave
costs as much as it moves, whatever the number of consumers: a million consumers may join one by one. Strategies are
found by name; `register` adds one.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Collection
from typing import Protocol, TypeAlias

from wherry.model.catalog.subscription import ASSIGNMENTS
from wherry.model.errors import InvalidInput


class Strategy(Protocol):
    """How partitions are divided among consumers.

    A join moves partitions from other consumers to the new one only. A leave gives the partitions of the leaving
    consumer to others.
    """

    helps: bool
    """Whether an idle consumer may also pull from a lagging partition of another consumer."""

    rotates: bool
    """Whether a consumer of a fifo begins each pull at the next of its partitions; else at the most preferred one."""

    def join(self, consumer: str) -> None: ...

    def leave(self, consumer: str) -> None: ...

    def of(self, consumer: str) -> Collection[int]:
        """Return the partitions of one consumer, most preferred first."""


class Ordered:
    """Each partition has one owner; the numbers of partitions differ by one at most; extra consumers stand by.

    With one consumer per partition, messages of a partition are processed in their order.
    """

    helps = False
    rotates = True

    def __init__(self, partitions: int) -> None:
        self._owned: dict[str, dict[int, None]] = {}
        self._owner: dict[int, str] = {}
        self._free = list(range(partitions - 1, -1, -1))
        self._standby: dict[str, None] = {}
        self._most: list[tuple[int, str]] = []  # heaps of (share, consumer); outdated rows are skipped
        self._fewest: list[tuple[int, str]] = []
        self._partitions = partitions

    def join(self, consumer: str) -> None:
        """Give a new consumer its share: free partitions, else some of the consumers that have the most."""
        if len(self._owned) >= self._partitions:
            self._standby[consumer] = None
            return
        self._owned[consumer] = {}
        share = self._partitions // len(self._owned)
        while self._free and (len(self._owned[consumer]) < share or len(self._owned) == 1):
            self._give(self._free.pop(), consumer)
        while len(self._owned[consumer]) < share:
            richest = self._extreme(self._most, -1)
            self._give(self._owned[richest].popitem()[0], consumer)
            self._note(richest)
        self._note(consumer)

    def leave(self, consumer: str) -> None:
        """Give the partitions of a consumer that leaves to a standby, else one by one to those that have the fewest."""
        self._standby.pop(consumer, None)
        orphans = self._owned.pop(consumer, None)
        if orphans is None:
            return
        if self._standby:
            replacement = next(iter(self._standby))
            del self._standby[replacement]
            self._owned[replacement] = orphans
            self._owner.update(dict.fromkeys(orphans, replacement))
            self._note(replacement)
        elif not self._owned:
            self._free = sorted(orphans, reverse=True)
            self._owner.clear()
        else:
            for partition in orphans:
                poorest = self._extreme(self._fewest, 1)
                self._give(partition, poorest)
                self._note(poorest)

    def of(self, consumer: str) -> Collection[int]:
        """See `Strategy`."""
        return self._owned.get(consumer, ())

    def owner(self, partition: int) -> str | None:
        """Return the consumer that owns a partition."""
        return self._owner.get(partition)

    def _give(self, partition: int, consumer: str) -> None:
        self._owned[consumer][partition] = None
        self._owner[partition] = consumer

    def _note(self, consumer: str) -> None:
        share = len(self._owned[consumer])
        heapq.heappush(self._most, (-share, consumer))
        heapq.heappush(self._fewest, (share, consumer))
        if len(self._most) + len(self._fewest) > 8 * len(self._owned) + 64:  # most rows are outdated: rebuild
            self._most = [(-len(owned), name) for name, owned in self._owned.items()]
            self._fewest = [(len(owned), name) for name, owned in self._owned.items()]
            heapq.heapify(self._most)
            heapq.heapify(self._fewest)

    def _extreme(self, heap: list[tuple[int, str]], sign: int) -> str:
        while True:
            share, consumer = heap[0]
            if consumer in self._owned and len(self._owned[consumer]) == share * sign:
                return consumer
            heapq.heappop(heap)


class Balanced:
    """Owners as in `Ordered`. Extra consumers help with one partition each, idle consumers with the most lagging one.

    This is the competing-consumers queue: no consumer is without work while messages wait.
    """

    helps = True
    rotates = True

    def __init__(self, partitions: int) -> None:
        self._owners = Ordered(partitions)
        self._partitions = partitions
        self._helping: dict[str, int] = {}
        self._turn = 0

    def join(self, consumer: str) -> None:
        """See `Strategy`."""
        self._owners.join(consumer)
        if not self._owners.of(consumer):
            self._helping[consumer] = self._turn % self._partitions
            self._turn += 1

    def leave(self, consumer: str) -> None:
        """See `Strategy`."""
        self._owners.leave(consumer)
        self._helping.pop(consumer, None)

    def of(self, consumer: str) -> Collection[int]:
        """See `Strategy`."""
        owned = self._owners.of(consumer)
        if owned:
            return owned
        helped = self._helping.get(consumer)
        return () if helped is None else (helped,)


class Shared:
    """Every consumer pulls from every partition."""

    helps = False
    rotates = True

    def __init__(self, partitions: int) -> None:
        self._all = range(partitions)
        self._consumers: dict[str, None] = {}

    def join(self, consumer: str) -> None:
        """See `Strategy`."""
        self._consumers[consumer] = None

    def leave(self, consumer: str) -> None:
        """See `Strategy`."""
        self._consumers.pop(consumer, None)

    def of(self, consumer: str) -> Collection[int]:
        """See `Strategy`."""
        return self._all if consumer in self._consumers else ()


class Exclusive(Shared):
    """The first consumer has all partitions; the next one takes over when the first leaves."""

    def of(self, consumer: str) -> Collection[int]:
        """See `Strategy`."""
        return self._all if consumer == self.owner(0) else ()

    def owner(self, partition: int) -> str | None:
        """Return the consumer that owns a partition."""
        return next(iter(self._consumers), None)


def owner(strategy: Strategy, partition: int) -> str | None:
    """Return the only consumer that may pull from a partition; None if there may be several."""
    return strategy.owner(partition) if isinstance(strategy, Ordered | Exclusive) else None


Factory: TypeAlias = Callable[[int], Strategy]

_STRATEGIES: dict[str, Factory] = {
    "balanced": Balanced,
    "ordered": Ordered,
    "shared": Shared,
    "exclusive": Exclusive,
}


ASSIGNMENTS.extend(sorted(_STRATEGIES))


def register(name: str, factory: Factory) -> None:
    """Add a strategy: `factory(partitions)` makes one for each subscription whose assignment is `name`."""
    if name in _STRATEGIES:
        raise InvalidInput("assignment", name, "a name that is not taken: " + ", ".join(ASSIGNMENTS))
    _STRATEGIES[name] = factory
    insort(ASSIGNMENTS, name)


def make(name: str, partitions: int) -> Strategy:
    """Return a new strategy by name, or raise `InvalidInput`."""
    factory = _STRATEGIES.get(name)
    if factory is None:
        raise InvalidInput("assignment", name, "one of " + ", ".join(ASSIGNMENTS))
    return factory(partitions)
