"""Transactions: publishes and acks staged under a key, and made visible at once."""

from __future__ import annotations

import msgspec

from wherry.model.catalog.topic import Mesh
from wherry.security.access import own_key
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.api.terms import Partition
from wherry.wire.http.endpoints.consume import SETTLE_BYTES_MAX, ReceiptsToSettle, parts_of, within
from wherry.wire.http.endpoints.publish import refuse_repeats
from wherry.wire.http.formats import TAKES, take_messages
from wherry.wire.http.protocol.message import Answer, Response, json_response

TABLE = EndpointGroup("transactions")
PATH = "/v1/transactions/{key}"


class StageQuery(msgspec.Struct, frozen=True):
    """The partition of the messages; by key, or in turn, unless given."""

    partition: Partition | None = None


class CommittedView(msgspec.Struct):
    """Where messages are stored: `[topic, partition, first offset, count]`; and the guarantee of each topic."""

    placed: list[tuple[str, int, int, int]]
    mesh: dict[str, Mesh]


def stage_key(call: ApiCall) -> str:
    """Return the key of a stage in the broker; where API keys are required, each caller has keys of its own."""
    return own_key(call.request.caller, call["key"])


def check_rights(call: ApiCall) -> str:
    """Return the key of a stage if its caller still has every right that staging needed; `Forbidden` else."""
    service = call.service
    call.request.caller = service.caller(call.request)
    key = stage_key(call)
    for verb, topic in service.broker.rights_to_end(key):
        service.guard(call.request, verb, topic)
    return key


STAGES = ("duplicate-id", "stage-lost", "limit-reached")


@TABLE.add(
    "POST",
    PATH + "/topics/{topic}/messages",
    "publish",
    query=StageQuery,
    takes=TAKES,
    answers={204: None},
    codes=STAGES,
)
async def stage(call: ApiCall) -> Answer:
    """Stage messages; they are durable, and not visible before the commit."""
    refuse_repeats(call)
    messages = await take_messages(call.request, call.service.broker.slices)
    await call.service.broker.stage(stage_key(call), call["topic"], messages, partition=call.query.partition)
    return Response(204)


@TABLE.add(
    "POST",
    PATH + "/topics/{topic}/subscriptions/{subscription}/ack",
    "consume",
    body=ReceiptsToSettle,
    body_bytes=SETTLE_BYTES_MAX,
    answers={204: None},
    codes=("stale-lease", *STAGES),
)
async def stage_ack(call: ApiCall) -> Answer:
    """Ack messages when the transaction is committed; their leases must still hold then."""
    await call.service.settler.stage_ack(stage_key(call), parts_of(call), within(call))
    return Response(204)


@TABLE.add("POST", PATH + "/commit", "publish", asks=True, answers={200: CommittedView}, codes=("stale-lease", *STAGES))
async def commit(call: ApiCall) -> Answer:
    """Make everything under the key visible at once; the same commit again does nothing and succeeds."""
    key = check_rights(call)
    placed = await call.service.broker.commit(key)
    return json_response(CommittedView(placed, placed.mesh))


@TABLE.add("DELETE", PATH, "publish", asks=True, answers={204: None})
async def abort(call: ApiCall) -> Answer:
    """Throw away what is staged under the key."""
    await call.service.broker.abort(check_rights(call))
    return Response(204)
