"""Redrives by a write: rows of the table `dead`, by partition, offset and subscription.

The message that waits again is the one that died; a payload that was changed in the DataFrame is ignored. To send a
corrected message, write it to the topic as a new one and discard the dead letter.
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
from wherry.spark.columns.schema import DEAD
from wherry.spark.link import link
from wherry.spark.options.options import Options

NEEDED = ("partition", "offset", "subscription")
GROUPED = ("subscription", "partition")
OFFSETS_MAX = 50_000
"""The most offsets in one action."""


@dataclass(frozen=True)
class Chosen(WriterCommitMessage):
    """Dead letters that a task selected: offsets by topic, subscription and partition."""

    offsets: dict[tuple[str, str, int], npt.NDArray[np.int64]]


class RedriveWriter(DataSourceArrowWriter):
    """Redrives the dead letters that the tasks selected, from the driver, once all tasks are done."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        for name in NEEDED:
            if name not in schema.names or schema[name].dataType != DEAD[name].dataType:
                wanted = ", ".join(f"{each} {DEAD[each].dataType.simpleString()}" for each in NEEDED)
                raise InvalidInput("column", schema.names, wanted)
        self._topic = options.one_topic() if options.topics or "topic" not in schema.names else None
        self._names = [name for name in ("topic", *GROUPED) if name in schema.names]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        found: dict[tuple[str, str, int], list[npt.NDArray[np.int64]]] = {}
        for batch in iterator:
            table = pa.table({name: batch.column(name) for name in (*self._names, "offset")})
            if any(column.null_count for column in table.columns):
                raise InvalidInput("rows", None, "a value in each of " + ", ".join(table.column_names))
            groups = table.group_by(self._names).aggregate([("offset", "list")])
            for row in range(groups.num_rows):
                *topic, subscription, partition = (groups.column(name)[row].as_py() for name in self._names)
                key = (self._checked(*topic), subscription, partition)
                found.setdefault(key, []).append(groups.column("offset_list")[row].values.to_numpy())
        return Chosen({key: np.unique(np.concatenate(parts)) for key, parts in found.items()})

    def _checked(self, topic: str | None = None) -> str:
        """Return the topic of a row; raise if the option names another one, where the offset is another message."""
        if self._topic is not None and topic not in (None, self._topic):
            raise InvalidInput("rows", topic, f"dead letters of {self._topic}, as the option topic asks")
        return self._topic or topic or ""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        for (topic, subscription, partition), offsets in _together(messages).items():
            for at in range(0, len(offsets), OFFSETS_MAX):
                body = {"topic": topic, "subscription": subscription, "partition": partition, "by": self._options.by}
                body["offsets"] = offsets[at : at + OFFSETS_MAX].tolist()
                link(self._options).action("redrive", body)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the driver redrives only in `commit`."""


def _together(messages: Sequence[WriterCommitMessage | None]) -> dict[tuple[str, str, int], npt.NDArray[np.int64]]:
    found: dict[tuple[str, str, int], list[npt.NDArray[np.int64]]] = {}
    for each in messages:
        for key, offsets in each.offsets.items() if isinstance(each, Chosen) else ():
            found.setdefault(key, []).append(offsets)
    return {key: np.unique(np.concatenate(parts)) for key, parts in found.items()}
