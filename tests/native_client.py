"""A small client of the native wire over its codec, for tests: in memory with a session, or over a socket."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from wherry.wire.native.codec import calls, deliveries, documents, publishes, settles
from wherry.wire.native.codec.calls import CallHead
from wherry.wire.native.codec.documents import ClientHello, SubscribeTerms
from wherry.wire.native.codec.frames import PATH, PROTOCOL, Chunk, Flag, Kind
from wherry.wire.native.codec.publishes import ConfirmEntry, PublishTerms
from wherry.wire.native.codec.reader import Frame, FrameReader
from wherry.wire.native.codec.rows import DeliveredRow, RowFields
from wherry.wire.native.codec.settles import SettlePart, SettleTerms, Verb

T = TypeVar("T")
PATIENCE_S = 60.0


class NativeError(Exception):
    """An ERROR frame; `problem` is its document."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("detail"))
        self.problem = problem
        self.code, self.field = problem["code"], problem.get("field")


class NativeClient:
    """Sends requests, and collects what comes back by request and by stream."""

    def __init__(self) -> None:
        self.reader = FrameReader("server")
        self.hello: documents.ServerHello | None = None
        self.goodbye: str | None = None
        self.fault: NativeError | None = None
        """An ERROR of the connection."""
        self.is_closed = False
        self.frames: list[Frame] = []
        """All frames that came, in order."""
        self.writes = 0
        """How often the server has written."""
        self.pongs: list[int] = []
        self.pings = 0
        self.answers: dict[int, Any] = {}
        """By request: a ConfirmEntry of its own, True for a settle, (head, body) of a call, or a NativeError."""
        self.subscribed: dict[int, documents.StreamTerms] = {}
        self.rows: dict[int, deque[DeliveredRow]] = {}
        self.tables: dict[int, list[pa.RecordBatch]] = {}
        self.ended: dict[int, NativeError | None] = {}
        """Streams that have ended, with their error."""
        self._number = 0
        self._stream = 0
        self._news = asyncio.Event()
        self._rows_of: dict[int, int] = {}

    # ------------------------------------------------------------------------------------------------------------ bytes

    def write(self, data: bytes) -> None:
        """Send bytes to the server."""
        raise NotImplementedError

    def take(self, data: bytes) -> None:
        """Take bytes from the server."""
        self.writes += 1
        for frame in self.reader.feed(data):
            self.frames.append(frame)
            self._take(*frame)
        assert self.reader.fault is None, self.reader.fault
        self._news.set()

    def end(self) -> None:
        """Note that the connection is closed."""
        self.is_closed = True
        self._news.set()

    def send(self, *chunks: Chunk) -> None:
        """Send a frame."""
        self.write(b"".join(map(bytes, chunks)))

    async def until(self, condition: Any) -> Any:
        """Wait until `condition()` is true; return it."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := condition()):
                self._news.clear()
                await self._news.wait()
        return found

    # ----------------------------------------------------------------------------------------------------------- frames

    def _take(self, kind: int, flags: int, number: int, body: bytes) -> None:
        if kind == Kind.CONFIRM:
            for entry in publishes.decode_confirm(body):
                self._confirm(entry)
        elif kind == Kind.SETTLED:
            for first, count in settles.decode_settled(body):
                self.answers.update(dict.fromkeys(range(first, first + count), True))
        elif kind == Kind.DELIVER:
            self._deliver(flags, number, body)
        elif kind == Kind.ANSWER:
            self.answers[number] = calls.decode_answer(body)
        elif kind == Kind.SUBSCRIBED:
            self.subscribed[number] = documents.decode_document("server", documents.StreamTerms, body)
        elif kind == Kind.CANCEL:
            self.ended[number] = None
        elif kind == Kind.ERROR:
            self._error(flags, number, NativeError(msgspec.json.decode(body)))
        else:
            self._take_other(kind, number, body)

    def _take_other(self, kind: int, number: int, body: bytes) -> None:
        if kind == Kind.HELLO:
            self.hello = documents.decode_document("server", documents.ServerHello, body)
        elif kind == Kind.GOODBYE:
            self.goodbye = documents.decode_document("server", documents.GoodbyeDocument, body).reason
        elif kind == Kind.PONG:
            self.pongs.append(number)
        elif kind == Kind.PING:
            self.pings += 1

    def _confirm(self, entry: ConfirmEntry) -> None:
        offset = entry.offset
        for number in range(entry.first, entry.first + entry.requests):
            self.answers[number] = entry._replace(first=number, requests=1, offset=offset)
            offset += self._rows_of.pop(number)

    def _deliver(self, flags: int, number: int, body: bytes) -> None:
        if flags & Flag.ARROW:
            self.tables.setdefault(number, []).extend(pa.ipc.open_stream(body))
        else:
            self.rows.setdefault(number, deque()).extend(deliveries.decode_deliver(body))

    def _error(self, flags: int, number: int, fault: NativeError) -> None:
        if not number:
            self.fault = fault
        elif flags & Flag.STREAM:
            self.ended[number] = fault
        else:
            self.answers[number] = fault

    # --------------------------------------------------------------------------------------------------------- requests

    def greet(self, **fields: Any) -> None:
        """Send HELLO."""
        self.send(documents.encode_hello(ClientHello(name="test", **fields)))

    def number(self) -> int:
        """Return the next number for a request."""
        self._number += 1
        return self._number

    async def answer(self, number: int) -> Any:
        """Wait for the answer to a request; raise it if it is an error."""
        await self.until(lambda: number in self.answers or self.is_closed)
        found = self.answers.pop(number)
        if isinstance(found, NativeError):
            raise found
        return found

    def begin_publish(
        self,
        topic: str,
        *payloads: bytes,
        fields: list[RowFields] | None = None,
        terms: PublishTerms | None = None,
        quiet: bool = False,
    ) -> int:
        """Send a PUBLISH; return its number."""
        number, options = self.number(), documents.encode_options(terms or PublishTerms())
        self._rows_of[number] = len(payloads)
        self.send(publishes.encode_publish(number, topic, payloads, fields, options, quiet=quiet))
        return number

    async def publish(self, topic: str, *payloads: bytes, **more: Any) -> ConfirmEntry:
        """Publish rows; return the confirm."""
        entry: ConfirmEntry = await self.answer(self.begin_publish(topic, *payloads, **more))
        return entry

    def begin_arrow(self, topic: str, batch: pa.RecordBatch, options: bytes = b"") -> int:
        """Send a PUBLISH of a batch; return its number."""
        number, sink = self.number(), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        self._rows_of[number] = batch.num_rows
        self.send(*publishes.encode_publish_arrow(number, topic, [sink.getvalue()], options))
        return number

    def begin_subscribe(self, topic: str, subscription: str, **fields: Any) -> int:
        """Send a SUBSCRIBE; return the number of the stream."""
        self._stream += 1
        terms = SubscribeTerms(topic=topic, subscription=subscription, **fields)
        self.send(documents.encode_subscribe(self._stream, terms))
        return self._stream

    async def subscribe(self, topic: str, subscription: str, **fields: Any) -> int:
        """Open a stream; return its number."""
        stream = self.begin_subscribe(topic, subscription, **fields)
        await self.until(lambda: stream in self.subscribed or stream in self.ended or self.is_closed)
        if (fault := self.ended.get(stream)) is not None:
            raise fault
        return stream

    async def next_rows(self, stream: int, count: int = 1) -> list[DeliveredRow]:
        """Wait for so many rows of a stream."""
        await self.until(lambda: len(self.rows.get(stream, ())) >= count)
        return [self.rows[stream].popleft() for _ in range(count)]

    def credit(self, stream: int, messages: int) -> None:
        """Grant credit."""
        self.send(deliveries.encode_credit(stream, messages))

    def cancel(self, stream: int) -> None:
        """End a stream."""
        self.send(documents.encode_cancel(stream, stream=True))

    def begin_settle(self, stream: int, verb: Verb, parts: list[SettlePart], **terms: Any) -> int:
        """Send a SETTLE; return its number."""
        number, options = self.number(), documents.encode_options(SettleTerms(**terms))
        self.send(settles.encode_settle(number, stream, verb, parts, options))
        return number

    async def settle(self, stream: int, verb: Verb, *rows: DeliveredRow, **terms: Any) -> None:
        """Settle rows."""
        parts: list[SettlePart] = [(row.token, [(row.offset, 1)]) for row in rows]
        await self.answer(self.begin_settle(stream, verb, parts, **terms))

    async def renew(self, stream: int, *tokens: int, lease_ms: int | None = None) -> None:
        """Renew leases."""
        number = self.number()
        self.send(settles.encode_renew(number, stream, tokens, lease_ms))
        await self.answer(number)

    def begin_call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> int:
        """Send a CALL; return its number."""
        number = self.number()
        self.send(*calls.encode_call(number, CallHead(method, path, headers or {}), [body] if body else []))
        return number

    async def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        """Make a call; return the status, and the body as JSON if it is JSON."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        head, content = await self.answer(self.begin_call(method, path, body, given))
        is_json = "json" in head.headers.get("content-type", "")
        return head.status, msgspec.json.decode(content) if is_json else bytes(content)

    async def leave(self) -> None:
        """Send GOODBYE, and wait for the end."""
        self.send(documents.encode_goodbye("done"))
        await self.until(lambda: self.is_closed)


