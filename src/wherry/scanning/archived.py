"""Reads files of an archive: only the columns asked for, and only row groups that can have rows that match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from wherry.model.calls.log import LOGGED
from wherry.model.calls.narrowing import Interval, Narrowing
from wherry.model.errors import Corrupt, StorageError
from wherry.scanning.columns import counted
from wherry.scanning.cut import ArchivedPart
from wherry.spark.pipelines.archive.files import DAY_US
from wherry.spark.pipelines.archive.manifest_store import Store

BATCH_ROWS = 16_384


def batches(store: Store, part: ArchivedPart, columns: Sequence[str], wanted: Narrowing) -> Iterator[pa.RecordBatch]:
    """Yield rows of a part, with the offset; rows that do not match may be among them."""
    file = part.file
    if not _day(file.date, wanted.published):
        return
    place = store.whole(file.path)
    try:
        yield from _rows(store, part, columns, wanted)
    except FileNotFoundError:
        raise StorageError(
            f"{place} is gone: the archive was compacted since this scan was made, and the grace time of the file is"
            " over; scan again"
        ) from None
    except pa.ArrowInvalid as fault:
        raise Corrupt(place, 0, f"not the Parquet file that was written ({fault})") from None
    except OSError as fault:
        raise StorageError(f"{place} cannot be read: {fault}") from None


def _rows(store: Store, part: ArchivedPart, columns: Sequence[str], wanted: Narrowing) -> Iterator[pa.RecordBatch]:
    file = part.file
    is_cut = part.start > file.first or part.stop <= file.last
    names = list(dict.fromkeys(["offset", *columns]))
    with store.open(file.path) as source, pq.ParquetFile(source) as parquet:
        if parquet.metadata.num_rows != file.rows:
            why = f"{parquet.metadata.num_rows} rows where the manifest has {file.rows}"
            raise Corrupt(store.whole(file.path), 0, why)
        if not columns and not is_cut:
            yield from counted(file.rows)
            return
        bounds = wanted._replace(offset=Interval(part.start, part.stop - 1))
        groups = [number for number in range(parquet.num_row_groups) if _can_match(parquet, number, bounds)]
        for batch in parquet.iter_batches(BATCH_ROWS, row_groups=groups, columns=names):
            rows = batch
            if is_cut:
                offsets = batch.column("offset").to_numpy()
                rows = batch.filter(pa.array((offsets >= part.start) & (offsets < part.stop)))
            if rows.num_rows:
                yield rows


def _day(date: str, published: Interval) -> bool:
    """Return whether messages of a day, such as `2027-01-31`, can have been published in an interval."""
    first = int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()) * 1_000_000
    return published.meets(first, first + DAY_US - 1)


def _can_match(parquet: pq.ParquetFile, number: int, wanted: Narrowing) -> bool:
    group = parquet.metadata.row_group(number)
    for name in ("offset", "published", "priority"):
        interval: Interval = getattr(wanted, name)
        statistics = group.column(LOGGED.names.index(name)).statistics
        if statistics is None or not statistics.has_min_max:
            continue
        if not interval.meets(_number(statistics.min), _number(statistics.max)):
            return False
    return True


def _number(value: Any) -> int:
    """Return a statistic as a whole number, a time in microseconds."""
    if isinstance(value, datetime):
        return pa.scalar(value, pa.timestamp("us", tz="UTC")).value
    return int(value)
