"""Decide which peers of a `flow` topic are cut off, so that a publish flows although they do not read.

What the subscriptions of this node keep counts for a refusal; what is kept for peers alone does not, nor what is kept
for nobody yet. A peer that is cut off loses what it has not read, as beyond the bound that it declared itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.state.partition import Partition
from wherry.core.state.reader import Reader
from wherry.core.state.state import SubscriptionState, TopicState

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

FULL = "the topic was full of what only peers had not read"
"""Why a peer was cut off by a publish."""


class Left(NamedTuple):
    """What counts against the bounds of a topic without the peers that are cut off, and whether anybody is left."""

    cut_off: list[SubscriptionState]
    messages: int
    bytes: int
    is_read: bool
    """Whether a durable subscription is left; without one, messages wait for the next one."""


class _Unfinished(NamedTuple):
    """The messages of a partition that count, and which of them are kept so far."""

    partition: Partition
    offsets: Int64
    kept: Mask


def without_peers(topic: TopicState, messages_max: int, bytes_max: int) -> Left | None:
    """Return what is left when the peers furthest behind are cut off, as few as needed; None if that does not help.

    The bounds are those for what is left: the new messages have to fit beside it.
    """
    if topic.is_stream():  # what is there is kept by age or size, whoever has read it
        return None
    durable = [each for each in topic.subscriptions.values() if each.config.durable]
    if not durable:
        return Left([], topic.messages, topic.bytes, is_read=False)
    own = [each for each in durable if each.config.peer is None]
    behind = {each.number: each.behind() for each in durable}
    # Asked with each refusal, so answered without a look at the messages where one subscription keeps them all.
    if any(behind[each.number] >= topic.messages for each in own):
        return None
    found = [
        _Unfinished(part, offsets, np.zeros(len(offsets), np.bool_))
        for part in topic.partitions.values()
        if len(offsets := part.finished.missing(0, part.next_offset))
    ]
    stays = list(own)
    for each in own:
        _keep(each, found)
    left = _left(topic, found, stays)
    if own and not _fits(left, messages_max, bytes_max):
        return None
    peers = sorted((each for each in durable if each.config.peer is not None), key=lambda each: behind[each.number])
    for at, peer in enumerate(peers):
        _keep(peer, found)
        more = _left(topic, found, [*stays, peer])
        if not _fits(more, messages_max, bytes_max):
            return Left(peers[at:], *left, is_read=bool(stays))
        left = more
        stays.append(peer)
    return Left([], *left, is_read=bool(stays))


def read_by_ephemerals(partition: Partition, offsets: Int64) -> Int64:
    """Return the messages that no ephemeral subscription has still to read."""
    for reader in partition.ephemeral.values():
        offsets = offsets[reader.settled.contains(offsets)]
    return offsets


def _keep(subscription: SubscriptionState, found: list[_Unfinished]) -> None:
    """Mark what a subscription keeps."""
    for each in found:
        reader = subscription.readers.get(each.partition.number)
        if reader is not None:
            np.logical_or(each.kept, ~_done(reader, each.offsets), out=each.kept)


def _done(reader: Reader, offsets: Int64) -> Mask:
    done = reader.settled.contains(offsets)
    return done | reader.dead.has(offsets) if len(reader.dead) else done


def _left(topic: TopicState, found: list[_Unfinished], stays: Iterable[SubscriptionState]) -> tuple[int, int]:
    """Return the messages and bytes that count while only these subscriptions stay; of none, everything counts."""
    readers = [each.readers for each in stays]
    if not readers:
        return topic.messages, topic.bytes
    messages = sum(int(each.kept.sum()) for each in found)
    size = topic.bytes - sum(each.partition.directory.bytes_of(each.offsets[~each.kept]) for each in found)
    if topic.config.counted == "all" or messages == 0:
        return messages, size
    held = sum(
        max((len(of[each.partition.number].leased) for of in readers if each.partition.number in of), default=0)
        for each in found
    )
    waiting = max(0, messages - held)
    return waiting, size * waiting // messages


def _fits(left: tuple[int, int], messages_max: int, bytes_max: int) -> bool:
    return left[0] <= messages_max and left[1] <= bytes_max
