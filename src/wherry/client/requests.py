"""The requests behind `Client`: what is sent, what is returned, and the errors that are raised instead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa

from wherry.client.batch import LEASE, Batch, LeaseParts
from wherry.client.frames import decode
from wherry.client.link.errors import error_of
from wherry.client.link.transport import ARROW, JSON, ClientRequest, ClientResponse, Transport
from wherry.model.calls.publish import Published
from wherry.model.catalog.topic import Mesh
from wherry.model.errors import InvalidInput, Unavailable
from wherry.model.schema import DELIVERED

T = TypeVar("T")

NOTHING = pa.RecordBatch.from_pylist([], DELIVERED.append(pa.field(LEASE, pa.int64())))


def path(*parts: str, **query: object) -> str:
    """Return a target under `/v1` of names, which may contain anything, and of the arguments that are not None."""
    given = "&".join(_argument(name, value) for name, value in query.items() if value is not None)
    return f"{_quoted(parts)}?{given}" if given else _quoted(parts)


@lru_cache(maxsize=1_024)
def _quoted(parts: tuple[str, ...]) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _argument(name: str, value: object) -> str:
    if isinstance(value, list):
        return "&".join(_argument(name, each) for each in value)
    if isinstance(value, bool):
        value = str(value).lower()
    return f"{name}={value}" if isinstance(value, int) else f"{name}={quote(str(value), safe='')}"


def built(kind: Any, **fields: Any) -> Any:
    """Return a value of this class with these fields, or raise `InvalidInput` for fields that it does not have."""
    try:
        return kind(**fields)
    except TypeError as fault:
        raise InvalidInput(f"{kind.__name__} fields", str(fault), f"the fields of {kind.__name__}") from None


class Caller:
    """Sends requests over a transport; raises the error that the broker answers with."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def send(self, request: ClientRequest) -> ClientResponse:
        """Send any request."""
        answer = await self._transport.ask(request)
        if not answer.ok:
            raise error_of(answer)
        return answer

    async def json(self, method: str, target: str, kind: type[T], body: object = None) -> T:
        """Send JSON, return the JSON of the answer as a value of this type."""
        return parsed(await self.send_json(method, target, body), kind)

    async def send_json(self, method: str, target: str, body: object = None) -> ClientResponse:
        """Send JSON, return the answer."""
        if body is None:
            return await self.send(ClientRequest(method, target))
        return await self.send(ClientRequest(method, target, [encoded(body)], JSON))

    async def listing(self, *parts: str, limit: int | None = None, **query: object) -> pa.RecordBatch:
        """Return messages in columns, all pages of them."""
        pages = [decode(page) async for page in self.pages(parts, query, ARROW, limit, _rows)]
        return pages[0] if len(pages) == 1 else pa.concat_batches(pages)

    async def pages(
        self,
        parts: tuple[str, ...],
        query: dict[str, object],
        kind: str,
        limit: int | None,
        count: Callable[[ClientResponse], int],
    ) -> AsyncIterator[ClientResponse]:
        """Yield the pages of a listing, until there are `limit` rows, which `count` counts."""
        after: str | None = None
        while True:
            answer = await self.send(ClientRequest("GET", path(*parts, **query, limit=limit, after=after), accept=kind))
            yield answer
            after = answer.following
            limit = None if limit is None else limit - count(answer)
            if after is None or limit == 0:
                return


def _rows(page: ClientResponse) -> int:
    return int(decode(page).num_rows)


def encoded(body: object) -> bytes:
    """Return a body as JSON; raise `InvalidInput` with the field that JSON cannot hold."""
    fields = body.items() if isinstance(body, dict) else [("body", body)]
    for name, value in fields:
        if isinstance(value, float) and not isfinite(value):  # JSON would make null of it, which means something else
            raise InvalidInput(name, value, "a number")
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as fault:
        wrong = [(name, value) for name, value in fields if not _is_json(value)]
        name, value = wrong[0] if wrong else ("body", body)
        raise InvalidInput(name, value, f"a value that JSON can hold ({fault})") from None


def _is_json(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def parsed(answer: ClientResponse, kind: type[T]) -> T:
    """Return the value of a JSON answer."""
    try:
        return msgspec.json.decode(memoryview(answer.body), type=kind)
    except msgspec.MsgspecError as fault:
        raise Unavailable(f"this is not an answer of a Wherry broker: {fault}") from fault


class PublishedView(msgspec.Struct):
    """The answer to a publish: `[partition, first offset, count]` for each run of messages."""

    placed: list[tuple[int, int, int]]
    repeated: bool = False
    dead: int = 0
    durable: bool = True
    fates: list[str] = []
    mesh: Mesh = "safe"

    def published(self) -> Published:
        """Return the same as a broker in process does."""
        if len(self.placed) == 1:
            [(partition, first, count)] = self.placed
            offsets = np.arange(first, first + count)
            return Published(np.full(count, partition), offsets, self.repeated, self.dead, self.durable, self.mesh)
        counts = [count for _, _, count in self.placed]
        return Published(
            np.repeat(np.array([partition for partition, _, _ in self.placed], np.int64), counts),
            np.concatenate([np.arange(first, first + count) for _, first, count in self.placed] or [np.empty(0, int)]),
            self.repeated,
            self.dead,
            self.durable,
            self.mesh,
        )


class SubscriptionRequests:
    """Pulls messages from one subscription and settles them."""

    def __init__(self, caller: Caller, topic: str, subscription: str) -> None:
        self._caller = caller
        self.topic, self.subscription = topic, subscription
        self._at = ("topics", topic, "subscriptions", subscription)

    async def pull(
        self, messages: int, bytes_max: int, wait_ms: int, consumer: str | None = None, *, acks: bool = True
    ) -> Batch:
        """Pull up to so many messages and bytes; an empty batch if none came in time."""
        target = path(
            *self._at, "pull", messages=messages, bytes=bytes_max, wait_ms=wait_ms, consumer=consumer, columns="present"
        )
        answer = await self._caller.send(ClientRequest("POST", target, accept=ARROW, wait_s=wait_ms / 1000))
        return Batch.pulled(self, decode(answer) if len(answer.body) else NOTHING, acks=acks)

    async def settle(self, verb: str, parts: LeaseParts, **fields: object) -> None:
        """See `batch.BatchRequests`."""
        receipts = receipts_of(parts)
        kind, _, key = verb.partition(":")
        target = path("transactions", key, *self._at, "ack") if kind == "stage" else path(*self._at, verb)
        await self._caller.send_json("POST", target, {"receipts": receipts, **_given(fields)})

    async def leave(self, consumer: str) -> None:
        """Remove a consumer: messages that it held wait again."""
        await self._caller.send_json("DELETE", path(*self._at, "consumers", consumer))


def receipts_of(parts: LeaseParts) -> list[str]:
    """Return messages as receipts: the text that HTTP names them by."""
    receipts: list[str] = []
    for token, ranges in parts:
        receipts += [f"{token}:{a}" if n == 1 else f"{token}:{a}-{a + n - 1}" for a, n in ranges] or [str(token)]
    return receipts


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}
