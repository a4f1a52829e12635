"""Publish messages to a topic, in any of the formats."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Literal

import msgspec
import numpy as np

from wherry.broker.waiting.slices import Slices
from wherry.model import check, limits
from wherry.model.calls.fate import OUTCOME_MS_MAX, Fates
from wherry.model.calls.publish import FINGERPRINT_MAX, Published, PublishOptions
from wherry.model.catalog.topic import Mesh
from wherry.model.errors import InvalidInput, OutOfSequence
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.api.terms import (
    CallbackUrl,
    FateWord,
    Fingerprint,
    OutcomeMs,
    Partition,
    ProducerName,
    Sequence,
)
from wherry.wire.http.formats import TAKES, take_messages, take_one
from wherry.wire.http.protocol.message import (
    ARROW,
    JSON,
    Answer,
    Bytes,
    Request,
    Response,
    json_response,
)

TABLE = EndpointGroup("publish")
_ENCODER = msgspec.json.Encoder()

IDEMPOTENCY_KEY = "idempotency-key"

IDS_MAX = 4_096
"""Ids that are written before other tasks run."""

HASHED_BYTES_MAX = 1 << 20
"""Larger bodies are hashed in a thread: hashing does not hold the interpreter."""


class PublishQuery(msgspec.Struct, frozen=True):
    """How to publish.

    Without `producer` and `sequence` a call that is sent again is stored again. A `fingerprint` identifies the content
    of the messages: the same numbers with another fingerprint are refused, not taken for a repeat. `wait` delays the
    answer until every message was handed over, or is over (settled, dead, cancelled, expired or dropped), for
    `timeout_ms` at most; both outcomes are sent to `callback`.
    """

    partition: Partition | None = None
    producer: ProducerName | None = None
    sequence: Sequence | None = None
    fingerprint: Fingerprint | None = None
    persistent: bool | None = None
    wait: Literal["stored", "delivered", "settled"] = "stored"
    timeout_ms: OutcomeMs = 30_000
    callback: CallbackUrl | None = None
    ids: bool | None = None


_PLAIN = PublishQuery()


class PublishedView(msgspec.Struct, omit_defaults=True):
    """Where the messages are stored: runs of `[partition, first offset, count]` in the order of the call.

    `mesh` is the guarantee between nodes: `safe`, or `flow` for messages that are stored here and passed on to the
    other nodes of the mesh later. With `wait`, `fate` is the fate of the one message, or, for many messages, how many
    have which fate; with `ids`, `fates` has one for each message.
    """

    count: int
    placed: list[tuple[int, int, int]]
    repeated: bool
    dead: int
    durable: bool
    mesh: Mesh
    ids: list[str] | msgspec.UnsetType = msgspec.UNSET
    fate: FateWord | dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    fates: list[FateWord] | msgspec.UnsetType = msgspec.UNSET


def published_view(published: Published, fates: Fates | None = None, *, ids: bool) -> PublishedView:
    """Return the answer to a publish, as a struct."""
    view = PublishedView(
        len(published.offset),
        placed(published),
        published.repeated,
        published.dead,
        published.durable,
        published.mesh,
    )
    if ids:
        view.ids = published.ids()
    if fates is not None:
        view.fate = fates.words()[0] if len(fates) == 1 else fates.counts()
        if ids:
            view.fates = fates.words()
    return view


async def published_response(published: Published, fates: Fates | None, slices: Slices, *, ids: bool) -> Response:
    """Return the answer to a publish; the ids of many messages are written slice by slice, between other tasks."""
    count = len(published.offset)
    if not ids or fates is not None or count <= IDS_MAX:
        return json_response(published_view(published, fates, ids=ids), 201)
    (start,) = json_response(published_view(published, ids=False)).body
    parts: list[Bytes] = [bytes(start)[:-1], b',"ids":[']
    for first in range(0, count, IDS_MAX):
        await slices.turn()
        some = _ENCODER.encode(published.ids(first, first + IDS_MAX))[1:-1]
        parts += [b",", some] if first else [some]
    return Response(201, [*parts, b"]}"], JSON)


def placed(published: Published) -> list[tuple[int, int, int]]:
    """Return runs of messages with consecutive offsets in one partition."""
    partition, offset = published.partition, published.offset
    if len(offset) == 1:
        return [(int(partition[0]), int(offset[0]), 1)]
    breaks = np.flatnonzero((np.diff(partition) != 0) | (np.diff(offset) != 1)) + 1
    starts = np.concatenate(([0], breaks))
    counts = np.diff(np.append(starts, len(offset)))
    return list(zip(partition[starts].tolist(), offset[starts].tolist(), counts.tolist(), strict=True))


def refuse_repeats(call: ApiCall) -> None:
    """Refuse an `Idempotency-Key` in calls that cannot detect a repeat."""
    key = call.request.headers.get(IDEMPOTENCY_KEY)
    if key is not None:
        raise InvalidInput("Idempotency-Key", key, "no such header here: only a publish to a topic heeds it")


def is_plain(call: ApiCall) -> bool:
    """Return whether neither the query nor a header sets an option of the publish."""
    query: PublishQuery = call.query
    return query == _PLAIN and IDEMPOTENCY_KEY not in call.request.headers


async def options_of(call: ApiCall) -> PublishOptions:
    """Return the options of a publish, from its query and headers."""
    query: PublishQuery = call.query
    producer, sequence, fingerprint = query.producer, query.sequence, query.fingerprint
    key = call.request.headers.get(IDEMPOTENCY_KEY)
    if key is not None:
        if producer is not None:
            raise InvalidInput("Idempotency-Key", key, "either it, or producer and sequence in the query")
        producer, sequence = check.graphic("Idempotency-Key", key, limits.PRODUCER_ID_CHARS_MAX), 0
        if not fingerprint:
            large = len(memoryview(call.request.body)) > HASHED_BYTES_MAX
            fingerprint = (
                await asyncio.to_thread(fingerprint_of, call.request) if large else fingerprint_of(call.request)
            )
    return PublishOptions(
        partition=query.partition,
        producer=producer,
        sequence=sequence,
        persistent=query.persistent,
        callback=query.callback,
        fingerprint=fingerprint,
    )


def fingerprint_of(request: Request) -> int:
    """Return a hash of what a publish stores: the headers that are part of its messages, and the body as it came."""
    hashed = {
        name: text for name, text in request.headers.items() if name == "content-type" or name.startswith("wherry-")
    }
    digest = hashlib.sha256(msgspec.json.encode(sorted(hashed.items())))
    digest.update(memoryview(request.body))
    return int.from_bytes(digest.digest()[:8], "little") % FINGERPRINT_MAX + 1


@TABLE.add(
    "POST",
    "/v1/topics/{topic}/messages",
    "publish",
    query=PublishQuery,
    takes=TAKES,
    answers={201: PublishedView},
    codes=("duplicate-id", "out-of-sequence", "limit-reached"),
)
async def publish(call: ApiCall) -> Answer:
    """Publish messages; unless they are transient, they are on disk when the answer comes.

    All of a call is stored, or nothing of it. Transient messages, by `persistent=false` or by the topic, are in
    memory only: their answer waits for no disk and has `"durable": false`. A client that disconnects while the
    answer waits for an outcome has published.
    """
    query: PublishQuery = call.query
    broker, server = call.service.broker, call.service.server
    options = None if is_plain(call) else await options_of(call)
    check.integer("timeout_ms", query.timeout_ms, 1, OUTCOME_MS_MAX)
    messages = take_one(call.request) or await take_messages(call.request, broker.slices)
    if query.wait != "stored":
        server.begin_wait(call.request)
    try:
        published = await broker.publish(call["topic"], messages, options)
    except OutOfSequence as fault:
        key = call.request.headers.get(IDEMPOTENCY_KEY)
        if key is None:
            raise
        detail = f"Idempotency-Key: {key!r} {fault.why}; nothing was stored"
        raise HttpError("out-of-sequence", detail, field="Idempotency-Key") from None
    fates = None
    if query.wait != "stored":
        until = query.wait
        fates = await server.patiently(
            lambda wait_ms: broker.outcome(call["topic"], published, until=until, timeout_ms=wait_ms), query.timeout_ms
        )
    ids = query.ids if query.ids is not None else call.request.content_type() != ARROW
    return await published_response(published, fates, broker.slices, ids=ids)
