"""A scan as a DuckDB relation: DuckDB gives columns and a filter, which is applied here to every row that is read.

DuckDB calls the method `scanner` of any `pyarrow.dataset.Dataset`, and trusts that the rows it gets meet the filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from wherry.scanning import of_arrow
from wherry.scanning.extras import needed

_ROW = "\x00row"
"""A name that no column has."""

if TYPE_CHECKING:
    import duckdb

    from wherry.scanning.scan import Scan


def relation(scan: Scan, connection: duckdb.DuckDBPyConnection | None) -> duckdb.DuckDBPyRelation:
    """Return a relation of all columns."""
    made: duckdb.DuckDBPyRelation = (connection or needed("duckdb")).from_arrow(ScanDataset(scan))
    return made


class ScanDataset(dataset.Dataset):  # type: ignore[misc]
    """A dataset whose rows are those of a scan: a new read for each query."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self._scan.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - as pyarrow calls it
        **_: Any,
    ) -> ScanScanner:
        """Return what reads some columns of the rows that a filter selects."""
        names = self._scan.schema.names if columns is None else list(columns)
        return ScanScanner(self._scan, names, filter)


class ScanScanner:
    """One read."""

    def __init__(self, scan: Scan, names: list[str], chosen: pc.Expression | None) -> None:
        self._scan, self._names, self._chosen = scan, names, chosen
        self.projected_schema = scan.projected(names)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream of batches."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        names, chosen = self._names, self._chosen
        if chosen is None:
            yield from self._scan.batches(names)
            return
        looked_at = of_arrow.columns(chosen) or self._scan.schema.names
        reading = [*names, *(name for name in looked_at if name not in names)]
        for batch in self._scan.batches(reading, of_arrow.narrowing(chosen)):
            rows = batch.select(names).filter(_mask(batch.select(looked_at), chosen))
            if rows.num_rows:
                yield rows


def _mask(batch: pa.RecordBatch, chosen: pc.Expression) -> pa.Array:
    """Return which rows a filter selects: Arrow filters the rows with their numbers."""
    numbered = pa.RecordBatch.from_arrays(
        [*_aligned(batch).columns, pa.array(np.arange(batch.num_rows))], names=[*batch.schema.names, _ROW]
    )
    mask = np.zeros(batch.num_rows, bool)
    mask[numbered.filter(chosen).column(_ROW).to_numpy()] = True
    return pa.array(mask)


def _aligned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose buffers begin at addresses that Arrow likes; those that gRPC received may not."""
    buffers = (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None)
    if all(buffer.address % 8 == 0 for buffer in buffers):
        return batch
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_next_batch()
