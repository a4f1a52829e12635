"""Open a shard: read the last checkpoint, the bodies it refers to and the journal after it, and write a barrier.

The journal is replayed by the same `apply` that serves live calls. Nothing is served before the barrier is durable.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from wherry.broker.clock import Clock
from wherry.broker.commit.shard import Shard
from wherry.core.apply.runs import is_plain
from wherry.core.state import snapshot
from wherry.core.state.state import State
from wherry.journal import checkpoint as checkpoints
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.store import BodyStore
from wherry.journal.checkpoint import Checkpoint
from wherry.journal.codec import UNREADABLE, Control, Packed, Undecodable, split
from wherry.journal.disk.files import Bytes, Files
from wherry.journal.engine import Engine
from wherry.model import ops
from wherry.model.errors import Corrupt
from wherry.model.ops import Entry
from wherry.model.row_batch import RowBatch

COPY_BYTES = 1 << 16
"""Smaller batches are copied out of the large block they were read in, so that they do not keep it alive."""

RUN_MAX = 4_096
RUN_BYTES_MAX = 4 << 20
"""Bounds of plain publishes that are applied together. Memory is freed between such runs."""


async def open_shard(engine: Engine, files: Files | None, store: BodyStore, clock: Clock, owner: str) -> Shard:
    """Open a shard and replay its journal to the end."""
    with _without_collection():
        return await _open_shard(engine, files, store, clock, owner)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Switch the garbage collector off: it would scan all that was read again and again, and find little garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


async def _open_shard(engine: Engine, files: Files | None, store: BodyStore, clock: Clock, owner: str) -> Shard:
    point: Checkpoint | None = None

    async def load_checkpoint() -> int:
        nonlocal point
        point = await checkpoints.newest(files) if files is not None else None
        return point.position if point is not None else 0

    writer = await engine.open(load_checkpoint)
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
    run: list[tuple[int, int, ops.Publish, Packed]] = []
    run_bytes = 0
    async for position, body in engine.read(point.floor if point is not None else 1):
        if first and position > reached + 1:
            raise Corrupt("journal", position, f"entries {reached + 1} to {position - 1} are missing")
        first = False
        control, packed = _split(position, body)
        if position <= reached:
            if bodies is not None:
                bodies.adopt(position, packed)
            continue
        if is_plain(shard.state, control.ops):
            run.append((position, control.at_us, control.ops[0], packed[0]))  # type: ignore[arg-type]
            run_bytes += len(body)
            if len(run) < RUN_MAX and run_bytes < RUN_BYTES_MAX:
                continue
            shard.replay_plain(run)
        else:
            if run:
                shard.replay_plain(run)
            shard.replay(position, Entry(control.at_us, control.ops, _unpacked(position, packed)))
        run, run_bytes = [], 0
        if shard.store.is_over() and shard.trouble is None:
            await _make_memory(shard)
    if run:
        shard.replay_plain(run)
    if bodies is not None:
        bodies.check()


async def _make_memory(shard: Shard) -> None:
    """Move bodies to segments; a full disk is no error here, since consuming frees space on it."""
    try:
        for group in shard.store.overflow(shard.writer.last):
            await shard.store.seal(group, shard.wanted)
    except OSError as fault:
        shard.trouble = fault


def _split(position: int, body: Bytes) -> tuple[Control, list[Packed]]:
    try:
        return split(body)
    except Undecodable as fault:
        raise _unreadable(position, fault) from None


def _unpacked(position: int, packed: list[Packed]) -> list[pa.RecordBatch | RowBatch]:
    try:
        batches = [each.unpack() for each in packed]
    except UNREADABLE as fault:
        raise _unreadable(position, fault) from None
    pairs = zip(batches, packed, strict=True)
    return [_copied(batch) if each.size < COPY_BYTES <= len(each.body) else batch for batch, each in pairs]


def _unreadable(position: int, fault: Exception) -> Corrupt:
    return Corrupt("journal", position, f"entry {position} cannot be read: {fault}")


def _copied(batch: pa.RecordBatch | RowBatch) -> pa.RecordBatch | RowBatch:
    """Return a batch that does not keep a large entry in memory; a row batch never does."""
    if isinstance(batch, RowBatch):
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


class _Bodies:
    """Bodies that the checkpoint expects in the journal: of waiting messages, and of open stages."""

    def __init__(self, shard: Shard, point: Checkpoint) -> None:
        self._shard = shard
        self._messages = {(row.position, row.batch_index): row for row in point.store.cached_rows()}
        self._staged = {(position, index): (key, part) for key, part, position, index in point.staged}

    def adopt(self, position: int, packed: list[Packed]) -> None:
        """Keep the bodies that are expected of one entry before the checkpoint."""
        for index, each in enumerate(packed):
            row = self._messages.pop((position, index), None)
            stage = self._staged.pop((position, index), None)
            if row is None and stage is None:
                continue
            (batch,) = _unpacked(position, [each])
            if row is not None:
                self._shard.store.put(
                    CachedBatch(row.topic, row.partition, row.base, batch, row.published_us, position, index, row.gate)
                )
            if stage is not None:
                key, part = stage
                parts = self._shard.state.stages.open[key].parts
                parts[part] = parts[part]._replace(batch=batch)
                self._shard.staged[key, part] = (position, index)

    def check(self) -> None:
        """Raise if a body that the checkpoint expects was not found."""
        for position, _ in (*self._messages, *self._staged):
            raise Corrupt("journal", position, f"entry {position}, which the checkpoint needs, is missing")


async def _remove_orphans(files: Files, store: BodyStore, point: Checkpoint | None) -> None:
    """Remove segments that no checkpoint names: their messages are in the journal."""
    used = store.segment_paths()
    orphans = [path for path in await files.list() if path.startswith("segments/") and path not in used]
    if orphans:
        await files.remove(orphans)
