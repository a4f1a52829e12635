"""One message by its id: where it is, and what became of it."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.hashing import hash_text, ranks_of
from wherry.core.index.ids import PARTITION_SHIFT, PackedOffset
from wherry.core.index.offsets import distinct
from wherry.core.state import fates
from wherry.core.state.state import State, TopicState
from wherry.model import check, limits
from wherry.model.calls.fate import FATES, Fate
from wherry.model.errors import NotFound

Int64: TypeAlias = npt.NDArray[np.int64]

_DEFAULT_ID = re.compile(r"([0-9]{1,5})-([0-9]{1,13})")


class Found(NamedTuple):
    """The partition and the offset of a message."""

    partition: int
    offset: int


def locate_default_id(topic: TopicState, message_id: str) -> Found | None:
    """Return where a default id points to, whether the message is still there or not."""
    default = _DEFAULT_ID.fullmatch(message_id)
    if default is None or int(default[2]) >= topic.next_offset(int(default[1])):
        return None
    return Found(int(default[1]), int(default[2]))


def find(state: State, topic: TopicState, message_id: str) -> Found:
    """Return where the message with an id (its own or the default one) is, or raise `NotFound`. May raise `Cold`."""
    check.name("id", message_id, limits.MESSAGE_ID_BYTES_MAX)
    found = locate_default_id(topic, message_id)
    if found is not None and found.offset not in topic.partitions[found.partition].released:
        return found
    rank = ranks_of(np.array([hash_text(message_id)], np.uint64))
    _, packed = topic.ids.find(rank)
    for index, text in candidates(state, topic, np.arange(len(packed), dtype=np.int64), packed):
        if text == message_id:
            return Found(*PackedOffset.unpack(int(packed[index])))
    raise NotFound("message", message_id)


def candidates(state: State, topic: TopicState, rows: Int64, packed: Int64) -> list[tuple[int, str]]:
    """Return the rows, with the id read from the body, of each candidate that is still in the topic."""
    found: list[tuple[int, str]] = []
    numbers, offsets = packed >> PARTITION_SHIFT, packed & ((1 << PARTITION_SHIFT) - 1)
    for number in distinct(numbers).tolist():
        mine = np.flatnonzero(numbers == number)
        mine = mine[~topic.partitions[number].released.contains(offsets[mine])]
        bodies = state.bodies.take(topic.number, number, offsets[mine], ("id",))
        found += zip(rows[mine].tolist(), bodies.column("id").to_pylist(), strict=True)
    return found


def fate_of(state: State, topic: TopicState, message_id: str, now_ms: int) -> Fate:
    """Return what became of one message. Raises `NotFound`; may raise `Cold`.

    A message with a default id is found by that id even after it is gone.
    """
    found = _found(state, topic, message_id)
    partition = topic.partitions[found.partition]
    at = fates.replacements(partition, np.array([found.offset], np.int64))
    fate = FATES[int(fates.fates(state, topic, found.partition, at, now_ms)[0])]
    certain = int(partition.ends.get(at, "why", 0)[0]) == 0 and fate != "gone"
    states: dict[str, str] = {}
    for subscription in topic.subscriptions.values():
        reader = subscription.readers.get(found.partition)
        if reader is None or at[0] < reader.start:
            continue
        stands = reader.state_of(int(at[0]), now_ms)
        if certain or stands != "settled":
            states[subscription.config.name] = fate if fate == "scheduled" and stands == "waiting" else stands
    return Fate(fate, dict(sorted(states.items())))


def _found(state: State, topic: TopicState, message_id: str) -> Found:
    try:
        return find(state, topic, message_id)
    except NotFound:
        found = locate_default_id(topic, message_id)
        if found is None:
            raise
        return found
