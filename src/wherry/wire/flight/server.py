"""The server: the right that each call needs, and the module that answers it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from wherry.broker.port.port import BrokerPort
from wherry.model.catalog.key import Verb
from wherry.model.errors import Forbidden, InvalidInput, NotFound
from wherry.security.access import own_key
from wherry.wire.flight import reading, tables, writing
from wherry.wire.flight.actions import ACTIONS, body_of
from wherry.wire.flight.bridge import Bridge
from wherry.wire.flight.certificates import Certificates
from wherry.wire.flight.faults import flight_errors, sends_errors
from wherry.wire.flight.gate import Check, Gate, Guard, Wait, no_wait
from wherry.wire.flight.push import Pushing
from wherry.wire.flight.terms import OfStage, Push, Put, Query, RedriveTerms, Table, Ticket, decoded, described

_GATE = "gate"

STOP_S = 2.0
"""How long a stop waits for clients to disconnect."""


def open_to_all(headers: Mapping[str, str], verb: Verb, topic: str) -> str:
    """Allow everything to every caller: the guard of a broker without keys."""
    return ""


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server for one broker. Its methods run in threads of their own, and call the broker by the bridge."""

    def __init__(self, location: str, broker: BrokerPort, guard: Guard, wait: Wait, tls: Certificates | None) -> None:
        more: dict[str, Any] = {}
        if tls is not None:
            more = {"tls_certificates": [(tls.chain, tls.key)]}
            if tls.client_ca is not None:
                more |= {"verify_client": True, "root_certificates": tls.client_ca}
        self._broker = broker
        self._guard = guard
        self._bridge = Bridge(asyncio.get_running_loop())
        self.gate = Gate(guard, wait)
        self.is_idle = True
        """Whether every call has ended; after a stop, the process cannot exit by itself otherwise."""
        super().__init__(location, middleware={_GATE: self.gate}, **more)  # calls may come from here on

    def _check(self, context: flight.ServerCallContext, verb: Verb, topic: str) -> str:
        """Return the caller's name, or raise."""
        return self._guard(context.get_middleware(_GATE).headers, verb, topic)

    def _may(self, context: flight.ServerCallContext) -> tables.May:
        def may(topic: str) -> bool:
            try:
                self._check(context, "consume", topic)
            except Forbidden:
                return False
            return True

        return may

    def _still(self, context: flight.ServerCallContext, verb: Verb, topic: str) -> Check:
        """Return a check for a stream to repeat: a key that was deleted ends the stream."""

        def check() -> None:
            self._check(context, verb, topic)

        return check

    # ------------------------------------------------------------------------------------------------------- reading

    @sends_errors
    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """List the topics that the caller may read."""
        may = self._may(context)
        listed = [Query(topic=name) for name in self._bridge.run(self._names(may), context)]
        found = self._bridge.run(self._selected(listed, gone=True), context)
        return iter([reading.info(each, flight.FlightDescriptor.for_path(each.topic)) for each in found])

    async def _names(self, may: tables.May) -> list[str]:
        return [topic.name for topic in self._broker.topics() if may(topic.name)]

    async def _selected(self, queries: list[Query], *, gone: bool = False) -> list[reading.Selection]:
        """Look up each query, and return once that is durable; with `gone`, topics deleted meanwhile are left out."""
        found = []
        for query in queries:
            with suppress(*([NotFound] if gone else [])):
                found.append(await reading.select(self._broker, query))
        await self._broker.stored_so_far()
        return found

    @sends_errors
    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return the parts of a topic, or of a table, that can be read."""
        query = described(Query, descriptor)
        self._check_reading(context, query.topic, query.table)
        (found,) = self._bridge.run(self._selected([query]), context)
        return reading.info(found, descriptor)

    @sends_errors
    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """Return the columns alone."""
        query = described(Query, descriptor)
        self._check_reading(context, query.topic, query.table)
        (found,) = self._bridge.run(self._selected([query]), context)
        return flight.SchemaResult(found.schema)

    def _check_reading(self, context: flight.ServerCallContext, topic: str | None, table: str | None) -> None:
        """Check the right to read; a table without a topic is reduced to what the caller may read."""
        if topic is not None:
            self._check(context, "consume", topic)
        elif table is None or table == "dead":
            raise InvalidInput("topic", None, "the name of a topic")

    @sends_errors
    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Return the batches of one part."""
        wanted = decoded(Ticket, ticket.ticket, "ticket")
        self._check_reading(context, wanted.topic, wanted.table)
        rows = self._rows_of(wanted, wanted.table, context) if wanted.table is not None else self._log(wanted, context)
        return flight.GeneratorStream(wanted.schema(), self._with_errors(rows))

    def _rows_of(self, ticket: Ticket, table: Table, context: flight.ServerCallContext) -> Iterator[pa.RecordBatch]:
        rows = tables.rows(self._broker, table, ticket.topic, self._may(context))
        return self._bridge.iterate(rows, context)

    def _log(self, ticket: Ticket, context: flight.ServerCallContext) -> Iterator[pa.RecordBatch]:
        part = ticket.part()
        still = self._still(context, "consume", part.topic)
        return reading.batches(self._broker, self._bridge, part, context, still)

    def _with_errors(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with flight_errors():
            yield from batches

    # ------------------------------------------------------------------------------------------------------- writing

    @sends_errors
    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Publish, or stage, a stream of batches."""
        put = described(Put, descriptor)
        caller = self._check(context, "publish", put.topic)
        if put.stage is not None:
            put = msgspec.structs.replace(put, stage=own_key(caller, put.stage))
        stream = writing.PublishStream(self._broker, put)
        writing.write(stream, self._bridge, reader, writer, context, self._still(context, "publish", put.topic))

    @sends_errors
    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Push a subscription."""
        push = decoded(Push, descriptor.command or b"", "command")
        self._check(context, "consume", push.topic)
        still = self._still(context, "consume", push.topic)
        Pushing(self._broker, self._bridge, push, writer, context, still).run(reader)

    # ------------------------------------------------------------------------------------------------------- actions

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """List the actions."""
        return [(name, action.about) for name, action in ACTIONS.items()]

    @sends_errors
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """Run one action."""
        known, body = body_of(action.type, action.body.to_pybytes() if action.body is not None else b"")
        may = self._may(context)
        if isinstance(body, OfStage | RedriveTerms):
            body = body.owned(context.get_middleware(_GATE).caller)

        async def done() -> object:
            for verb, topic in known.asks(self._broker, body):
                self._check(context, verb, topic)
            return await known.do(self._broker, body, may)

        return [msgspec.json.encode(self._bridge.run(done(), context))]

    async def stop(self) -> None:
        """End the calls under way, and stop.

        A call whose client sends nothing and stays connected cannot be ended from here: after `STOP_S` it is left
        running, and ends with the process (`is_idle`).
        """
        self._bridge.close()
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            self.shutdown()
            with suppress(RuntimeError):  # the loop is closed, as `stop` did not wait any longer
                loop.call_soon_threadsafe(stopped.set)

        threading.Thread(target=shut_down, name="wherry flight stop", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), STOP_S)
        self.is_idle = stopped.is_set()


@asynccontextmanager
async def serve(
    broker: BrokerPort,
    host: str,
    port: int,
    *,
    guard: Guard = open_to_all,
    wait: Wait = no_wait,
    tls: Certificates | None = None,
) -> AsyncIterator[FlightServer]:
    """Run a Flight server for a broker of this loop, while the `async with` lasts. Port 0 lets the system choose.

    `guard` is also called in the event loop, and must not wait; `wait` is called in the thread of each call.

    It serves in threads of its own as soon as it is made. Its method `serve` would take the signals of the process.
    """
    scheme = "grpc" if tls is None else "grpc+tls"
    location = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        server = FlightServer(location, broker, guard, wait, tls)
    except (pa.ArrowException, OSError) as fault:
        raise InvalidInput("flight.port", f"{host}:{port}", f"an address to listen on ({fault})") from None
    try:
        yield server
    finally:
        await server.stop()
