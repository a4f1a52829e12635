"""Dead letters: list them, redrive them, discard them, and see who did."""

from __future__ import annotations

import msgspec

from wherry.model.calls.dead import DeadFilter, DeadKind
from wherry.security.access import signed
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall, once_durable
from wherry.wire.http.api.terms import (
    AfterDead,
    DeadLimit,
    Offset,
    Partition,
    Rate,
    TimeMs,
)
from wherry.wire.http.endpoints.bodies import model
from wherry.wire.http.endpoints.consume import LISTED, LISTS, PAGE_BYTES_MAX, SETTLE_BYTES_MAX, listing
from wherry.wire.http.protocol.message import Answer, json_response

TABLE = EndpointGroup("dead letters")
PATH = "/v1/topics/{topic}/dead"
NAMING = {"body_bytes": SETTLE_BYTES_MAX}


class Conditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions on dead letters; every condition given must hold."""

    subscription: str | None = None
    reason: str | None = None
    from_ms: TimeMs | None = None
    to_ms: TimeMs | None = None
    partition: Partition | None = None


class DeadQuery(Conditions, frozen=True):
    """Which dead letters to list; `offset` names one of a partition, and may be given several times."""

    offset: list[Offset] | None = None
    limit: DeadLimit = 1_000
    after: AfterDead | None = None


class DeadWanted(Conditions, frozen=True):
    """Which dead letters; `offsets` names single ones of a partition."""

    offsets: tuple[Offset, ...] | None = None
    limit: DeadLimit = 1_000_000


class DeadDiscard(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters to discard, and the name of the caller for the audit.

    Where keys are required, the audit names the key, and `by` is a note behind it.
    """

    filter: DeadWanted = DeadWanted()
    by: str = ""


class DeadRedrive(DeadDiscard):
    """Which dead letters to redrive, the name of the caller, and how many a second: all at once unless given."""

    rate: Rate | None = None


class DeadCount(msgspec.Struct):
    """A number of dead letters."""

    count: int


class DeadReasons(msgspec.Struct):
    """Reasons of dead letters, the most frequent first; `room` is how many more messages the topic takes."""

    count: int
    room: int | None
    reasons: list[DeadKind]


class AuditRecordView(msgspec.Struct):
    """Who redrove or discarded dead letters, and when."""

    at_ms: int
    what: str
    by: str
    subscription: str
    partition: int
    messages: int


class Audit(msgspec.Struct):
    """The last records of the audit, newest last."""

    records: list[AuditRecordView]


@TABLE.add("GET", PATH, "consume", query=DeadQuery, gives=LISTS, answers={200: LISTED})
async def list_dead(call: ApiCall) -> Answer:
    """List dead letters with the whole message, reason, error, attempts and times."""
    query: DeadQuery = call.query
    fields = msgspec.structs.asdict(query)
    after, offsets = fields.pop("after"), fields.pop("offset")
    wanted = DeadFilter(**fields, offsets=None if offsets is None else tuple(offsets))
    return await listing(
        call, lambda broker, topic: broker.dead_page(topic, wanted, after=after, bytes_max=PAGE_BYTES_MAX)
    )


@TABLE.add("GET", PATH + "/reasons", "consume", query=Conditions, answers={200: DeadReasons})
@once_durable
async def list_reasons(call: ApiCall) -> Answer:
    """Count dead letters by subscription and reason: what a redrive or discard with these conditions would take."""
    wanted = DeadFilter(**msgspec.structs.asdict(call.query))
    found = await call.service.broker.dead_kinds(call["topic"], wanted)
    return json_response(DeadReasons(found.count, found.room, found.kinds))


@TABLE.add(
    "POST", PATH + "/redrive", "admin", body=DeadRedrive, answers={200: DeadCount}, codes=("limit-reached",), **NAMING
)
async def redrive(call: ApiCall) -> Answer:
    """Send dead letters back to wait again; repeating the call finds none left."""
    action: DeadRedrive = call.body
    if action.rate is not None:
        call.service.server.begin_wait(call.request)
    wanted = model(DeadFilter, action.filter)
    service, by = call.service, signed(call.request.caller, action.by)

    async def send_back(wait_ms: int) -> int:
        if action.rate is not None and not wait_ms:
            raise HttpError("closed", "the broker is closing; what it did not send back yet is dead still")
        return await service.broker.redrive(call["topic"], wanted, by=by, rate=action.rate)

    return json_response(DeadCount(await service.server.patiently(send_back, int(action.rate is not None))))


@TABLE.add("POST", PATH + "/discard", "admin", body=DeadDiscard, answers={200: DeadCount}, **NAMING)
async def discard(call: ApiCall) -> Answer:
    """Throw dead letters away."""
    wanted = model(DeadFilter, call.body.filter)
    by = signed(call.request.caller, call.body.by)
    return json_response(DeadCount(await call.service.broker.discard(call["topic"], wanted, by=by)))


@TABLE.add("GET", PATH + "/audit", "admin", answers={200: Audit})
@once_durable
async def audit(call: ApiCall) -> Answer:
    """List who redrove or discarded dead letters."""
    return json_response(Audit([AuditRecordView(*record) for record in call.service.broker.audit(call["topic"])]))
