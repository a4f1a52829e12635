"""Makes `entries_v1/`, `entries_v1_added/`, `checkpoint_v2` and `segment_v1.arrow` as version 1 first wrote them.

Run once for each version. `checkpoint_v1` has the same state with directories as int64 columns, as they were at first.

PYTHONPATH=src:. python tests/golden/make_entries_v1.py

Until version 1 is released it may be run again after a change of the format; from then on the files never change.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.golden.entries_v1 import ADDED, AT_US, ENTRIES, MESSAGES, PLAIN, WHOLE
from wherry.core.apply.apply import apply
from wherry.core.state import snapshot
from wherry.core.state.state import State
from wherry.journal import checkpoint, codec
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.segments import segment
from wherry.journal.bodies.segments.segment import Segment
from wherry.journal.bodies.store import BodyStore
from wherry.journal.checkpoint import Checkpoint
from wherry.journal.disk.real_files import RealFiles
from wherry.model import ops
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.ops import Entry
from wherry.model.schema import expand, presence

HERE = Path(__file__).parent
FOLDER = HERE / "entries_v1"
ADDED_FOLDER = HERE / "entries_v1_added"
CHECKPOINT = HERE / "checkpoint_v2"
CHECKPOINTS = [HERE / "checkpoint_v1", CHECKPOINT]
SEGMENT = HERE / "segment_v1.arrow"


def entry_bytes(entry: Entry) -> bytes:
    parts, _, _ = codec.encode(entry)
    return b"".join(parts)


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


STEPS = [
    Entry(AT_US, [ops.Opened(1, "host:1")]),
    Entry(
        AT_US, [ops.PutTopic(1, Topic(name="fifo", partitions=2)), ops.PutTopic(2, Topic(name="p", order="priority"))]
    ),
    Entry(AT_US, [ops.PutSubscription(3, 1, Subscription(topic="fifo", name="a", key_order=True), column(0))]),
    Entry(AT_US, [ops.PutSubscription(4, 2, Subscription(topic="p", name="b"), column(0))]),
    Entry(AT_US, [ops.PutRoute(ENTRIES["route"].ops[0].route)]),  # type: ignore[union-attr, arg-type]
    Entry(AT_US + 1, [ops.Publish(1, 0, 0, 3, presence(PLAIN), 11)], [PLAIN]),
    Entry(AT_US + 2, [ops.Publish(1, 1, 0, 2, presence(MESSAGES), 11)], [MESSAGES]),
    Entry(
        AT_US + 3,
        [ops.Publish(2, 0, 0, 2, presence(MESSAGES), 11), ops.Sequenced(2, "p", 5, 2, column(0, 0, 2))],
        [MESSAGES],
    ),
    Entry(AT_US + 4, [ops.Publish(1, 0, 3, 2, presence(MESSAGES), 11, "overflow")], [MESSAGES]),
    Entry(AT_US + 5, [ops.Settle(3, 0, column(1, 2), "acked")]),
    Entry(AT_US + 6, [ops.Fail(3, 0, column(0), column(0), column(77), column(1_800_000_000_000), "no")]),
    Entry(AT_US + 7, [ops.Bury(2, 4, 0, column(1), column(65_535), "rejected", "bad", failed=True)]),
    Entry(AT_US + 8, [ops.Replace(1, 0, 2, 2, ops.Publish(1, 0, 5, 1, presence(WHOLE), 40))], [WHOLE]),
    Entry(AT_US + 9, [ops.Stage("open", 1, 0, 2, presence(MESSAGES), 11)], [MESSAGES]),
    Entry(AT_US + 9, [ops.Stage("done", 1, 1, 2, presence(MESSAGES), 11)], [MESSAGES]),
    Entry(AT_US + 9, [ops.Commit("done", column(2))]),
]
"""A little life, whose state the golden checkpoint holds."""


def lived() -> State:
    state = State(BodyStore(None))
    for entry in STEPS:
        apply(state, entry)
    return state


def made_checkpoint() -> Checkpoint:
    store = BodyStore(None)
    store.put(CachedBatch(1, 0, 0, PLAIN, AT_US + 1, 6, 0, 6))
    store.put(CachedBatch(1, 1, 2, MESSAGES, AT_US + 9, 15, 0, 16))
    store._bodies_of(2, 0).segments.append(
        Segment(2, 0, "segments/2/0/0-1.arrow", 99, column(0, 1, 2, 3, 4, 5).reshape(6, 1))
    )
    return Checkpoint(16, 6, snapshot.dump(lived()), store.snapshot().image(), [("open", 0, 14, 0)])


def checkpoint_bytes() -> bytes:
    return b"".join(checkpoint.encode(made_checkpoint()))


def segment_batches() -> list[pa.RecordBatch]:
    """Make three blocks; offsets have gaps where settled messages were left out."""
    return [
        expand(PLAIN, column(0, 1, 5), AT_US),
        expand(MESSAGES, column(7, 8), column(AT_US + 1, AT_US + 2)),
        expand(WHOLE, column(9), AT_US),
    ]


async def written(root: Path) -> Segment:
    files = RealFiles(root)
    files.lock()
    try:
        return await segment.write(files, 1, 0, SEGMENT.name, segment_batches())
    finally:
        files.unlock()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    ADDED_FOLDER.mkdir(exist_ok=True)
    for folder, entries in ((FOLDER, ENTRIES), (ADDED_FOLDER, ADDED)):
        for name, entry in entries.items():
            folder.joinpath(name).write_bytes(entry_bytes(entry))
    CHECKPOINT.write_bytes(checkpoint_bytes())
    with tempfile.TemporaryDirectory() as root:
        made = asyncio.run(written(Path(root)))
        shutil.copyfile(Path(root, made.path), SEGMENT)


if __name__ == "__main__":
    main()
