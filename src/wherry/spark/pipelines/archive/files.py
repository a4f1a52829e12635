"""Files of an archive: the rows of the log, unchanged, in Parquet, by the day of the publish."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wherry.model.calls.log import LOGGED
from wherry.model.errors import Corrupt
from wherry.model.schema import content_bytes
from wherry.spark.pipelines.archive.manifest import ArchiveFile
from wherry.spark.pipelines.archive.manifest_store import Store
from wherry.spark.pipelines.archive.manifest_sums import added, total

DAY_US = 86_400_000_000
GROUP_BYTES = 32 << 20
GROUP_ROWS = 131_072
"""A row group is written when it reaches one of these."""

_FEW = ["key", "headers.key_value.key"]
"""Columns with few different values, for which Parquet builds a dictionary."""
_SOUGHT = ["partition", "offset", "published", "priority", "due"]


class _Open:
    """A file that is being written."""

    def __init__(self, store: Store, partition: int, day: int, first: int) -> None:
        self._date = datetime.fromtimestamp(day * DAY_US / 1e6, UTC).strftime("%Y-%m-%d")
        self._path = f"date={self._date}/p{partition:05}-o{first:019}-{secrets.token_hex(6)}.parquet"
        self._partition, self.first, self._last = partition, first, first
        self._rows = self._content = self._sum = self._waiting_bytes = self._waiting_rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._stack = ExitStack()
        self._sink = self._stack.enter_context(store.write(self._path))
        options: dict[str, Any] = {"use_dictionary": _FEW, "write_statistics": _SOUGHT, "compression": "zstd"}
        self._writer = self._stack.enter_context(pq.ParquetWriter(self._sink, LOGGED, compression_level=1, **options))

    def add(self, batch: pa.RecordBatch) -> int:
        """Add rows; return how many bytes the file has now."""
        offsets = batch.column("offset")
        self.first = min(self.first, pc.min(offsets).as_py())
        self._last = max(self._last, pc.max(offsets).as_py())
        self._rows += batch.num_rows
        self._content += content_bytes(batch)
        self._sum = added(self._sum, total(batch))
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows
        if self._waiting_bytes >= GROUP_BYTES or self._waiting_rows >= GROUP_ROWS:
            self._flush()
        return int(self._sink.tell())

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, LOGGED)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0

    def close(self) -> ArchiveFile:
        """Finish the file and make it durable."""
        self._flush()
        self._writer.close()
        size = int(self._sink.tell())
        self._stack.close()
        return ArchiveFile(
            path=self._path,
            partition=self._partition,
            date=self._date,
            first=self.first,
            last=self._last,
            rows=self._rows,
            bytes=size,
            content=self._content,
            sum=f"{self._sum:016x}",
        )

    def drop(self, fault: BaseException) -> None:
        """Remove the file after a failure."""
        self._stack.__exit__(type(fault), fault, fault.__traceback__)


def write(store: Store, partition: int, batches: Iterator[pa.RecordBatch], target_bytes: int) -> list[ArchiveFile]:
    """Write rows of a partition in ascending order; close a file once it is as large as the target."""
    files: list[ArchiveFile] = []
    begun: dict[int, _Open] = {}
    try:
        for batch in batches:
            for day, rows in _days(batch):
                if day not in begun:
                    begun[day] = _Open(store, partition, day, rows.column("offset")[0].as_py())
                if begun[day].add(rows) >= target_bytes:
                    files.append(begun.pop(day).close())
        while begun:
            files.append(begun.pop(min(begun)).close())
    except BaseException as fault:
        for each in begun.values():
            each.drop(fault)
        raise
    return files


def _days(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield a batch split by days; nearly always one."""
    if not batch.num_rows:
        return
    batch = pa.RecordBatch.from_arrays([batch.column(name) for name in LOGGED.names], schema=LOGGED)
    days = batch.column("published").view(pa.int64()).to_numpy() // DAY_US
    begins = np.flatnonzero(np.append(True, np.diff(days) != 0)).tolist()
    for begin, end in zip(begins, [*begins[1:], batch.num_rows], strict=True):
        yield int(days[begin]), batch.slice(begin, end - begin)


def read(
    store: Store, file: ArchiveFile, columns: Sequence[str] | None = None, start: int = 0, stop: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, or only those with some offsets."""
    names = list(columns or LOGGED.names)
    wanted = names if "offset" in names else ["offset", *names]
    some = start > file.first or (stop is not None and stop <= file.last)
    with store.open(file.path) as source, pq.ParquetFile(source) as parquet:
        if parquet.metadata.num_rows != file.rows:
            why = f"{parquet.metadata.num_rows} rows where the manifest has {file.rows}"
            raise Corrupt(store.whole(file.path), 0, why)
        groups = _groups(parquet, start, stop) if some else None
        for batch in parquet.iter_batches(16_384, row_groups=groups, columns=wanted):
            rows = batch
            if some:
                offsets = batch.column("offset").to_numpy()
                mask = (offsets >= start) & (offsets < (file.last + 1 if stop is None else stop))
                rows = batch.filter(pa.array(mask))
            if rows.num_rows:
                schema = pa.schema([LOGGED.field(name) for name in names])
                yield pa.RecordBatch.from_arrays([rows.column(name) for name in names], schema=schema)


def _groups(parquet: pq.ParquetFile, start: int, stop: int | None) -> list[int]:
    """Return the row groups that have some of the offsets."""
    place = LOGGED.names.index("offset")
    found = []
    for number in range(parquet.num_row_groups):
        statistics = parquet.metadata.row_group(number).column(place).statistics
        if (
            statistics is None
            or not statistics.has_min_max
            or (statistics.max >= start and (stop is None or statistics.min < stop))
        ):
            found.append(number)
    return found


def checked(store: Store, file: ArchiveFile) -> ArchiveFile:
    """Read a file again and return its entry; raise `Corrupt` if the two differ."""
    rows = sums = 0
    for batch in read(store, file):
        rows, sums = rows + batch.num_rows, added(sums, total(batch))
    if rows != file.rows or f"{sums:016x}" != file.sum:
        raise Corrupt(
            store.whole(file.path), 0, f"{rows} rows with sum {sums:016x}; expected {file.rows} with {file.sum}"
        )
    return file
