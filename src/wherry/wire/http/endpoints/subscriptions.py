"""Subscriptions and the consumers that share them."""

from __future__ import annotations

from typing import Any

import msgspec

from wherry.core.state import SubscriptionState
from wherry.core.stats import of_subscription
from wherry.model.stats import SubscriptionStats
from wherry.model.subscription import Retry, Subscription
from wherry.model.webhook import Webhook
from wherry.wire.http.endpoints.bodies import changed, fields_of, given, model, part_of, shown
from wherry.wire.http.message import Answer, Response, json_response
from wherry.wire.http.routing import Table
from wherry.wire.http.service import Ask, once_durable

TABLE = Table("subscriptions")
PATH = "/v1/topics/{topic}/subscriptions/{subscription}"

RetryFields = part_of(Retry, "RetryFields")
WebhookFields = part_of(Webhook, "WebhookFields")
PARTS = {"retry": RetryFields, "webhook": WebhookFields | None}
SubscriptionFields = fields_of(Subscription, "SubscriptionFields", {"topic", "name"}, PARTS)
SubscriptionChanges = fields_of(Subscription, "SubscriptionChanges", {"topic", "name"}, PARTS)
RetryConfig = shown(Retry, "RetryConfig")
SubscriptionConfig = shown(Subscription, "SubscriptionConfig", {"retry": RetryConfig})
FIXED = {"durable", "start", "start_offset", "start_ms", "acks", "key_order", "assignment"}


class SubscriptionView(msgspec.Struct):
    """A subscription as it is set up, and how far it is."""

    config: SubscriptionConfig  # type: ignore[valid-type]
    stats: SubscriptionStats


class SubscriptionList(msgspec.Struct):
    """The subscriptions of a topic, by name."""

    subscriptions: list[SubscriptionView]


class ConsumerView(msgspec.Struct):
    """Who is connected, with the buffer it declared and what it holds."""

    name: str
    partitions: list[int]
    buffer_messages: int
    buffer_bytes: int
    out_messages: int
    out_bytes: int


class ConsumerList(msgspec.Struct):
    """The consumers of a subscription."""

    consumers: list[ConsumerView]


def _view(call: Ask, state: SubscriptionState) -> SubscriptionView:
    shard = call.service.broker.shard
    shard.upkeep(shard.now())
    return SubscriptionView(_config(state.config), of_subscription(state, shard.now().wall_ms))


def _config(config: Subscription) -> msgspec.Struct:
    """As it is set up, but for the secret of its webhook."""
    webhook = None if config.webhook is None else config.webhook.masked()
    parts = {"retry": model(RetryConfig, config.retry), "webhook": webhook}
    return SubscriptionConfig(**msgspec.structs.asdict(config) | parts)


def _given(call: Ask) -> dict[str, Any]:
    fields = given(call.body)
    if "retry" in fields:
        fields["retry"] = model(Retry, fields["retry"])
    if fields.get("webhook") is not None:
        fields["webhook"] = model(Webhook, fields["webhook"])
    return fields


def _state(call: Ask) -> SubscriptionState:
    return call.service.broker.shard.state.subscription(call["topic"], call["subscription"])


@TABLE.add("GET", "/v1/topics/{topic}/subscriptions", "consume", answers={200: SubscriptionList})
@once_durable
async def list_subscriptions(call: Ask) -> Answer:
    """The subscriptions of a topic with their figures."""
    topic = call.service.broker.shard.state.topic(call["topic"])
    states = sorted(topic.subscriptions.values(), key=lambda state: state.config.name)
    return json_response(SubscriptionList([_view(call, state) for state in states]))


@TABLE.add(
    "PUT",
    PATH,
    "consume",
    body=SubscriptionFields,
    answers={200: SubscriptionView, 201: SubscriptionView},
    codes=("already-exists", "limit-reached"),
)
async def put_subscription(call: Ask) -> Answer:
    """Create a subscription; the same again is no error."""
    topic = call.service.broker.shard.state.topic(call["topic"])
    known = any(state.config.name == call["subscription"] for state in topic.subscriptions.values())
    await call.service.broker.subscribe(Subscription(topic=call["topic"], name=call["subscription"], **_given(call)))
    return json_response(_view(call, _state(call)), 200 if known else 201)


@TABLE.add("GET", PATH, "consume", answers={200: SubscriptionView})
@once_durable
async def get_subscription(call: Ask) -> Answer:
    """One subscription with its figures."""
    return json_response(_view(call, _state(call)))


@TABLE.add(
    "PATCH", PATH, "consume", body=SubscriptionChanges, answers={200: SubscriptionView}, codes=("already-exists",)
)
async def patch_subscription(call: Ask) -> Answer:
    """Change lease, retry, buffers and webhook of a subscription."""
    wanted = changed("subscription", _state(call).config, _given(call), FIXED)
    await call.service.broker.change_subscription(wanted)
    return json_response(_view(call, _state(call)))


@TABLE.add("DELETE", PATH, "consume", answers={204: None})
async def delete_subscription(call: Ask) -> Answer:
    """Delete a subscription; its progress and dead letters go with it."""
    await call.service.broker.unsubscribe(call["topic"], call["subscription"])
    return Response(204)


@TABLE.add("GET", PATH + "/consumers", "consume", answers={200: ConsumerList})
async def list_consumers(call: Ask) -> Answer:
    """Who is connected, and what they hold."""
    state = _state(call)
    views = [
        ConsumerView(
            each.id,
            list(state.assignment.of(each.seat)),
            each.buffer_messages,
            each.buffer_bytes,
            each.out_messages,
            each.out_bytes,
        )
        for each in state.consumers.values()
    ]
    return json_response(ConsumerList(views))


@TABLE.add("DELETE", PATH + "/consumers/{consumer}", "consume", answers={204: None})
async def leave(call: Ask) -> Answer:
    """Leave: what the consumer held waits again, no attempt counted."""
    await call.service.consumers.leave(call["topic"], call["subscription"], call["consumer"])
    return Response(204)
