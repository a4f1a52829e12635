"""Messages on lease as DELIVER frames: rows for few, an Arrow stream without a copy for many."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from wherry.broker.port.consume import DeliveryPort
from wherry.model import ipc
from wherry.model.calls import lease as values
from wherry.model.limits import PRIORITY_DEFAULT
from wherry.model.schema import payload_bytes
from wherry.wire.native.codec.deliveries import encode_deliver, encode_deliver_arrow, encode_deliver_one
from wherry.wire.native.codec.frames import Chunk
from wherry.wire.native.codec.rows import PLAIN, DeliveredRow, RowFields

ARROW_ROWS = 64
"""From so many messages on, clients that read Arrow get it: below, rows cost less on both sides."""

COPIED_BYTES_MAX = 32 << 10
"""A stream with less payload is one buffer: cheaper than dozens of parts."""

_NO_FIELDS = (None, PRIORITY_DEFAULT, None, None, None, None)
"""What a message has from its key on, if it has nothing but its payload."""

_LEASE = pa.field("lease", pa.int64(), nullable=False)
_FIELDS = ("key", "headers", "priority", "due", "expires", "id", "envelope")


def frames_of(stream: int, delivery: DeliveryPort, *, arrow: bool) -> list[Chunk]:
    """Return a delivery as one frame; `arrow`: whether the client reads Arrow."""
    rows = delivery.rows
    if rows is not None and len(rows) == 1 and rows[0][5:] == _NO_FIELDS:
        offset, partition, attempt, published_us, payload = rows[0][:5]
        return [encode_deliver_one(stream, delivery.tokens[0], partition, offset, published_us, attempt, payload)]
    if arrow and len(delivery) >= ARROW_ROWS:
        batch = delivery.present.append_column(_LEASE, pa.array(delivery.lease_column(), pa.int64()))
        small = payload_bytes(batch) < COPIED_BYTES_MAX
        chunks: list[Chunk] = [*(ipc.copied(batch) if small else ipc.stream(batch))]
        return encode_deliver_arrow(stream, chunks)
    return [encode_deliver(stream, rows_of(delivery))]


def rows_of(delivery: DeliveryPort) -> list[DeliveredRow]:
    """Return the messages of a delivery as rows; those that are values in the broker are not made columns first."""
    if delivery.rows is not None:
        (token,) = delivery.tokens
        return [_row(token, row) for row in delivery.rows]
    batch = delivery.present
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    tokens = delivery.tokens * len(delivery) if len(delivery.tokens) == 1 else delivery.lease_column().tolist()
    fields = _fields(columns, len(delivery))
    return list(
        map(
            DeliveredRow,
            tokens,
            columns["partition"].to_pylist(),
            columns["offset"].to_pylist(),
            columns["published"].view(pa.int64()).to_pylist(),
            columns["attempt"].to_pylist(),
            columns["payload"].to_pylist(),
            fields,
        )
    )


def _row(token: int, row: values.DeliveredRow) -> DeliveredRow:
    offset, partition, attempt, published_us, payload, key, priority, due_ms, expires_ms, headers, envelope = row
    fields = PLAIN
    if row[5:] != _NO_FIELDS:
        shown = None if priority == PRIORITY_DEFAULT else priority
        fields = RowFields(key, headers, shown, due_ms, expires_ms, None, envelope)
    return DeliveredRow(token, partition, offset, published_us, attempt, payload, fields)


def _fields(columns: dict[str, pa.Array], rows: int) -> list[RowFields]:
    if not any(name in columns for name in _FIELDS):
        return [PLAIN] * rows
    values: list[list[Any]] = []
    for name in _FIELDS:
        column = columns.get(name)
        if column is None:
            values.append([None] * rows)
        elif name in ("due", "expires"):
            values.append(column.view(pa.int64()).to_pylist())
        else:
            values.append(column.to_pylist())
    return list(map(RowFields, *values))
