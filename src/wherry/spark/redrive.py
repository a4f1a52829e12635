"""Dead letters that are sent back by a write: rows of the table `dead`, by partition, offset and subscription.

The message that waits again is the one that died: what a DataFrame made of its payload is not looked at. What was
mended is a new message: write that to the topic, and throw the dead letter away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from wherry.model.errors import InvalidInput
from wherry.spark.link import link
from wherry.spark.options import Options
from wherry.spark.schema import DEAD

NEEDED = ("partition", "offset", "subscription")
OFFSETS_MAX = 50_000
"""Of one action."""


@dataclass(frozen=True)
class Chosen(WriterCommitMessage):
    """Dead letters that a task found: offsets by topic, subscription and partition."""

    offsets: dict[tuple[str, str, int], npt.NDArray[np.int64]]


class RedriveWriter(DataSourceArrowWriter):
    """Tasks say which ones; the driver sends them back when all tasks are done."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        for name in NEEDED:
            if name not in schema.names or schema[name].dataType != DEAD[name].dataType:
                wanted = ", ".join(f"{each} {DEAD[each].dataType.simpleString()}" for each in NEEDED)
                raise InvalidInput("column", schema.names, wanted)
        self._topic = None if "topic" in schema.names and not options.topics else options.one_topic()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        names = ["subscription", "partition"] if self._topic is not None else ["topic", "subscription", "partition"]
        found: dict[tuple[str, str, int], list[npt.NDArray[np.int64]]] = {}
        for batch in iterator:
            table = pa.table({name: batch.column(name) for name in (*names, "offset")})
            if any(column.null_count for column in table.columns):
                raise InvalidInput("rows", None, "a value in each of " + ", ".join(table.column_names))
            groups = table.group_by(names).aggregate([("offset", "list")])
            for row in range(groups.num_rows):
                key = tuple(groups.column(name)[row].as_py() for name in names)
                offsets = groups.column("offset_list")[row].values.to_numpy()
                found.setdefault(key if self._topic is None else (self._topic, *key), []).append(offsets)
        return Chosen({key: np.unique(np.concatenate(parts)) for key, parts in found.items()})

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        for (topic, subscription, partition), offsets in _together(messages).items():
            for at in range(0, len(offsets), OFFSETS_MAX):
                body = {"topic": topic, "subscription": subscription, "partition": partition, "by": self._options.by}
                body["offsets"] = offsets[at : at + OFFSETS_MAX].tolist()
                link(self._options).action("redrive", body)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was done yet."""


def _together(messages: Sequence[WriterCommitMessage | None]) -> dict[tuple[str, str, int], npt.NDArray[np.int64]]:
    found: dict[tuple[str, str, int], list[npt.NDArray[np.int64]]] = {}
    for each in messages:
        for key, offsets in each.offsets.items() if isinstance(each, Chosen) else ():
            found.setdefault(key, []).append(offsets)
    return {key: np.unique(np.concatenate(parts)) for key, parts in found.items()}
