"""The client: the calls of a broker, from anywhere.

>>> async def main():
...     async with wherry.connect("http://127.0.0.1:7070") as client:
...         await client.create_topic("jobs")
...         await client.subscribe("jobs", "workers")
...         await client.publish("jobs", [b"hello"])
...         async with client.consumer("jobs", "workers") as consumer:
...             async for message in consumer:
...                 await message.ack()
"""

from __future__ import annotations

import base64
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any, Literal, Unpack
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa

from wherry.client.batch import Batch
from wherry.client.catalog import CatalogCalls
from wherry.client.consumer import Consumer
from wherry.client.frames import Columns, batch_of, encode, parts_of
from wherry.client.link.address import Address
from wherry.client.link.credential import KeyOrSource
from wherry.client.link.pool import CONNECTIONS_MAX, TIMEOUT_S, WAITS_MAX
from wherry.client.link.transport import ARROW, JSON, ClientRequest, Transport
from wherry.client.native.publishing import prepare
from wherry.client.native.transport import NativeTransport, Wire
from wherry.client.options import CONSUMER, ConsumerOptions, ProducerOptions
from wherry.client.producer import Producer, publish_again
from wherry.client.requests import Caller, PublishedView, SubscriptionRequests, built, encoded, parsed, path
from wherry.model import check
from wherry.model.calls.amendment import Amended, Amendment
from wherry.model.calls.dead import AuditRecord, DeadFilter
from wherry.model.calls.fate import (
    FATES,
    OUTCOME_MS_MAX,
    Fate,
    Fates,
)
from wherry.model.calls.listing import LISTED, Search
from wherry.model.calls.publish import CommittedParts, Published, PublishOptions
from wherry.model.catalog.topic import Mesh
from wherry.model.errors import InvalidInput, NotFound
from wherry.model.limits import BATCH_MESSAGES_MAX, PRODUCER_CALLS_MAX

BATCH_MESSAGES = 10_000
BATCH_BYTES = 8 << 20
"""One call of `publish_batch`."""

REDRIVE_S = 24 * 3_600.0
"""A redrive at a rate answers when all dead letters are sent back."""


def connect(
    url: str = "http://127.0.0.1:7070",
    *,
    key: KeyOrSource = None,
    tls: ssl.SSLContext | None = None,
    wire: Wire = "auto",
    connections: int = CONNECTIONS_MAX,
    waits: int = WAITS_MAX,
    timeout_s: float = TIMEOUT_S,
) -> Client:
    """Return a client of the broker at an address; a connection is made when it is needed.

    Parameters
    ----------
    url
        `http://host:port`, `https://host:port`, or `unix:///path` of a Unix socket.
    key
        An API key, where the broker asks for one; white space around it is dropped. Or an access token, or a source
        of tokens such as `ClientCredentials`, or a function that returns one: a source is asked at each connection,
        and once more if its token is refused.
    tls
        For `https`: certificates other than the system's.
    wire
        `auto`: the native wire, which carries everything over one connection, and HTTP where a server or a proxy
        refuses it. `native` raises `Unavailable` there; `http` does not try.
    connections
        Calls under way at a time, at most, each on a connection of its own over HTTP; more wait for one to end.
        Publishes and acks over the native wire are not counted.
    waits
        The same for calls that wait for messages or outcomes at the broker: these hold up no other call.
    timeout_s
        For one request, not counting what the broker was asked to wait.

    Examples
    --------
    >>> async def main():
    ...     async with wherry.connect("http://127.0.0.1:7070") as client:
    ...         await client.publish("jobs", [b"hello"])
    """
    bounds = {"connections": connections, "waits": waits}
    return Client(NativeTransport(Address.parse(url), key, tls=tls, wire=wire, timeout_s=timeout_s, **bounds))


