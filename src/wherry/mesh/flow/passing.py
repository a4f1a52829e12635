"""What a node takes of the messages that a peer passes on, and what it notes of them.

    a message of the peer's own          origin: the peer, at the offset that it has there
    one that the peer got from a node    origin: as the header `wherry-origin` says

The peer leaves out what the node is not to get (`model/calls/origin.passes_on`), but not in messages that are older
than the subscription. So the receiver decides again, by the header: what comes by a second way is not taken, because
it might come before an earlier message of the same origin that is still on the first way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wherry.mesh.flow.links import MeshNode
from wherry.model.calls.origin import HEADER, Origin, OriginPlace, read_origin, show_origin
from wherry.model.catalog.subscription import Role
from wherry.model.schema import MESSAGE, TYPES

KEPT = ("id", "key", "priority", "expires", "envelope", "payload")
"""Columns that are passed on as they are; headers get one more. What a message is published again with is its own."""


class PassedOn(NamedTuple):
    """Messages of one origin, to be published in their order."""

    messages: pa.RecordBatch
    origin: Origin

    def part(self, start: int, stop: int) -> PassedOn:
        """Return some of the messages."""
        return PassedOn(self.messages.slice(start, stop - start), self.origin.part(start, stop))


class Source(NamedTuple):
    """A topic at a peer: the messages of its own have this place of origin, but for the partition."""

    peer: MeshNode
    run: str
    topic: str


class TakenParts(NamedTuple):
    """What is taken of one delivery, and how many messages are not."""

    parts: list[PassedOn]
    left_out: int


def take(me: MeshNode, source: Source, batch: pa.RecordBatch) -> TakenParts:
    """Return the messages of a delivery that this node takes, by origin, in the order of their offsets there.

    `batch` has the columns of a delivered message, with `offset` and `partition`.
    """
    headers = batch.column("headers").to_pylist() if "headers" in batch.schema.names else [None] * batch.num_rows
    offsets, partitions = batch.column("offset").to_pylist(), batch.column("partition").to_pylist()
    rows: dict[OriginPlace, dict[int, int]] = {}
    left_out = 0
    for row, (offset, partition, pairs) in enumerate(zip(offsets, partitions, headers, strict=True)):
        place, at = OriginPlace(source.peer.name, source.run, partition), offset
        if (found := _origin_of(pairs, source.topic)) is not None:
            place, at, role = found
            if not _is_on_its_way(me, source.peer.role, place.node, role):
                left_out += 1
                continue
        # By its offset: a message may be there twice, if its lease ended meanwhile.
        rows.setdefault(place, {})[at] = row
    return TakenParts([_part(source, batch, place, found) for place, found in rows.items()], left_out)


def _is_on_its_way(me: MeshNode, peer: Role, origin: str, came_from: Role) -> bool:
    """Return whether a message that a peer got from a node, and not from a client, comes by the one way to this node.

    A leaf gets everything from its hub. A hub gets of another hub what came from its leaves; of a leaf nothing.
    """
    if origin == me.name or peer == "leaf":
        return False
    return me.role == "leaf" or came_from == "leaf"


def _origin_of(headers: Any, topic: str) -> tuple[OriginPlace, int, Role] | None:
    for name, value in headers or ():
        if name == HEADER:
            return read_origin(value, topic)
    return None


def _part(source: Source, batch: pa.RecordBatch, place: OriginPlace, rows: dict[int, int]) -> PassedOn:
    """Return some rows as a batch, with the header of their origin."""
    offsets = np.array(sorted(rows), np.int64)
    chosen = np.array([rows[offset] for offset in offsets.tolist()], np.int64)
    whole = np.array_equal(chosen, np.arange(batch.num_rows))
    messages = batch if whole else batch.take(pa.array(chosen))
    return PassedOn(
        _noted(messages, source, place, offsets), Origin(place=place, offsets=offsets, role=source.peer.role)
    )


def _noted(batch: pa.RecordBatch, source: Source, place: OriginPlace, offsets: Any) -> pa.RecordBatch:
    """Return what is published of a delivery: the columns that are passed on, and the header of the origin."""
    names = [name for name in KEPT if name in batch.schema.names]
    start, _, end = show_origin(place, 0, source.peer.role, source.topic).partition("-0 ")
    texts = pc.binary_join_element_wise(start, pc.cast(pa.array(offsets), pa.string()), "-").cast(pa.string())
    texts = pc.binary_join_element_wise(texts, pa.scalar(end), " ")
    if "headers" in batch.schema.names and batch.column("headers").null_count < batch.num_rows:
        given = batch.column("headers").to_pylist()
        pairs = [
            [*((name, value) for name, value in each or () if name != HEADER), (HEADER, text)]
            for each, text in zip(given, texts.to_pylist(), strict=True)
        ]
        headers = pa.array(pairs, TYPES["headers"])
    else:
        every = pa.array(np.arange(batch.num_rows + 1, dtype=np.int32))
        headers = pa.MapArray.from_arrays(every, pa.repeat(HEADER, batch.num_rows), texts).cast(TYPES["headers"])
    schema = pa.schema([MESSAGE.field(name) for name in [*names, "headers"]])
    columns = [batch.column(name) for name in names]
    return pa.RecordBatch.from_arrays([*columns, headers], schema=schema)
