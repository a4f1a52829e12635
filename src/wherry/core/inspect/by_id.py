"""One message, by its id: where it is, and what became of it."""

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
    """Where a message is."""

    partition: int
    offset: int


def default_place(topic: TopicState, message_id: str) -> Found | None:
    """Where a default id points to, whether the message is still there or not."""
    default = _DEFAULT_ID.fullmatch(message_id)
    if default is None or int(default[2]) >= topic.next_offset(int(default[1])):
        return None
    return Found(int(default[1]), int(default[2]))


def find(state: State, topic: TopicState, message_id: str) -> Found:
    """The message with an id, its own or the default one; `NotFound` if it is not in the topic. May raise `Cold`."""
    check.name("id", message_id, limits.MESSAGE_ID_BYTES_MAX)
    place = default_place(topic, message_id)
    if place is not None and place.offset not in topic.partitions[place.partition].released:
        return place
    rank = ranks_of(np.array([hash_text(message_id)], np.uint64))
    _, places = topic.ids.find(rank)
    for index, text in candidates(state, topic, np.arange(len(places), dtype=np.int64), places):
        if text == message_id:
            return Found(*PackedOffset.unpack(int(places[index])))
    raise NotFound("message", message_id)


def candidates(state: State, topic: TopicState, rows: Int64, places: Int64) -> list[tuple[int, str]]:
    """Rows with the real id of each candidate place that is still in the topic."""
    found: list[tuple[int, str]] = []
    numbers, offsets = places >> PARTITION_SHIFT, places & ((1 << PARTITION_SHIFT) - 1)
    for number in distinct(numbers).tolist():
        mine = np.flatnonzero(numbers == number)
        mine = mine[~topic.partitions[number].released.contains(offsets[mine])]
        bodies = state.bodies.take(topic.number, number, offsets[mine], ("id",))
        found += zip(rows[mine].tolist(), bodies.column("id").to_pylist(), strict=True)
    return found


def fate_of(state: State, topic: TopicState, message_id: str, now_ms: int) -> Fate:
    """What became of one message, by its id; by its default one also when it is gone. `NotFound`; may raise `Cold`."""
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
        place = default_place(topic, message_id)
        if place is None:
            raise
        return place
