"""A scan as a lazy Polars frame: a predicate decides what is skipped, and is applied to every row that is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from wherry.scanning import of_polars
from wherry.scanning.alternatives import ANYTHING
from wherry.scanning.extras import needed

if TYPE_CHECKING:
    import polars as pl

    from wherry.scanning.scan import Scan


def frame(scan: Scan) -> pl.LazyFrame:
    """Return a lazy frame of all columns."""
    needed("polars")
    from polars.io.plugins import register_io_source  # noqa: PLC0415  an extra

    def source(
        columns: list[str] | None, predicate: pl.Expr | None, rows_max: int | None, _batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        names = scan.schema.names if columns is None else columns
        reading = list(names)
        wanted = ANYTHING
        if predicate is not None:
            reading += [name for name in predicate.meta.root_names() if name not in reading]
            if rows_max is None:  # with both, Polars takes the first rows of all, and then filters these
                wanted = of_polars.narrowing(predicate)
        left = rows_max
        if left == 0:
            return
        for batch in scan.batches(reading, wanted):
            rows = _frame(batch)
            if left is not None:
                rows = rows.head(left)
                left -= rows.height
            if predicate is not None:
                rows = rows.filter(predicate)
            yield rows if reading == names else rows.select(names)
            if left == 0:
                return

    schema = _frame(pa.RecordBatch.from_pylist([], schema=scan.schema)).schema
    return register_io_source(source, schema=schema, validate_schema=True, is_pure=True)


def _frame(batch: pa.RecordBatch) -> pl.DataFrame:
    import polars as pl  # noqa: PLC0415  an extra

    return pl.DataFrame(batch)  # by Arrow's C interface; `from_arrow` takes twice as long, column by column
