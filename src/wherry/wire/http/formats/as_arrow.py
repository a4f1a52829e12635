"""Messages as an Arrow IPC stream: written without a copy of the payloads. `wire/arrow_stream` reads them."""

from __future__ import annotations

import pyarrow as pa

from wherry.model import check, ipc
from wherry.model.schema import Int64, absent, payload_bytes
from wherry.wire.http.protocol.message import ARROW, Response

COPIED_BYTES_MAX = 32 << 10
"""Answers with less payload are one buffer: cheaper than dozens of parts."""

_LEASE = pa.field("lease", pa.int64(), nullable=False)


def write(batch: pa.RecordBatch, leases: Int64 | None, columns: str = "all") -> Response:
    """Return a stream of one batch, with the fencing token of each row if there are leases."""
    check.one_of("columns", columns, ("all", "present"))
    if columns == "present":
        batch = _present(batch)
    if leases is not None:
        batch = batch.append_column(_LEASE, pa.array(leases, pa.int64()))
    small = payload_bytes(batch) < COPIED_BYTES_MAX
    return Response(body=ipc.copied(batch) if small else ipc.stream(batch), content_type=ARROW)


def _present(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without columns that are all null, or all of default priority."""
    rows, names = batch.num_rows, batch.schema.names
    kept = [name for name, column in zip(names, batch.columns, strict=True) if not rows or column.null_count < rows]
    if "priority" in kept and batch.column("priority").equals(absent("priority", rows)):
        kept.remove("priority")
    return batch if kept == names else batch.select(kept)
