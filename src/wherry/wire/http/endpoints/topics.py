"""Topics: create, read, change, delete."""

from __future__ import annotations

import msgspec

from wherry.model import check, limits
from wherry.model.calls.listing import LIMIT_MAX
from wherry.model.calls.stats import PartitionStats, TopicStats
from wherry.model.catalog.topic import Topic
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall, once_durable
from wherry.wire.http.api.terms import Limit, Partition
from wherry.wire.http.endpoints.bodies import changed, fields_of, given, shown
from wherry.wire.http.protocol.message import Answer, Response, json_response

TABLE = EndpointGroup("topics")

TopicFields = fields_of(Topic, "TopicFields", {"name"})
TopicChanges = fields_of(Topic, "TopicChanges", {"name"})
TopicConfig = shown(Topic, "TopicConfig")


class TopicView(msgspec.Struct):
    """The configuration of a topic, and its figures."""

    config: TopicConfig  # type: ignore[valid-type]
    stats: TopicStats


class TopicList(msgspec.Struct):
    """The topics that the caller may consume, by name."""

    topics: list[TopicView]


class PartitionQuery(msgspec.Struct, frozen=True):
    """The first partition to list, and how many."""

    first: Partition = 0
    limit: Limit = 100


class PartitionList(msgspec.Struct):
    """Partitions, by number."""

    partitions: list[PartitionStats]


def _view(call: ApiCall, topic: Topic) -> TopicView:
    return TopicView(TopicConfig(**msgspec.structs.asdict(topic)), call.service.broker.stats(topic.name))


@TABLE.add("GET", "/v1/topics", "consume", asks=True, answers={200: TopicList})
@once_durable
async def list_topics(call: ApiCall) -> Answer:
    """List the topics that the caller may consume, with their figures."""
    topics = call.service.visible(call.request, "consume", call.service.broker.topics())
    return json_response(TopicList([_view(call, topic) for topic in topics]))


@TABLE.add(
    "PUT",
    "/v1/topics/{topic}",
    "admin",
    body=TopicFields,
    answers={200: TopicView, 201: TopicView},
    codes=("already-exists", "limit-reached"),
)
async def put_topic(call: ApiCall) -> Answer:
    """Create a topic; if it exists, change the fields given.

    To repeat the call is no error. The order of a topic cannot change; partitions can be added, not removed.
    """
    broker, name = call.service.broker, call["topic"]
    known = broker.has_topic(name)
    topic = await broker.create_topic(name, **given(call.body))
    return json_response(_view(call, topic), 200 if known else 201)


@TABLE.add("GET", "/v1/topics/{topic}", "consume", answers={200: TopicView})
@once_durable
async def get_topic(call: ApiCall) -> Answer:
    """Show one topic with its figures."""
    return json_response(_view(call, call.service.broker.topic(call["topic"])))


@TABLE.add(
    "PATCH", "/v1/topics/{topic}", "admin", body=TopicChanges, answers={200: TopicView}, codes=("already-exists",)
)
async def patch_topic(call: ApiCall) -> Answer:
    """Change the fields that are given. Partitions can be added, not removed."""
    known = call.service.broker.topic(call["topic"])
    topic = await call.service.broker.create_topic(changed("topic", known, given(call.body), {"order"}))
    return json_response(_view(call, topic))


@TABLE.add("DELETE", "/v1/topics/{topic}", "admin", answers={204: None})
async def delete_topic(call: ApiCall) -> Answer:
    """Delete a topic with its messages, subscriptions and dead letters."""
    await call.service.broker.delete_topic(call["topic"])
    return Response(204)


@TABLE.add("GET", "/v1/topics/{topic}/partitions", "consume", query=PartitionQuery, answers={200: PartitionList})
@once_durable
async def list_partitions(call: ApiCall) -> Answer:
    """Show first and next offset and unsettled messages of each partition; `limit` partitions from `first` on."""
    query: PartitionQuery = call.query
    check.integer("first", query.first, 0, limits.PARTITIONS_MAX - 1)
    check.integer("limit", query.limit, 1, LIMIT_MAX)
    found = call.service.broker.partition_stats(call["topic"], query.first, query.limit)
    return json_response(PartitionList(found))
