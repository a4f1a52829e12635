"""What a node takes of the messages that a peer passes on, and what it notes of them.

    a message of the peer's own          origin: the peer, at the offset that it has there
    one that the peer got from a node    origin: as the header `wherry-origin` says

The peer leaves out what the node is not to get (`model/calls/origin.passes_on`), but not in messages that are older
than the subscription. So the receiver decides again, by the header: what comes by a second way is not taken, because
it might come before an earlier message of the same origin that is still on the first way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wherry.mesh.flow.links import MeshNode
from wherry.model.calls.origin import HEADER, Origin, OriginPlace, read_origin, show_origin
from wherry.model.catalog.subscription import Role
from wherry.model.schema import MESSAGE, TYPES, edges

Int64: TypeAlias = npt.NDArray[np.int64]

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
    if not _is_passed_on_twice(batch):
        return TakenParts([_part(source, batch, *each) for each in _of_the_peer(source, batch)], 0)
    offsets, partitions = batch.column("offset").to_pylist(), batch.column("partition").to_pylist()
    rows: dict[OriginPlace, dict[int, int]] = {}
    left_out = 0
    for row, pairs in enumerate(batch.column("headers").to_pylist()):
        place, at = OriginPlace(source.peer.name, source.run, partitions[row]), offsets[row]
        if (found := _origin_of(pairs, source.topic)) is not None:
            place, at, role = found
            if not _is_on_its_way(me, source.peer.role, place.node, role):
                left_out += 1
                continue
        # By its offset: a message may be there twice, if its lease ended meanwhile.
        rows.setdefault(place, {})[at] = row
    arrays = [(place, np.array(sorted(found), np.int64), found) for place, found in rows.items()]
    chosen = [(place, at, np.array([found[each] for each in at.tolist()], np.int64)) for place, at, found in arrays]
    return TakenParts([_part(source, batch, *each) for each in chosen], left_out)


def _is_passed_on_twice(batch: pa.RecordBatch) -> bool:
    """Return whether a message of a delivery may have come to the peer from another node: then each is looked at."""
    if "headers" not in batch.schema.names:
        return False
    return bool(pc.any(pc.equal(batch.column("headers").keys, HEADER)).as_py())


def _of_the_peer(source: Source, batch: pa.RecordBatch) -> Iterator[tuple[OriginPlace, Int64, Int64]]:
    """Yield the messages of each partition of the peer: their origin, offsets, and rows in this order."""
    offsets, partitions = batch.column("offset").to_numpy(), batch.column("partition").to_numpy()
    for partition in np.unique(partitions).tolist():
        rows = np.flatnonzero(partitions == partition)
        # A message may be there twice, if its lease ended meanwhile; any of them will do.
        at, first = np.unique(offsets[rows], return_index=True)
        yield OriginPlace(source.peer.name, source.run, partition), at.astype(np.int64), rows[first]


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


def _part(source: Source, batch: pa.RecordBatch, place: OriginPlace, offsets: Int64, rows: Int64) -> PassedOn:
    """Return some rows as a batch, with the header of their origin."""
    whole = np.array_equal(rows, np.arange(batch.num_rows))
    messages = batch if whole else batch.take(pa.array(rows))
    return PassedOn(
        _noted(messages, source, place, offsets), Origin(place=place, offsets=offsets, role=source.peer.role)
    )


def _noted(batch: pa.RecordBatch, source: Source, place: OriginPlace, offsets: Int64) -> pa.RecordBatch:
    """Return what is published of a delivery: the columns that are passed on, and the header of the origin."""
    names = [name for name in KEPT if name in batch.schema.names]
    start, _, end = show_origin(place, 0, source.peer.role, source.topic).partition("-0 ")
    texts = pc.binary_join_element_wise(start, pc.cast(pa.array(offsets), pa.string()), "-").cast(pa.string())
    texts = pc.binary_join_element_wise(texts, pa.scalar(end), " ")
    given = batch.column("headers") if "headers" in batch.schema.names else pa.nulls(batch.num_rows, TYPES["headers"])
    headers = _behind_each(given, texts) if _is_apart(given) else _instead(given, texts)
    schema = pa.schema([MESSAGE.field(name) for name in [*names, "headers"]])
    columns = [batch.column(name) for name in names]
    return pa.RecordBatch.from_arrays([*columns, headers], schema=schema)


def _is_apart(given: pa.Array) -> bool:
    """Return whether no message has the header of an origin yet, and those without headers have none in the buffers."""
    if pc.any(pc.equal(given.keys, HEADER)).as_py():
        return False
    return not given.null_count or not np.diff(edges(given))[given.is_null().to_numpy(zero_copy_only=False)].any()


def _behind_each(given: pa.Array, texts: pa.Array) -> pa.Array:
    """Return headers with the one of the origin behind those of each message, by whole columns."""
    ends = edges(given)
    first, pairs, count = int(ends[0]), int(ends[-1] - ends[0]), len(given)
    ends = ends - first + np.arange(count + 1)
    rows = np.empty(pairs + count, np.int64)
    rows[ends[1:] - 1] = np.arange(pairs, pairs + count)
    is_given = np.ones(pairs + count, np.bool_)
    is_given[ends[1:] - 1] = False
    rows[is_given] = np.arange(pairs)
    names = pa.concat_arrays([given.keys.slice(first, pairs), pa.repeat(HEADER, count)])
    values = pa.concat_arrays([given.items.slice(first, pairs), texts])
    if pairs:
        names, values = names.take(pa.array(rows)), values.take(pa.array(rows))
    return pa.MapArray.from_arrays(pa.array(ends.astype(np.int32)), names, values).cast(TYPES["headers"])


def _instead(given: pa.Array, texts: pa.Array) -> pa.Array:
    """Return headers with the one of the origin, which takes the place of the one that a message has."""
    pairs = [
        [*((name, value) for name, value in each or () if name != HEADER), (HEADER, text)]
        for each, text in zip(given.to_pylist(), texts.to_pylist(), strict=True)
    ]
    return pa.array(pairs, TYPES["headers"])
