"""Opening a shard: the last checkpoint, the bodies it refers to, the journal after it, and a barrier.

The same `apply` that served live replays the journal. Nothing is served before the barrier is durable.
"""

from __future__ import annotations

import pyarrow as pa

from wherry.broker.clock import Clock
from wherry.broker.shard import Shard
from wherry.core import snapshot
from wherry.core.state import State
from wherry.journal import checkpoint as checkpoints
from wherry.journal.checkpoint import Checkpoint
from wherry.journal.codec import Undecodable, decode
from wherry.journal.engine import Engine, Record
from wherry.journal.files import Files
from wherry.journal.shelf import Cached
from wherry.journal.store import Store
from wherry.model import ops
from wherry.model.errors import Corrupt
from wherry.model.ops import Entry

COPY_BYTES = 1 << 16
"""Batches below this are copied out of the large block they were read in, so that they do not keep it alive."""


async def open_shard(engine: Engine, files: Files | None, store: Store, clock: Clock, owner: str) -> Shard:
    """Take a shard and bring it to where its journal ends."""
    point: Checkpoint | None = None

    async def vouched() -> int:
        nonlocal point
        point = await checkpoints.newest(files) if files is not None else None
        return point.position if point is not None else 0

    writer = await engine.open(vouched)
    try:
        state = State(store)
        shard = Shard(state, store, writer, files, clock)
        if point is not None:
            snapshot.load(state, point.state)
            store.load_segments(point.store)
            shard.checkpointed = point.position
        await _replay(shard, engine, point)
        if files is not None:
            await _remove_orphans(files, store, point)
        position = shard.commit([Entry(clock.wall_us(), [ops.Opened(state.epoch + 1, owner)])])
        shard.opened_at = position
        await shard.committer.wait(position)
    except BaseException:
        await writer.close()
        raise
    return shard


async def _replay(shard: Shard, engine: Engine, point: Checkpoint | None) -> None:
    reached = point.position if point is not None else 0
    bodies = _Bodies(shard, point) if point is not None else None
    first = True
    expected = reached + 1
    async for record in engine.read(point.floor if point is not None else 1):
        if first and record.position > expected:
            raise Corrupt("journal", record.position, f"entries {expected} to {record.position - 1} are missing")
        first = False
        entry = _decoded(record)
        if record.position <= reached:
            if bodies is not None:
                bodies.adopt(record.position, entry)
            continue
        shard.replay(record.position, entry)
        expected = record.position + 1
        if shard.store.is_over() and shard.trouble is None:
            await _make_memory(shard)
    if bodies is not None:
        bodies.check()


async def _make_memory(shard: Shard) -> None:
    """A disk that is full is no reason not to open: consuming is what makes it emptier. Memory then holds the rest."""
    try:
        for group in shard.store.overflow(shard.writer.last):
            await shard.store.seal(group, shard.wanted)
    except OSError as fault:
        shard.trouble = fault


def _decoded(record: Record) -> Entry:
    try:
        entry = decode(record.body)
    except Undecodable as fault:
        raise Corrupt("journal", record.position, f"entry {record.position} cannot be read: {fault}") from None
    small = [batch.nbytes < COPY_BYTES for batch in entry.batches]
    if any(small):
        entry.batches = [_copied(b) if is_small else b for b, is_small in zip(entry.batches, small, strict=True)]
    return entry


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


class _Bodies:
    """Bodies that the checkpoint expects from the journal: of waiting messages, and of open stages."""

    def __init__(self, shard: Shard, point: Checkpoint) -> None:
        self._shard = shard
        self._messages: dict[tuple[int, int], tuple[int, ...]] = {}
        for row in point.store.cached.reshape(-1, 7).tolist():
            self._messages[row[4], row[5]] = tuple(row)
        self._staged = {(position, index): (key, part) for key, part, position, index in point.staged}

    def adopt(self, position: int, entry: Entry) -> None:
        """Take what is wanted from one entry before the checkpoint."""
        for index, batch in enumerate(entry.batches):
            row = self._messages.pop((position, index), None)
            if row is not None:
                topic, partition, base, published_us, _, _, gate = row
                self._shard.store.put(Cached(topic, partition, base, batch, published_us, position, index, gate, 0))
            stage = self._staged.pop((position, index), None)
            if stage is not None:
                key, part = stage
                parts = self._shard.state.stages.open[key].parts
                parts[part] = parts[part]._replace(batch=batch)
                self._shard.staged[key, part] = (position, index)

    def check(self) -> None:
        """Nothing that the checkpoint expects may be missing."""
        for position, _ in (*self._messages, *self._staged):
            raise Corrupt("journal", position, f"entry {position}, which the checkpoint needs, is missing")


async def _remove_orphans(files: Files, store: Store, point: Checkpoint | None) -> None:
    """Segments that were written and never made it into a checkpoint: their messages are in the journal."""
    used = store.segment_paths()
    orphans = [path for path in await files.list() if path.startswith("segments/") and path not in used]
    if orphans:
        await files.remove(orphans)