class SocketClient(NativeClient):
    """The same over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._in, self._out = reader, writer
        self._reading = asyncio.create_task(self._read())

    def write(self, data: bytes) -> None:
        self._out.write(data)

    async def _read(self) -> None:
        try:
            while data := await self._in.read(1 << 16):
                self.take(data)
        except ConnectionError:
            pass
        await self._hang_up()
        self.end()

    async def _hang_up(self) -> None:
        self._out.close()
        with suppress(ConnectionError, ssl.SSLError):
            await self._out.wait_closed()

    async def close(self) -> None:
        """Close without a word."""
        self._reading.cancel()
        await self._hang_up()
        self.end()


async def upgraded(
    place: tuple[str, int] | str, *, key: str | None = None, tls: ssl.SSLContext | None = None, **hello: Any
) -> SocketClient:
    """Connect to an address or a Unix socket, upgrade, and greet; raise `ConnectionError` with a refusal."""
    if isinstance(place, str):
        reader, writer = await asyncio.open_unix_connection(place)
    else:
        reader, writer = await asyncio.open_connection(*place, ssl=tls)
    lines = [f"GET {PATH} HTTP/1.1", "Host: localhost", "Connection: Upgrade", f"Upgrade: {PROTOCOL}"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    writer.write("\r\n".join([*lines, "", ""]).encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    if not head.startswith("HTTP/1.1 101"):
        body = await reader.read(1 << 16)
        writer.close()
        await writer.wait_closed()
        raise ConnectionError(head + body.decode())
    client = SocketClient(reader, writer)
    client.greet(**hello)
    await client.until(lambda: client.hello or client.is_closed)
    return client


async def soon(work: Awaitable[T]) -> T:
    """Wait for work that must not take long."""
    async with asyncio.timeout(PATIENCE_S):
        return await work
