"""Reading: which parts a question falls into, and the batches of one part.

The loop is asked where messages are, a window at a time; files are read, checked, filtered and cut in the thread of the
call, so that a reader of all history takes nothing from consumers but processor time.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
from pyarrow import flight

from wherry.broker.broker import Broker
from wherry.core.span import check_positions
from wherry.journal.window import projection
from wherry.model.errors import InvalidInput
from wherry.wire.flight import tables
from wherry.wire.flight.bridge import Bridge
from wherry.wire.flight.terms import Offsets, Place, Query, Ticket

ENDPOINTS_MAX = 100_000


def info(broker: Broker, query: Query, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
    """What there is, cut into parts that can be read side by side. On the loop."""
    if query.table is not None:
        ticket = Ticket(topic=query.topic, table=query.table)
        return _described(tables.schema(query.table), descriptor, [ticket], -1, {})
    topic = named(query.topic)
    parts = Ticket(topic=topic, columns=query.columns, where=query.where.checked(), strict=query.strict)
    extents = broker.extents(topic)
    start, stop = (_placed(broker, topic, place) for place in (query.start, query.stop))
    tickets, rows = [], 0
    for number, first, last in extents:
        low, high = max(first, start.get(number, 0)), min(last, stop.get(number, 0))
        rows += max(0, high - low)
        for at in range(low, high, query.rows_per_endpoint):
            end = min(at + query.rows_per_endpoint, high)
            tickets.append(msgspec.structs.replace(parts, partition=number, start=at, stop=end))
            if len(tickets) > ENDPOINTS_MAX:
                allowed = f"so many that there are at most {ENDPOINTS_MAX} endpoints"
                raise InvalidInput("rows_per_endpoint", query.rows_per_endpoint, allowed)
    reach = {"start": {n: max(f, start.get(n, 0)) for n, f, _ in extents}, "stop": dict(stop)}
    return _described(projection(parts.names()), descriptor, tickets, rows, reach)


def _described(
    schema: pa.Schema, descriptor: flight.FlightDescriptor, tickets: list[Ticket], rows: int, reach: object
) -> flight.FlightInfo:
    endpoints = [flight.FlightEndpoint(msgspec.json.encode(ticket), []) for ticket in tickets]
    return flight.FlightInfo(
        schema, descriptor, endpoints, rows, -1, ordered=False, app_metadata=msgspec.json.encode(reach)
    )


def _placed(broker: Broker, topic: str, place: Place | str) -> Offsets:
    """The offset of each partition that is meant."""
    if isinstance(place, str):
        return {each.partition: each.start if place == "earliest" else each.stop for each in broker.extents(topic)}
    if (place.offsets is None) == (place.time_ms is None):
        raise InvalidInput("start, stop", msgspec.to_builtins(place), "offsets or time_ms, one of them")
    if place.time_ms is not None:
        return broker.offsets_at(topic, place.time_ms)
    offsets = place.offsets or {}
    check_positions(broker.shard.state.topic(topic), offsets)
    return {each.partition: offsets.get(each.partition, each.start) for each in broker.extents(topic)}


def named(topic: str | None) -> str:
    """The topic, which must be given."""
    if topic is None:
        raise InvalidInput("topic", None, "the name of a topic, or a table")
    return topic


def schema(ticket: Ticket) -> pa.Schema:
    """The schema of a part."""
    return projection(ticket.names()) if ticket.table is None else tables.schema(ticket.table)


def batches(
    broker: Broker, bridge: Bridge, ticket: Ticket, context: flight.ServerCallContext
) -> Iterator[pa.RecordBatch]:
    """The batches of one part. In the thread of the call."""
    topic, names, where = named(ticket.topic), ticket.names(), ticket.where.checked()
    at = ticket.start
    while at < ticket.stop:
        view = bridge.run(broker.window(topic, ticket.partition, at, ticket.stop, strict=ticket.strict), context)
        try:
            for batch, reached in view.batches(broker.read_file, names, where):
                yield batch
                at = reached
        except FileNotFoundError:
            continue  # the segment was written again since: its messages are somewhere else now
        at = view.stop
