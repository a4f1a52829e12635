"""Actions: one JSON object in, one out. Each is a row of `ACTIONS`: its body, its rights and its function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, NamedTuple, TypeAlias

import msgspec

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.dead import DeadFilter
from wherry.model.catalog.key import Verb
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.errors import InvalidInput
from wherry.security.access import ALL_TOPICS
from wherry.wire.flight.tables import May
from wherry.wire.flight.terms import (
    Advance,
    AtTime,
    CommitStages,
    Nothing,
    OfStage,
    OfSubscription,
    OfTopic,
    RangeTerms,
    Reach,
    RedriveTerms,
    decoded,
)

Do: TypeAlias = Callable[[BrokerPort, Any, May], Awaitable[object]]


Asks: TypeAlias = Callable[[BrokerPort, Any], list[tuple[Verb, str]]]
"""Returns the rights that a call needs, each with its topic."""


class Action(NamedTuple):
    """The body of an action, the rights it needs, what it does on the loop, and its description."""

    body: Any
    asks: Asks
    do: Do
    about: str


def body_of(name: str, data: Any) -> tuple[Action, Any]:
    """Return an action and its body; `InvalidInput` for one that is not known."""
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidInput("action", name, "one of " + ", ".join(ACTIONS))
    return action, decoded(action.body, data, name)


def _built(kind: type[Any], body: dict[str, Any]) -> Any:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as fault:
        raise InvalidInput("body", body, str(fault)) from None


async def _topics(broker: BrokerPort, _: Nothing, may: May) -> object:
    found = [_whole(each) for each in broker.topics() if may(each.name)]
    await broker.stored_so_far()
    return {"topics": found}


def _whole(config: msgspec.Struct) -> dict[str, Any]:
    return dict(msgspec.structs.asdict(config))


async def _create_topic(broker: BrokerPort, body: dict[str, Any], _: May) -> object:
    unknown = set(body) - {field.name for field in msgspec.structs.fields(Topic)}
    if unknown:
        raise InvalidInput(sorted(unknown)[0], body, "fields of a topic")
    fields = {key: value for key, value in body.items() if key != "name"}
    return _whole(await broker.create_topic(body.get("name"), **fields))  # type: ignore[arg-type]


async def _delete_topic(broker: BrokerPort, body: OfTopic, _: May) -> object:
    await broker.delete_topic(body.topic)
    return {}


async def _subscribe(broker: BrokerPort, body: dict[str, Any], _: May) -> object:
    known = {field.name for field in msgspec.structs.fields(Subscription)}
    unknown = set(body) - known
    if unknown:
        raise InvalidInput(sorted(unknown)[0], body, "fields of a subscription")
    subscription = _built(Subscription, body)
    made = await broker.subscribe(subscription)
    return {"topic": made.topic, "name": made.name}


async def _unsubscribe(broker: BrokerPort, body: OfSubscription, _: May) -> object:
    await broker.unsubscribe(body.topic, body.name)
    return {}


async def _stats(broker: BrokerPort, body: OfTopic, _: May) -> object:
    return asdict(broker.stats(body.topic))


async def _extents(broker: BrokerPort, body: OfTopic, _: May) -> object:
    found, incarnation = broker.extents(body.topic), broker.topic_number(body.topic)
    keep = broker.topic(body.topic).keep
    await broker.stored_so_far()
    offsets = {"start": {n: start for n, start, _ in found}, "stop": {n: stop for n, _, stop in found}}
    return {**offsets, "incarnation": incarnation, "keep": keep}


async def _offsets_at(broker: BrokerPort, body: AtTime, _: May) -> object:
    offsets = broker.offsets_at(body.topic, body.time_ms)
    await broker.stored_so_far()
    return {"offsets": offsets}


async def _reach(broker: BrokerPort, body: Reach, _: May) -> object:
    bounds = {"messages_max": body.messages_max, "bytes_max": body.bytes_max, "wait_ms": body.wait_ms}
    return {"stop": await broker.reach(body.start, stop=body.stop, **bounds)}


async def _nearby(broker: BrokerPort, body: RangeTerms, _: May) -> object:
    return await broker.nearby(body.topic, body.partition, body.start, body.stop, strict=body.strict)


async def _advance(broker: BrokerPort, body: Advance, _: May) -> object:
    await broker.advance(body.topic, body.subscription, body.offsets)
    return {}


async def _commit(broker: BrokerPort, body: CommitStages, _: May) -> object:
    placed = await broker.commit(body.key, body.stages)
    return {"placed": placed, "mesh": placed.mesh}


async def _committed(broker: BrokerPort, body: OfStage, _: May) -> object:
    if not broker.is_committed(body.key):
        return {"placed": None}
    placed = await broker.commit(body.key)
    return {"placed": placed, "mesh": placed.mesh}


async def _abort(broker: BrokerPort, body: OfStage, _: May) -> object:
    await broker.abort(body.key)
    return {}


async def _redrive(broker: BrokerPort, body: RedriveTerms, _: May) -> object:
    offsets = None if body.offsets is None else tuple(body.offsets)
    wanted = DeadFilter(
        subscription=body.subscription,
        reason=body.reason,
        from_ms=body.from_ms,
        to_ms=body.to_ms,
        partition=body.partition,
        offsets=offsets,
        limit=body.limit,
    )
    return {"redriven": await broker.redrive(body.topic, wanted, by=body.by, rate=body.rate)}


def _nothing(_: BrokerPort, body: Nothing) -> list[tuple[Verb, str]]:
    return []


def _on_topic(verb: Verb) -> Asks:
    return lambda _, body: [(verb, body.topic)]


def _on_field(verb: Verb, field: str) -> Asks:
    return lambda _, body: [(verb, str(body.get(field, ALL_TOPICS)))]


def _on_started(_: BrokerPort, body: Reach) -> list[tuple[Verb, str]]:
    return [("consume", topic) for topic in body.start]


def _on_staged(broker: BrokerPort, body: CommitStages | OfStage) -> list[tuple[Verb, str]]:
    more = body.stages if isinstance(body, CommitStages) else None
    return broker.rights_to_end(body.key, *(more or ()))


_CONSUME, _ADMIN = _on_topic("consume"), _on_topic("admin")

ACTIONS: dict[str, Action] = {
    "topics": Action(Nothing, _nothing, _topics, "topics that the caller may read"),
    "create-topic": Action(dict[str, Any], _on_field("admin", "name"), _create_topic, "create or change a topic"),
    "delete-topic": Action(OfTopic, _ADMIN, _delete_topic, "delete a topic with everything in it"),
    "subscribe": Action(dict[str, Any], _on_field("consume", "topic"), _subscribe, "create a subscription"),
    "unsubscribe": Action(OfSubscription, _CONSUME, _unsubscribe, "delete a subscription"),
    "stats": Action(OfTopic, _CONSUME, _stats, "how much waits where"),
    "extents": Action(OfTopic, _CONSUME, _extents, "which offsets there are"),
    "offsets-at": Action(AtTime, _CONSUME, _offsets_at, "offsets at a time"),
    "reach": Action(Reach, _on_started, _reach, "how far to read, within limits"),
    "nearby": Action(RangeTerms, _CONSUME, _nearby, "which files hold a stretch, for a reader on this machine"),
    "advance": Action(Advance, _CONSUME, _advance, "a subscription is done with all below"),
    "commit": Action(CommitStages, _on_staged, _commit, "make stages visible at once"),
    "committed": Action(OfStage, _on_staged, _committed, "whether a key was committed"),
    "abort": Action(OfStage, _on_staged, _abort, "throw a stage away"),
    "redrive": Action(RedriveTerms, _ADMIN, _redrive, "send dead letters back"),
}
