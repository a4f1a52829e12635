"""Forwards messages as they expire: reads them in memory, and asks the layer above for the copies to publish."""

from __future__ import annotations

from collections.abc import Sequence

from wherry.broker.commit.room import ENTRY_HEAD_BYTES
from wherry.broker.commit.shard import Shard
from wherry.core.state.state import TopicState
from wherry.model.calls.dead import COPIED, CopyCall, DeadCopy, DeadRow


class ExpiryForwarder:
    """Makes the copies of messages that expire by a call of the layer above. Implements `Forwarder` for the core."""

    def __init__(self, shard: Shard, call: CopyCall, by: str) -> None:
        self._shard, self._call = shard, call
        self.by = by

    def copies(self, topic: TopicState, partition: int, offsets: Sequence[int], died_ms: int) -> list[DeadCopy] | None:
        """See `Forwarder`. A message on disk is a dead letter first: nothing is read from the disk here."""
        rows = list[DeadRow]()
        for offset in offsets:
            values = self._shard.store.values(topic.number, partition, offset, COPIED)
            if values is None:
                return None
            payload, envelope, headers, identity = values
            rows.append(DeadRow(offset, payload, envelope, headers, identity, "expired", died_ms))
        return self._call(topic.config.name, rows)

    def has_room(self, size: int) -> bool:
        """See `Forwarder`."""
        shard = self._shard
        if shard.files is None and shard.store.cached_bytes + size > shard.store.cache_bytes_max:
            return False
        fits = size <= shard.writer.entry_bytes_max - ENTRY_HEAD_BYTES
        return fits and shard.takes_messages() and shard.room.left(size, 1, essential=False) is None