class Client(CatalogCalls):
    """The calls of a broker over a transport. They raise what the broker raises, or `Unavailable`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._caller = Caller(transport)
        self.native = transport if isinstance(transport, NativeTransport) else None
        """The native wire, where the transport has it."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    # ------------------------------------------------------------------------------------------------------- publish

    async def publish(self, topic: str, messages: Columns, options: PublishOptions | None = None) -> Published:
        """Publish messages in one call, all of them or none; on return they are on disk (unless they are transient).

        `messages` is an Arrow batch or table with a `payload` column (and any of `id`, `key`, `priority`, `due`,
        `expires`, `headers`), the same from pandas or polars, a list of bytes, text or `Message`, or one of these.
        """
        native = self.native
        if native is not None and not native.is_refused:
            prepared = prepare(topic, messages, options)
            session = native.session
            if session is None or session.is_full:
                session = await native.ready()
            if session is not None and (not prepared.chunks or prepared.fits):
                return await prepared.send(session, topic)
        target = path("topics", topic, "messages", ids=False, **_query(options))
        answer = await self._caller.send(ClientRequest("POST", target, encode(batch_of(messages)), ARROW))
        return parsed(answer, PublishedView).published()

    async def publish_and_wait(
        self,
        topic: str,
        messages: Columns,
        options: PublishOptions | None = None,
        *,
        until: Literal["delivered", "settled"] = "settled",
        timeout_ms: int = 30_000,
    ) -> tuple[Published, Fates]:
        """Publish in one call, and wait until each message is delivered, or until each is settled, dead or gone.

        After `timeout_ms` (1..600,000) it returns the fates so far. `Unavailable`: they may have been published; only a
        call with `producer` and `sequence` in its options can be made again without storing them twice.

        Examples
        --------
        >>> async def main(client):
        ...     published, fates = await client.publish_and_wait("jobs", [b"hello"], timeout_ms=5_000)
        ...     return dict(zip(published.ids(), fates.words()))
        """
        check.one_of("until", until, ("delivered", "settled"))
        check.integer("timeout_ms", timeout_ms, 1, OUTCOME_MS_MAX)
        query = _query(options) | {"wait": until, "timeout_ms": timeout_ms}
        ask = ClientRequest(
            "POST", path("topics", topic, "messages", ids=True, **query), encode(batch_of(messages)), ARROW
        )
        ask.wait_s = timeout_ms / 1000
        view = parsed(await self._caller.send(ask), PublishedView)
        published = view.published()
        codes = np.array([FATES.index(word) for word in view.fates], np.int64)
        return published, Fates(published.partition, published.offset, codes)

    async def publish_batch(
        self,
        topic: str,
        data: Columns,
        *,
        batch_messages: int = BATCH_MESSAGES,
        producer: str | None = None,
        sequence: int = 0,
    ) -> Published:
        """Publish a table of any size: in calls of at most so many messages, tried again until the broker took them.

        Each call is stored whole. `producer` and `sequence` make the table itself idempotent: the same again (with the
        same `batch_messages`), after an error or a restart, is answered with the same offsets. The broker remembers the
        last 64 calls of a producer, so such a table is sent in no more calls than that, larger ones where needed; and
        only the last table of a producer may be repeated: an earlier one is refused (`OutOfSequence`).
        """
        check.integer("batch_messages", batch_messages, 1, BATCH_MESSAGES_MAX)
        name = producer or f"table-{secrets.token_hex(8)}"
        done: list[Published] = []
        for batch in parts_of(data, batch_messages, BATCH_BYTES, PRODUCER_CALLS_MAX if producer else None):
            done.append(await publish_again(self, topic, batch, PublishOptions(producer=name, sequence=sequence)))
            sequence += batch.num_rows
        return Published(
            np.concatenate([each.partition for each in done]),
            np.concatenate([each.offset for each in done]),
            all(each.repeated for each in done),
            sum(each.dead for each in done),
            all(each.durable for each in done),
            done[0].mesh,
        )

    async def publish_route(
        self, route: str, messages: Columns, *, routing_key: str = "", headers: Mapping[str, str] | None = None
    ) -> dict[str, Published]:
        """Publish through a route: a copy for each topic that matches, all of them or none.

        Direct and pattern routes match the `routing_key`, headers routes match the `headers`: both are of the call, not
        of its messages. They are sent as HTTP headers, so upper and lower case are the same in their names.

        Examples
        --------
        >>> async def main(client):
        ...     await client.publish_route("regions", [b"hello"], headers={"region": "eu"})
        """
        target = path("routes", route, "messages", routing_key=routing_key)
        ask = ClientRequest("POST", target, encode(batch_of(messages)), ARROW, headers=_routing(headers or {}))
        answer = await self._caller.send(ask)
        return {topic: view.published() for topic, view in parsed(answer, _Routed).topics.items()}

    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Producer:
        """Return a producer, which publishes messages one by one, batched in the background: see `ProducerOptions`."""
        return Producer(self, topic, **options)

    # -------------------------------------------------------------------------------------------------- transactions

    async def stage(self, key: str, topic: str, messages: Columns, *, partition: int | None = None) -> None:
        """Store messages under a key; they are durable, and not delivered before `commit`."""
        target = path("transactions", key, "topics", topic, "messages", partition=partition)
        await self._caller.send(ClientRequest("POST", target, encode(batch_of(messages)), ARROW))

    async def commit(self, key: str) -> CommittedParts:
        """Publish everything under a key at once; the same again is a success that does nothing."""
        answer = await self._caller.json("POST", path("transactions", key, "commit"), _Committed)
        return CommittedParts(answer.placed, answer.mesh)

    async def abort(self, key: str) -> None:
        """Discard what is stored under a key."""
        await self._caller.send_json("DELETE", path("transactions", key))

    # ------------------------------------------------------------------------------------------------------- consume

    async def pull(
        self,
        topic: str,
        subscription: str,
        messages: int = 1_000,
        *,
        bytes_max: int = CONSUMER["pull_bytes"],
        wait_ms: int = 0,
        consumer: str | None = None,
    ) -> Batch:
        """Pull up to so many messages on lease, with nothing in the background; an empty batch if none came in time."""
        return await self.subscription_requests(topic, subscription).pull(messages, bytes_max, wait_ms, consumer)

    def consumer(self, topic: str, subscription: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Return a consumer, which pulls in the background: see `ConsumerOptions`."""
        return Consumer(self, topic, subscription, **options)

    def subscription_requests(self, topic: str, subscription: str) -> SubscriptionRequests:
        """Return the calls on one subscription."""
        return SubscriptionRequests(self._caller, topic, subscription)

    # ---------------------------------------------------------------------------------------------------------- look

    async def get(self, topic: str, message_id: str) -> pa.RecordBatch:
        """Return one message by id, as a batch of one row; empty if it is not in the topic any more."""
        try:
            return await self._caller.listing("topics", topic, "messages", message_id)
        except NotFound:
            await self.topic(topic)  # a topic that does not exist is an error
            return pa.RecordBatch.from_pylist([], LISTED)

    async def mesh(self) -> dict[str, Any]:
        """Return the node's view of the mesh of `flow` topics: links to peers, and what peers have not read yet."""
        return await self._caller.json("GET", path("mesh"), dict[str, Any])

    async def fate(self, topic: str, message_id: str) -> Fate:
        """Return what became of a message: as a whole, and for each subscription."""
        return await self._caller.json("GET", path("topics", topic, "messages", message_id, "fate"), Fate)

    async def cancel(self, topic: str, message_id: str) -> None:
        """Cancel a waiting message; raise `NotWaiting` if it is leased or settled."""
        await self._caller.send_json("DELETE", path("topics", topic, "messages", message_id))

    async def amend(
        self,
        topic: str,
        message_id: str,
        change: Amendment | None = None,
        /,
        *,
        version: int | None = None,
        **fields: Any,
    ) -> Amended:
        """Change a waiting message: `amend("jobs", id, due_ms=…, version=1)`. A stale version is refused."""
        wanted = change if change is not None else built(Amendment, **fields)
        body = {name: value for name, value in asdict(wanted).items() if value is not None}
        if "payload" in body:
            body["payload_base64"] = base64.b64encode(body.pop("payload")).decode()
        if version is not None:
            body["version"] = version
        view = await self._caller.json("PATCH", path("topics", topic, "messages", message_id), _Amended, body)
        return Amended(message_id, view.partition, view.offset, view.version)

    async def browse(self, topic: str, *, partition: int = 0, start: int = 0, limit: int = 1_000) -> pa.RecordBatch:
        """Return messages of a partition by offset, without consuming them."""
        return await self._caller.listing("topics", topic, "messages", partition=partition, start=start, limit=limit)

    async def search(self, topic: str, wanted: Search | None = None, /, **fields: Any) -> pa.RecordBatch:
        """Find messages by key, headers or time: `search("jobs", key="user-7", limit=10)`."""
        query = asdict(wanted if wanted is not None else built(Search, **fields))
        headers = query.pop("headers") or {}
        query["header"] = [f"{name}:{value}" for name, value in headers.items()] or None
        return await self._caller.listing("topics", topic, "search", **query)

    async def scheduled(
        self, topic: str, subscription: str, *, from_ms: int | None = None, to_ms: int | None = None, limit: int = 1_000
    ) -> pa.RecordBatch:
        """Return messages that will be delivered to a subscription in a time range, soonest first."""
        of = ("topics", topic, "subscriptions", subscription, "scheduled")
        return await self._caller.listing(*of, from_ms=from_ms, to_ms=to_ms, limit=limit)

    # -------------------------------------------------------------------------------------------------- dead letters

    async def dead_letters(self, topic: str, wanted: DeadFilter | None = None) -> pa.RecordBatch:
        """Return dead letters with the whole message, the reason, the last error, attempts and times."""
        query = asdict(wanted or DeadFilter(limit=1_000))
        offsets = query.pop("offsets")
        query["offset"] = None if offsets is None else list(offsets)
        return await self._caller.listing("topics", topic, "dead", **query)

    async def redrive(
        self, topic: str, wanted: DeadFilter | None = None, *, by: str = "", rate: int | None = None
    ) -> int:
        """Send dead letters back to wait again, at most `rate` a second; return how many. `by` is shown in `audit`."""
        body = encoded({"filter": asdict(wanted or DeadFilter()), "by": by, "rate": rate})
        ask = ClientRequest("POST", path("topics", topic, "dead", "redrive"), [body], JSON)
        ask.wait_s = REDRIVE_S if rate is not None else 0.0
        return parsed(await self._caller.send(ask), _Count).count

    async def discard(self, topic: str, wanted: DeadFilter, *, by: str = "") -> int:
        """Discard dead letters; return how many."""
        body = {"filter": asdict(wanted), "by": by}
        return (await self._caller.json("POST", path("topics", topic, "dead", "discard"), _Count, body)).count

    async def audit(self, topic: str) -> list[AuditRecord]:
        """Return who redrove or discarded dead letters of a topic, when and how many; newest last."""
        view = await self._caller.json("GET", path("topics", topic, "dead", "audit"), _Audit)
        return [AuditRecord(**record) for record in view.records]


class _Routed(msgspec.Struct):
    topics: dict[str, PublishedView]


class _Committed(msgspec.Struct):
    placed: list[tuple[str, int, int, int]]
    mesh: dict[str, Mesh] = {}


class _Amended(msgspec.Struct):
    version: int
    partition: int
    offset: int


class _Count(msgspec.Struct):
    count: int


class _Audit(msgspec.Struct):
    records: list[dict[str, Any]]


_OPTIONS = tuple(name for name in PublishOptions.__dataclass_fields__ if name != "origin")


def _query(options: PublishOptions | None) -> dict[str, Any]:
    if options is not None and not isinstance(options, PublishOptions):
        raise InvalidInput("options", options, "PublishOptions, or None")
    return {} if options is None else {name: getattr(options, name) for name in _OPTIONS}


def _routing(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, Mapping):
        raise InvalidInput("headers", given, "a dict of text to text")
    named: dict[str, str] = {}
    for name, value in given.items():
        folded = check.text("headers", name).lower()
        if not name or folded in named:
            raise InvalidInput(
                "headers", name, "names that differ by more than upper and lower case, none of them empty"
            )
        named[folded] = check.text("headers", value)
    return tuple((f"wherry-route-{quote(name, safe='')}", quote(value, safe="")) for name, value in named.items())
