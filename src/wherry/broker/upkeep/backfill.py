"""Backfill of a late subscription in a ranked topic: older messages get their place in its order.

Their ranks and due times are in their bodies, which may be on disk; replay must not need them, so they are written
into `Admit` operations, block by block. A restart goes on where the last block ended.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.broker.commit.shard import Shard
from wherry.core.decide.leasing import Now
from wherry.core.decide.volatile import separate
from wherry.core.state.reader import Reader
from wherry.core.state.state import SubscriptionState
from wherry.model import ops
from wherry.model.catalog.topic import Order
from wherry.model.limits import PRIORITY_DEFAULT
from wherry.model.ops import Entry, to_ranges
from wherry.model.schema import integers

Int64: TypeAlias = npt.NDArray[np.int64]

BLOCK = 8_192


async def run(shard: Shard, subscription: SubscriptionState) -> None:
    """Admit all messages that were there before the subscription."""
    for number, reader in list(subscription.readers.items()):
        while reader.backlog is not None and subscription.number in shard.state.subscriptions:
            position = await _admit_block(shard, subscription, number, reader)
            await shard.committer.wait(position)


async def _admit_block(shard: Shard, subscription: SubscriptionState, number: int, reader: Reader) -> int:
    def choose(now: Now) -> tuple[list[Entry], None]:
        if reader.backlog is None or subscription.number not in shard.state.subscriptions:
            return [], None
        start, end = reader.backlog
        stop = min(start + BLOCK, end)
        offset = subscription.topic.partitions[number].present(reader.settled.missing(start, stop))
        batch = shard.store.messages(subscription.topic.number, number, offset)
        due = integers(batch, "due", -1)
        rank = _ranks(subscription.topic.config.order, offset, batch, due)
        op = ops.Admit(subscription.number, number, stop, to_ranges(offset), rank, due)
        return separate(shard.state, now.wall_us, [op]), None

    position, _ = await shard.decide(choose)
    return position


def _ranks(order: Order, offset: Int64, batch: pa.RecordBatch, due: Int64) -> Int64:
    """Return the ranks that messages would have had if the subscription had been there before them."""
    if order == "fifo":
        return offset
    if order == "priority":
        return integers(batch, "priority", PRIORITY_DEFAULT)
    return np.where(due >= 0, due, integers(batch, "published", 0) // 1000)
