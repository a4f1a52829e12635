"""Reading: split a query into parts, and read the batches of one part.

The loop is asked where messages are, a window at a time; files are read, checked, filtered and cut in the thread of the
call, so that a reader of all history takes only processor time from consumers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import flight

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.log import Extent
from wherry.model.errors import InvalidInput
from wherry.wire.flight.bridge import Bridge
from wherry.wire.flight.gate import Check
from wherry.wire.flight.terms import End, Offsets, OffsetsOrTime, PartitionRead, Query, Ticket

ROWS_PER_ENDPOINT = 1_000_000
"""Rows of an endpoint unless given; more where there would be too many endpoints."""

ENDPOINTS_MAX = 10_000
"""Most endpoints of one answer, beside one for each partition."""

TICKETS_BYTES_MAX = 16 << 20
"""Most bytes of all tickets of one answer: each ticket repeats the conditions."""


class Selection(NamedTuple):
    """The messages that a query selects, as of one moment."""

    topic: str
    query: Query
    schema: pa.Schema
    stretches: list[Extent]


async def select(broker: BrokerPort, query: Query) -> Selection:
    """Find where the messages of a query are. It runs on the loop, so it reads none of them."""
    schema = query.schema()
    if query.table is not None:
        return Selection(query.topic or "", query, schema, [])
    topic = query.named()
    query.where.checked()
    start, stop = _offsets_of(broker, topic, query.start, "earliest"), _offsets_of(broker, topic, query.stop, "latest")
    exact = query.start.offsets or {} if query.strict and isinstance(query.start, OffsetsOrTime) else {}
    stretches = []
    for number, first, last in broker.extents(topic):
        if number in exact:  # words and times select what is still kept; an offset names one message
            await broker.check_kept(topic, number, exact[number], min(first, stop.get(number, 0)))
        low = min(max(first, start.get(number, 0)), last)
        stretches.append(Extent(number, low, max(low, min(last, stop.get(number, 0)))))
    return Selection(topic, query, schema, stretches)


def info(found: Selection, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
    """Split the found messages into parts that can be read in parallel. It runs in the thread of the call."""
    reach: dict[str, Offsets] = {}
    if found.query.table is None:
        reach = {
            "start": {each.partition: each.start for each in found.stretches},
            "stop": {each.partition: each.stop for each in found.stretches},
        }
    return flight.FlightInfo(
        found.schema,
        descriptor,
        [flight.FlightEndpoint(ticket, []) for ticket in _tickets(found)],
        sum(each.stop - each.start for each in found.stretches) if found.query.table is None else -1,
        -1,
        ordered=False,
        app_metadata=msgspec.json.encode(reach),
    )


def _tickets(found: Selection) -> list[bytes]:
    query = found.query
    if query.table is not None:
        return [msgspec.json.encode(Ticket(topic=query.topic, table=query.table))]
    whole = Ticket(topic=found.topic, columns=query.columns, where=query.where, strict=query.strict)
    rows = _rows_per_endpoint(found, len(msgspec.json.encode(whole)))
    return [
        msgspec.json.encode(msgspec.structs.replace(whole, partition=number, start=at, stop=min(at + rows, stop)))
        for number, start, stop in found.stretches
        for at in range(start, stop, rows)
    ]


def _rows_per_endpoint(found: Selection, ticket_bytes: int) -> int:
    """Return the rows of an endpoint: as asked for, if the answer is small enough then; else as few as possible."""
    asked = found.query.rows_per_endpoint
    lengths = [each.stop - each.start for each in found.stretches]
    allowed = max(1, min(ENDPOINTS_MAX, TICKETS_BYTES_MAX // ticket_bytes - len(lengths)))  # each has a short last one
    rows = asked or max(ROWS_PER_ENDPOINT, math.ceil(sum(lengths) / allowed))
    parts = sum(math.ceil(length / rows) for length in lengths)
    if parts > ENDPOINTS_MAX + len(lengths):
        raise InvalidInput("rows_per_endpoint", rows, f"so many that there are at most {ENDPOINTS_MAX} endpoints")
    if parts * ticket_bytes > TICKETS_BYTES_MAX:
        fewer = f"so that {parts} tickets that repeat them have at most {TICKETS_BYTES_MAX} bytes"
        raise InvalidInput("where, rows_per_endpoint", f"{ticket_bytes} bytes of conditions", fewer)
    return rows


def _offsets_of(broker: BrokerPort, topic: str, place: OffsetsOrTime | End, rest: End) -> Offsets:
    """Return the offset of each partition that a place means; `rest` is for partitions that its offsets do not name."""
    if isinstance(place, str):
        return {each.partition: each.start if place == "earliest" else each.stop for each in broker.extents(topic)}
    if (place.offsets is None) == (place.time_ms is None):
        raise InvalidInput("start, stop", msgspec.to_builtins(place), "offsets or time_ms, one of them")
    if place.time_ms is not None:
        return broker.offsets_at(topic, place.time_ms)
    offsets = place.offsets or {}
    broker.check_positions(topic, offsets)
    return _offsets_of(broker, topic, rest, rest) | offsets


def batches(
    broker: BrokerPort, bridge: Bridge, part: PartitionRead, context: flight.ServerCallContext, still: Check
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one part, ascending, while the client is connected and may read. Runs in its thread."""
    topic, partition, start, stop, columns, where, strict = part
    reader = broker.read_log(topic, partition, start, stop, columns=columns, where=where, strict=strict)
    while not context.is_cancelled():
        bridge.run(reader.find_window(), context)
        for batch in reader.batches():
            if context.is_cancelled():
                return
            still()
            bridge.give_way()
            if batch.num_rows:
                yield batch
        if reader.is_done:
            return
