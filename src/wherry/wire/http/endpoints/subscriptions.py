"""Subscriptions and the consumers that share them."""

from __future__ import annotations

from typing import Any

import msgspec

from wherry.model.calls.stats import SubscriptionStats
from wherry.model.catalog.subscription import Retry, Subscription
from wherry.model.catalog.webhook import Webhook
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall, once_durable
from wherry.wire.http.endpoints.bodies import changed, fields_of, given, model, part_of, shown
from wherry.wire.http.protocol.message import Answer, Response, json_response

TABLE = EndpointGroup("subscriptions")
PATH = "/v1/topics/{topic}/subscriptions/{subscription}"

RetryFields = part_of(Retry, "RetryFields")
WebhookFields = part_of(Webhook, "WebhookFields")
PARTS = {"retry": RetryFields, "webhook": WebhookFields | None}
SubscriptionFields = fields_of(Subscription, "SubscriptionFields", {"topic", "name"}, PARTS)
SubscriptionChanges = fields_of(Subscription, "SubscriptionChanges", {"topic", "name"}, PARTS)
RetryConfig = shown(Retry, "RetryConfig")
SubscriptionConfig = shown(Subscription, "SubscriptionConfig", {"retry": RetryConfig})
FIXED = {"durable", "start", "start_offset", "start_ms", "acks", "key_order", "assignment", "peer", "peer_role"}


class SubscriptionView(msgspec.Struct):
    """The configuration of a subscription, and its progress."""

    config: SubscriptionConfig  # type: ignore[valid-type]
    stats: SubscriptionStats


class SubscriptionList(msgspec.Struct):
    """The subscriptions of a topic, by name."""

    subscriptions: list[SubscriptionView]


class ConsumerView(msgspec.Struct):
    """A consumer of a subscription, with the buffer it declared and what it holds."""

    name: str
    partitions: list[int]
    buffer_messages: int
    buffer_bytes: int
    out_messages: int
    out_bytes: int


class ConsumerList(msgspec.Struct):
    """The consumers of a subscription."""

    consumers: list[ConsumerView]


def _view(call: ApiCall) -> SubscriptionView:
    broker, place = call.service.broker, (call["topic"], call["subscription"])
    stats = broker.subscription_stats(*place)
    return SubscriptionView(_config(broker.subscription(*place)), stats)


def _config(config: Subscription) -> msgspec.Struct:
    """Return the configuration of a subscription without the secret of its webhook."""
    webhook = None if config.webhook is None else config.webhook.masked()
    parts = {"retry": model(RetryConfig, config.retry), "webhook": webhook}
    return SubscriptionConfig(**msgspec.structs.asdict(config) | parts)


def _given(call: ApiCall) -> dict[str, Any]:
    fields = given(call.body)
    if "retry" in fields:
        fields["retry"] = model(Retry, fields["retry"])
    if fields.get("webhook") is not None:
        fields["webhook"] = model(Webhook, fields["webhook"])
    return fields


@TABLE.add("GET", "/v1/topics/{topic}/subscriptions", "consume", answers={200: SubscriptionList})
@once_durable
async def list_subscriptions(call: ApiCall) -> Answer:
    """List the subscriptions of a topic with their figures."""
    stats = call.service.broker.stats(call["topic"]).subscriptions
    configs = call.service.broker.subscriptions(call["topic"])
    views = [SubscriptionView(_config(config), each) for config, each in zip(configs, stats, strict=True)]
    return json_response(SubscriptionList(views))


@TABLE.add(
    "PUT",
    PATH,
    "consume",
    body=SubscriptionFields,
    answers={200: SubscriptionView, 201: SubscriptionView},
    codes=("already-exists", "limit-reached"),
)
async def put_subscription(call: ApiCall) -> Answer:
    """Create a subscription; to repeat the call is no error."""
    broker = call.service.broker
    known = broker.has_subscription(call["topic"], call["subscription"])
    await broker.subscribe(Subscription(topic=call["topic"], name=call["subscription"], **_given(call)))
    return json_response(_view(call), 200 if known else 201)


@TABLE.add("GET", PATH, "consume", answers={200: SubscriptionView})
@once_durable
async def get_subscription(call: ApiCall) -> Answer:
    """Show one subscription with its figures."""
    return json_response(_view(call))


@TABLE.add(
    "PATCH", PATH, "consume", body=SubscriptionChanges, answers={200: SubscriptionView}, codes=("already-exists",)
)
async def patch_subscription(call: ApiCall) -> Answer:
    """Change lease, retry, buffers and webhook of a subscription."""
    wanted = changed(
        "subscription", call.service.broker.subscription(call["topic"], call["subscription"]), _given(call), FIXED
    )
    await call.service.broker.change_subscription(wanted)
    return json_response(_view(call))


@TABLE.add("DELETE", PATH, "consume", answers={204: None})
async def delete_subscription(call: ApiCall) -> Answer:
    """Delete a subscription with its progress and dead letters."""
    await call.service.broker.unsubscribe(call["topic"], call["subscription"])
    return Response(204)


@TABLE.add("GET", PATH + "/consumers", "consume", answers={200: ConsumerList})
async def list_consumers(call: ApiCall) -> Answer:
    """List the consumers of a subscription, and what they hold."""
    found = call.service.broker.consumers(call["topic"], call["subscription"])
    views = [
        ConsumerView(
            each.name, each.partitions, each.buffer_messages, each.buffer_bytes, each.out_messages, each.out_bytes
        )
        for each in found
    ]
    return json_response(ConsumerList(views))


@TABLE.add("DELETE", PATH + "/consumers/{consumer}", "consume", answers={204: None})
async def leave(call: ApiCall) -> Answer:
    """Remove a consumer: what it held waits again, no attempt counted."""
    await call.service.consumers.leave(call["topic"], call["subscription"], call["consumer"])
    return Response(204)
