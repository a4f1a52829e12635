"""Dead letters by reason: how many, since when, with which errors. Counts columns and reads no body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.state.state import TopicState
from wherry.model.calls.dead import DeadKind

Int64: TypeAlias = npt.NDArray[np.int64]

KINDS_MAX = 1_000
"""Kinds returned, the largest ones."""

ERRORS_MAX = 5
"""Errors returned for each kind, the most frequent ones."""


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one subscription (0: of none) in one partition, by offset."""

    subscription: int
    name: str
    partition: int
    rows: Int64
    """The columns of the table: the offset, then those of `DEAD`."""

    @property
    def offsets(self) -> Int64:
        """The offsets of the dead letters."""
        return self.rows[0]


def kinds(groups: list[DeadGroup], texts: Sequence[str]) -> list[DeadKind]:
    """Return the kinds of dead letters, the largest first. `texts` are those of the time of the selection.

    Reads no state, so that it can run in a thread: there may be a million rows to sort.
    """
    rows: dict[str, list[Int64]] = {}
    for group in groups:
        rows.setdefault(group.name, []).append(group.rows)
    found = [kind for name, parts in rows.items() for kind in _kinds(name, np.concatenate(parts, axis=1), texts)]
    return sorted(found, key=lambda kind: (-kind.count, kind.subscription, kind.reason))[:KINDS_MAX]


def _kinds(name: str, rows: Int64, texts: Sequence[str]) -> list[DeadKind]:
    died_ms, reasons, errors = rows[4], rows[6], rows[7]
    order = np.argsort(reasons, kind="stable")
    found = []
    for part in np.split(order, np.flatnonzero(np.diff(reasons[order])) + 1):
        numbers, counts = np.unique(errors[part], return_counts=True)
        most = np.argsort(-counts, kind="stable")[:ERRORS_MAX]
        found.append(
            DeadKind(
                name,
                texts[int(reasons[part[0]])],
                len(part),
                int(died_ms[part].min()),
                int(died_ms[part].max()),
                {texts[int(numbers[index])]: int(counts[index]) for index in most},
            )
        )
    return found


def room(topic: TopicState) -> int | None:
    """Return how many messages can be redriven before the topic is full; None if it has no bound."""
    most = topic.config.messages_max
    return None if most is None else max(0, most - topic.messages)
