"""The server: which right each call asks for, and which module answers it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from wherry.broker.broker import Broker
from wherry.model.errors import Forbidden, InvalidInput
from wherry.model.key import Verb
from wherry.security.access import own_key
from wherry.wire.flight import reading, tables, writing
from wherry.wire.flight.actions import ACTIONS, body_of
from wherry.wire.flight.bridge import Bridge
from wherry.wire.flight.certificates import Certificates
from wherry.wire.flight.faults import telling, told
from wherry.wire.flight.push import Pushing
from wherry.wire.flight.terms import OfStage, Push, Put, Query, Ticket, decoded, described

Guard = Callable[[Mapping[str, str], Verb, str], str]
"""Who asks, by their headers, for which right on which topic; raises `Unauthorized` or `Forbidden`."""

_CALLER = "caller"

STOP_S = 2.0
"""How long a stop waits for clients to hang up."""


def open_to_all(headers: Mapping[str, str], verb: Verb, topic: str) -> str:
    """A guard that lets everybody in."""
    return ""


class _Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """The headers of one call."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers


class _Callers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> _Caller:
        """Only the last of several headers of one name counts, as over HTTP."""
        texts = {name.lower(): values[-1] for name, values in headers.items() if values}
        return _Caller({name: value for name, value in texts.items() if isinstance(value, str)})


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight over one broker. Its methods run in threads of their own; the broker is asked through the bridge."""

    def __init__(self, location: str, broker: Broker, guard: Guard, tls: Certificates | None) -> None:
        more: dict[str, Any] = {}
        if tls is not None:
            more = {"tls_certificates": [(tls.chain, tls.key)]}
            if tls.client_ca is not None:
                more |= {"verify_client": True, "root_certificates": tls.client_ca}
        super().__init__(location, middleware={_CALLER: _Callers()}, **more)
        self._broker = broker
        self._guard = guard
        self._bridge = Bridge(asyncio.get_running_loop())

    def _check(self, context: flight.ServerCallContext, verb: Verb, topic: str) -> str:
        """The name of whoever asks."""
        return self._guard(context.get_middleware(_CALLER).headers, verb, topic)

    def _caller(self, context: flight.ServerCallContext) -> str:
        """Who asks, whatever they may do: known, even where a call names no topic."""
        try:
            return self._check(context, "publish", "*")
        except Forbidden as fault:
            return fault.name

    def _may(self, context: flight.ServerCallContext) -> tables.May:
        def may(topic: str) -> bool:
            try:
                self._check(context, "consume", topic)
            except Forbidden:
                return False
            return True

        return may

    # ------------------------------------------------------------------------------------------------------- reading

    @telling
    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """Every topic that the caller may read."""
        may = self._may(context)

        async def listed() -> list[flight.FlightInfo]:
            names = [topic.name for topic in self._broker.topics() if may(topic.name)]
            return [self._info(Query(topic=name), flight.FlightDescriptor.for_path(name)) for name in names]

        with self._bridge.call():
            return iter(self._bridge.run(listed()))

    @telling
    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """What there is of a topic, in parts."""
        query = described(Query, descriptor)
        self._check_reading(context, query.topic, query.table)

        async def found() -> flight.FlightInfo:
            committer = self._broker.shard.committer
            answer = self._info(query, descriptor)
            await committer.wait(committer.submitted)
            return answer

        with self._bridge.call():
            return self._bridge.run(found())

    @telling
    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """The columns alone."""
        query = described(Query, descriptor)
        self._check_reading(context, query.topic, query.table)
        return flight.SchemaResult(reading.schema(Ticket(topic=query.topic, table=query.table, columns=query.columns)))

    def _info(self, query: Query, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        return reading.info(self._broker, query, descriptor)

    def _check_reading(self, context: flight.ServerCallContext, topic: str | None, table: str | None) -> None:
        """A table without a topic is cut to what the caller may read; who asks must be known all the same."""
        if topic is not None:
            self._check(context, "consume", topic)
        elif table is None or table == "dead":
            raise InvalidInput("topic", None, "the name of a topic")
        else:
            self._may(context)("*")

    @telling
    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """The batches of one part."""
        wanted = decoded(Ticket, ticket.ticket, "ticket")
        self._check_reading(context, wanted.topic, wanted.table)
        schema = reading.schema(wanted)
        return flight.GeneratorStream(schema, self._told(self._rows(wanted, context)))

    def _rows(self, ticket: Ticket, context: flight.ServerCallContext) -> Iterator[pa.RecordBatch]:
        with self._bridge.call():
            if ticket.table is None:
                yield from reading.batches(self._broker, self._bridge, ticket, context)
            else:
                rows = tables.rows(self._broker, ticket.table, ticket.topic, self._may(context))
                yield from self._bridge.iterate(rows, context)

    def _told(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told():
            yield from batches

    # ------------------------------------------------------------------------------------------------------- writing

    @telling
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
        with self._bridge.call():
            writing.write(self._broker, self._bridge, put, reader, writer, context)

    @telling
    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """A subscription that is pushed."""
        push = decoded(Push, descriptor.command or b"", "command")
        self._check(context, "consume", push.topic)
        with self._bridge.call():
            Pushing(self._broker, self._bridge, push, writer, context).run(reader)

    # ------------------------------------------------------------------------------------------------------- actions

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """What can be done."""
        return [(name, action.about) for name, action in ACTIONS.items()]

    @telling
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """Do one of them."""
        known, body = body_of(action.type, action.body.to_pybytes() if action.body is not None else b"")
        may, caller = self._may(context), self._caller(context)
        if isinstance(body, OfStage):
            body = body.owned(caller)

        async def done() -> object:
            for topic in known.topics(self._broker, body):
                self._check(context, known.right, topic)
            return await known.do(self._broker, body, may)

        with self._bridge.call():
            return [msgspec.json.encode(self._bridge.run(done(), context))]

    async def stop(self) -> None:
        """End what is under way, and stop.

        A call whose client says nothing and does not hang up cannot be ended from here: after a while it is left to
        its fate, which is that of the process.
        """
        self._bridge.close()
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            self.shutdown()
            with suppress(RuntimeError):  # nobody waited for it to the end: the loop is closed
                loop.call_soon_threadsafe(stopped.set)

        threading.Thread(target=shut_down, name="wherry flight stop", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), STOP_S)


@asynccontextmanager
async def serve(
    broker: Broker, host: str, port: int, *, guard: Guard = open_to_all, tls: Certificates | None = None
) -> AsyncIterator[FlightServer]:
    """A Flight server over a broker of this loop, while the `async with` lasts. Port 0 lets the system choose."""
    scheme = "grpc" if tls is None else "grpc+tls"
    location = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        server = FlightServer(location, broker, guard, tls)
    except (pa.ArrowException, OSError) as fault:
        raise InvalidInput("flight.port", f"{host}:{port}", f"an address to listen on ({fault})") from None
    threading.Thread(target=server.serve, name="wherry flight", daemon=True).start()
    try:
        yield server
    finally:
        await server.stop()
