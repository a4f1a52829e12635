"""The connection to a broker from a driver or a task: one for each process, address and key, over Flight.

Reads name their offsets and actions have the same result when done twice, so both are tried again for `retry_s` while
the broker cannot be reached. A put may not be repeated and is tried once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from wherry.client.link.backoff import Backoff
from wherry.model.errors import InvalidInput
from wherry.spark.faults import RAISED, error_of, passes
from wherry.spark.options.options import Options
from wherry.spark.read import nearby

ANSWER_S = 60.0
"""How long an action may take, besides the time that it was asked to wait."""

UNDER_WAY_MAX = 8
"""The most batches of a put without an answer: answers that are not read would stop the stream."""

_SETTINGS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 310_000),  # a server closes the connection for pings more often than every 5 minutes
    ("grpc.keepalive_timeout_ms", 20_000),
]

T = TypeVar("T")
Body = dict[str, Any]

_clients: dict[tuple[int, FlightLink], flight.FlightClient] = {}
_lock = threading.Lock()


class FlightLink(NamedTuple):
    """The address of a broker, and the key of the client; small, since it is sent to the tasks."""

    url: str
    key: str | None = None
    ca: str | None = None
    retry_s: float = 0.0

    def __repr__(self) -> str:
        return f"FlightLink({self.url!r})"  # the key appears in no message and no trace

    def action(self, name: str, body: Body, wait_ms: int = 0) -> Body:
        """Do an action and return its answer."""
        return self._patiently(lambda: self.ask(name, body, wait_ms))

    def ask(self, name: str, body: Body, wait_ms: int = 0) -> Body:
        """Do an action once and return its answer; errors as pyarrow raises them."""
        call = flight.Action(name, msgspec.json.encode(body))
        answers = list(self._client().do_action(call, self._call_options(ANSWER_S + wait_ms / 1_000)))
        return msgspec.json.decode(answers[0].body.to_pybytes()) if answers else {}

    def parts(self, command: Body) -> list[bytes]:
        """Return the tickets of the parts that a command is split into."""
        descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(command))
        info = self._patiently(lambda: self._client().get_flight_info(descriptor, self._call_options(ANSWER_S)))
        return [endpoint.ticket.ticket for endpoint in info.endpoints]

    def read(self, ticket: Body, *, files: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a part of a log; they must have the column `offset`.

        With `files` they are read from the broker's files, where these can be opened here. A connection that breaks is
        made again, and the read continues after the last offset.
        """
        at, trying = int(ticket.get("start", 0)), _Trying(self.retry_s)
        while True:
            try:
                rest = {**ticket, "start": at}
                for batch in nearby.batches(self, rest) if files and nearby.is_near(self.url) else self.once(rest):
                    yield batch
                    if batch.num_rows:
                        at, trying = batch.column("offset")[-1].as_py() + 1, _Trying(self.retry_s)
                return
            except RAISED as fault:
                trying.again(fault)

    def once(self, ticket: Body) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a ticket; errors as pyarrow raises them."""
        reader = self._client().do_get(flight.Ticket(msgspec.json.encode(ticket)), self._call_options(None))
        ended = False
        try:
            for chunk in reader:
                yield chunk.data
            ended = True
        finally:
            if not ended:
                reader.cancel()

    def put(self, command: Body, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
        """Write batches, and return the number of rows when all of them are durable."""
        descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(command))
        try:
            writer, answers = self._client().do_put(descriptor, schema, self._call_options(None))
        except RAISED as fault:
            raise error_of(fault) from None
        rows = under_way = 0
        try:
            for batch in batches:
                writer.write_batch(batch)
                rows, under_way = rows + batch.num_rows, under_way + 1
                if under_way >= UNDER_WAY_MAX:
                    under_way -= _answered(answers)
            writer.done_writing()
            while under_way:
                under_way -= _answered(answers)
            writer.close()
        except RAISED as fault:
            raise error_of(_true_fault(writer, fault)) from None
        # The maker of the batches failed: close the stream, so that the broker has ended it before we return.
        except BaseException as fault:
            _true_fault(writer, fault)
            raise
        return rows

    def _client(self) -> flight.FlightClient:
        name = (os.getpid(), self)
        with _lock:
            found = _clients.get(name)
            if found is None:
                trusted = {} if self.ca is None else {"tls_root_certs": _pem(self.ca)}
                found = _clients[name] = flight.FlightClient(self.url, generic_options=_SETTINGS, **trusted)
            return found

    def _call_options(self, timeout_s: float | None) -> flight.FlightCallOptions:
        headers = [] if self.key is None else [(b"authorization", f"Bearer {self.key}".encode())]
        return flight.FlightCallOptions(timeout=timeout_s, headers=headers)

    def _patiently(self, call: Callable[[], T]) -> T:
        trying = _Trying(self.retry_s)
        while True:
            try:
                return call()
            except RAISED as fault:
                trying.again(fault)


class _Trying:
    """The repeats of one call, until its time is up."""

    def __init__(self, retry_s: float) -> None:
        self._until = time.monotonic() + retry_s
        self._backoff = Backoff()

    def again(self, fault: BaseException) -> None:
        """Wait a little, or raise the broker's error if the call cannot succeed later or its time is up."""
        error = error_of(fault)
        pause_s = self._backoff.next_s()
        if not passes(error) or time.monotonic() + pause_s > self._until:
            raise error from None
        time.sleep(pause_s)


def link(options: Options) -> FlightLink:
    """Return the link to the broker that the options name."""
    return FlightLink(options.url, options.key, options.ca, options.retry_s)


def _answered(answers: flight.FlightMetadataReader) -> int:
    answer = answers.read()
    if answer is None:
        raise flight.FlightUnavailableError("the stream ended before all of it was answered")
    fault = msgspec.json.decode(answer.to_pybytes()).get("fault")
    if fault is not None:  # closing the stream raises the same error, with all its fields
        raise flight.FlightServerError(f"{fault['code']}: {fault['detail']}")
    return 1


def _true_fault(writer: flight.FlightStreamWriter, fault: BaseException) -> BaseException:
    """Return the error that closing the stream raises: a failed write only reports that the stream has ended."""
    try:
        writer.close()
    except RAISED as why:
        return why
    return fault


def _pem(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as fault:
        raise InvalidInput("ca", path, f"a PEM file of certificates ({fault})") from None
