"""Rows that name their topic or partition themselves: cut into puts of one topic and partition each, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from wherry.model import limits
from wherry.model.errors import InvalidInput

COLUMNS = ("topic", "partition")
BYTES = 16 << 20
"""How much is gathered before it is cut, so that puts are not small."""
ROWS = 10_000
"""The most rows of a batch in a put."""

Put = tuple[dict[str, Any], list[pa.RecordBatch]]


def puts(batches: Iterator[pa.RecordBatch], topic: str | None) -> Iterator[Put]:
    """Yield commands, each with its batches; `topic` is for rows that name none of their own."""
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        kept.append(batch)
        if sum(each.nbytes for each in kept) >= BYTES:
            yield from _cut(kept, topic)
            kept = []
    if kept:
        yield from _cut(kept, topic)


def _cut(batches: Sequence[pa.RecordBatch], topic: str | None) -> Iterator[Put]:
    table = pa.Table.from_batches(batches)
    names = [name for name in COLUMNS if name in table.column_names]
    rows = pa.array(np.arange(table.num_rows))
    groups = table.select(names).append_column("row", rows).group_by(names, use_threads=False)
    found = groups.aggregate([("row", "list")])
    for at in range(found.num_rows):
        route = {name: found.column(name)[at].as_py() for name in names}
        chosen = np.sort(found.column("row_list")[at].values.to_numpy())
        part = table.take(pa.array(chosen)).drop_columns(names)
        yield _command(route, topic), part.combine_chunks().to_batches(max_chunksize=ROWS)


def _command(route: dict[str, Any], topic: str | None) -> dict[str, Any]:
    command = {"topic": topic, **{name: value for name, value in route.items() if value is not None}}
    if command["topic"] is None:
        raise InvalidInput("topic", None, "the option topic, or a topic in each row")
    partition = command.get("partition", 0)
    if not 0 <= partition < limits.PARTITIONS_MAX:
        raise InvalidInput("partition", partition, "a partition of the topic, or null: the key decides then")
    return command
