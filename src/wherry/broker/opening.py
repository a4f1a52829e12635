"""Opening a broker: on a directory, or in memory."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from wherry.broker.broker import Broker
from wherry.broker.clock import Clock, SystemClock
from wherry.broker.commit.recovery import open_shard
from wherry.broker.upkeep import backfill
from wherry.broker.upkeep.housekeeping import CHECKPOINT_BYTES, Housekeeper
from wherry.journal.bodies import store
from wherry.journal.bodies.segments.reading import READ_BYTES_MAX
from wherry.journal.bodies.store import BodyStore
from wherry.journal.disk.disk import DiskEngine
from wherry.journal.disk.files import Files
from wherry.journal.disk.real_files import RealFiles
from wherry.journal.engine import Engine
from wherry.journal.memory import MemoryEngine
from wherry.model import check
from wherry.model.errors import InvalidInput

CACHE_BYTES_DEFAULT = store.CACHE_BYTES_MAX
"""Memory for recent messages where the caller of `open` gives no other number."""


@asynccontextmanager
async def open(  # noqa: A001  `wherry.open` is the name people look for
    path: str | os.PathLike[str] | None = None,
    *,
    clock: Clock | None = None,
    cache_bytes: int = CACHE_BYTES_DEFAULT,
) -> AsyncIterator[Broker]:
    """Open a broker on a directory, which is created if need be; without a path, a broker in memory.

    Parameters
    ----------
    path
        The directory. One process at a time may have it open.
    clock
        Time and entropy; the machine's by default.
    cache_bytes
        Memory for recent messages; older ones that still wait are moved to segment files.

    Examples
    --------
    >>> async def main():
    ...     async with wherry.open("data") as broker:
    ...         await broker.create_topic("jobs")
    ...         await broker.publish("jobs", [b"hello"])
    """
    check.integer("cache_bytes", cache_bytes, 1 << 20, 1 << 44)
    files: Files | None = None
    engine: Engine
    if path is None:
        engine = MemoryEngine()
    else:
        files = RealFiles(_directory(path))
        engine = DiskEngine(files)
    broker = await start(engine, files, clock or SystemClock(), cache_bytes=cache_bytes)
    try:
        yield broker
    finally:
        await broker.close()


def _directory(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidInput("path", path, "a directory, or None for a broker in memory")
    root = Path(path)
    if root.exists() and not root.is_dir():
        raise InvalidInput("path", str(path), "a directory, not a file")
    return root


async def start(
    engine: Engine,
    files: Files | None,
    clock: Clock,
    *,
    cache_bytes: int = CACHE_BYTES_DEFAULT,
    read_bytes: int = READ_BYTES_MAX,
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    owner: str | None = None,
) -> Broker:
    """Start a broker over any engine: what `open`, the simulator and tests share."""
    store = BodyStore(files, cache_bytes_max=cache_bytes, read_bytes_max=read_bytes)
    shard = await open_shard(engine, files, store, clock, owner or f"{socket.gethostname()}:{os.getpid()}")
    broker = Broker(shard, Housekeeper(shard, checkpoint_bytes))
    try:
        for subscription in list(shard.state.subscriptions.values()):
            await backfill.run(shard, subscription)
    except BaseException:
        await broker.close()
        raise
    return broker
