"""Messages by id and by what is in them: browse, search, amend, cancel."""

from __future__ import annotations

import base64

import msgspec
from msgspec import UNSET, UnsetType

from wherry.broker.port.port import BrokerPort
from wherry.model import limits
from wherry.model.calls.amendment import Amendment
from wherry.model.calls.listing import Page, Search
from wherry.model.errors import InvalidInput, NotFound
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.api.terms import (
    After,
    AfterTime,
    Base64,
    FateWord,
    HeaderMatch,
    Limit,
    Offset,
    Partition,
    Priority,
    TimeMs,
    Version,
)
from wherry.wire.http.endpoints.bodies import given
from wherry.wire.http.endpoints.consume import LISTED, LISTS, PAGE_BYTES_MAX, listing
from wherry.wire.http.protocol.message import Answer, Response, json_response

TABLE = EndpointGroup("messages")
PATH = "/v1/topics/{topic}/messages/{id}"

AMEND_BYTES_MAX = 8 << 20
"""Room for a payload of the largest size, however JSON writes it, and all its headers."""


class BrowseQuery(msgspec.Struct, frozen=True):
    """Where to begin in a partition, and how many messages to list."""

    partition: Partition = 0
    start: Offset = 0
    limit: Limit = 100
    after: After | None = None


class SearchQuery(msgspec.Struct, frozen=True):
    """Conditions of a search, all of which must hold; `header` is `name:value`, and may be given several times."""

    key: str | None = None
    header: list[HeaderMatch] = []
    from_ms: TimeMs | None = None
    to_ms: TimeMs | None = None
    limit: Limit = 100
    after: After | None = None


class ScheduledQuery(msgspec.Struct, frozen=True):
    """A range of times."""

    from_ms: TimeMs | None = None
    to_ms: TimeMs | None = None
    limit: Limit = 100
    after: AfterTime | None = None


class AmendBody(msgspec.Struct, forbid_unknown_fields=True):
    """What to change of a waiting message; with `version`, only if it has not changed since that version."""

    payload: str | UnsetType = UNSET
    payload_base64: Base64 | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    due_ms: TimeMs | UnsetType = UNSET
    expires_ms: TimeMs | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    version: Version | UnsetType = UNSET


class AmendedView(msgspec.Struct):
    """The message after the change: its version and its place."""

    version: int
    partition: int
    offset: int


class FateView(msgspec.Struct):
    """The fate of a message, and its state in each subscription that gets it."""

    id: str
    fate: FateWord
    subscriptions: dict[str, str]


@TABLE.add("GET", "/v1/topics/{topic}/messages", "consume", query=BrowseQuery, gives=LISTS, answers={200: LISTED})
async def browse(call: ApiCall) -> Answer:
    """List messages of a partition by offset; nothing is consumed.

    A listing ends early at about 16 MiB of messages; `next` in the answer is the `after` of the call for the rest.
    """
    query: BrowseQuery = call.query

    async def read_page(broker: BrokerPort, topic: str) -> Page:
        if query.after is None and broker.topic(topic).partitions <= query.partition < limits.PARTITIONS_MAX:
            raise NotFound("partition", str(query.partition))
        return await broker.browse_page(
            topic, query.partition, query.start, query.limit, after=query.after, bytes_max=PAGE_BYTES_MAX
        )

    return await listing(call, read_page)


@TABLE.add("GET", "/v1/topics/{topic}/search", "consume", query=SearchQuery, gives=LISTS, answers={200: LISTED})
async def search(call: ApiCall) -> Answer:
    """List messages by key, headers or time; nothing is consumed."""
    query: SearchQuery = call.query
    headers: dict[str, str] = {}
    for text in query.header:
        name, colon, value = text.partition(":")
        if not colon:
            raise InvalidInput("header", text, "name:value")
        headers[name] = value
    wanted = Search(key=query.key, headers=headers or None, from_ms=query.from_ms, to_ms=query.to_ms, limit=query.limit)
    return await listing(
        call,
        lambda broker, topic: broker.search_page(topic, wanted, after=query.after, bytes_max=PAGE_BYTES_MAX),
    )


@TABLE.add(
    "GET",
    "/v1/topics/{topic}/subscriptions/{subscription}/scheduled",
    "consume",
    query=ScheduledQuery,
    gives=LISTS,
    answers={200: LISTED},
)
async def scheduled(call: ApiCall) -> Answer:
    """List messages that will be handed to a subscription in a range of times, soonest first."""
    query: ScheduledQuery = call.query
    return await listing(
        call,
        lambda broker, topic: broker.scheduled_page(
            topic,
            call["subscription"],
            from_ms=query.from_ms,
            to_ms=query.to_ms,
            limit=query.limit,
            after=query.after,
            bytes_max=PAGE_BYTES_MAX,
        ),
    )


@TABLE.add("GET", PATH, "consume", gives=LISTS, answers={200: LISTED})
async def get_message(call: ApiCall) -> Answer:
    """Show one message by id."""

    async def read_page(broker: BrokerPort, topic: str) -> Page:
        batch = await broker.get(topic, call["id"])
        if not batch.num_rows:
            raise NotFound("message", call["id"])
        return Page(batch, None)

    return await listing(call, read_page)


@TABLE.add(
    "PATCH",
    PATH,
    "publish",
    body=AmendBody,
    body_bytes=AMEND_BYTES_MAX,
    answers={200: AmendedView},
    codes=("not-waiting", "version-conflict", "limit-reached"),
)
async def amend(call: ApiCall) -> Answer:
    """Change a waiting message: body, priority, times or headers."""
    fields = given(call.body)
    version = fields.pop("version", None)
    encoded = fields.pop("payload_base64", None)
    if encoded is not None:
        if "payload" in fields:
            raise InvalidInput("payload", fields["payload"], "either payload or payload_base64")
        try:
            fields["payload"] = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise InvalidInput("payload_base64", encoded, "base64") from None
    elif "payload" in fields:
        fields["payload"] = fields["payload"].encode()
    amended = await call.service.broker.amend(call["topic"], call["id"], Amendment(**fields), version=version)
    return json_response(AmendedView(amended.version, amended.partition, amended.offset))


@TABLE.add("DELETE", PATH, "publish", answers={204: None}, codes=("not-waiting",))
async def cancel(call: ApiCall) -> Answer:
    """Cancel a waiting message; one that is on lease or settled cannot be cancelled."""
    await call.service.broker.cancel(call["topic"], call["id"])
    return Response(204)


@TABLE.add("GET", PATH + "/fate", "publish", answers={200: FateView})
async def fate(call: ApiCall) -> Answer:
    """Show what became of a message.

    The default id of a message works also after the message is gone; an id of its own works while it is in the topic.
    """
    found = await call.service.broker.fate(call["topic"], call["id"])
    return json_response(FateView(call["id"], found.fate, found.subscriptions))
