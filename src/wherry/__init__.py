"""Wherry: a message queue that is installed with pip, whose log is Apache Arrow.

>>> import wherry
>>> async def main():
...     async with wherry.connect("http://127.0.0.1:7070") as client:
...         await client.create_topic("jobs")
...         await client.subscribe("jobs", "workers")
...         await client.publish("jobs", [b"hello"])

`wherry.connect` reaches a broker that runs elsewhere, `wherry.embedded` has one in this process behind the same calls,
and `wherry.open` is the broker itself, without the wire.

Names are loaded when they are first used: a program pays for what it touches, and a test run that never asks for the
pytest fixture pays nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.broker.broker import Broker
    from wherry.broker.calls.consumer import Consumer, Delivery
    from wherry.broker.clock import Clock, SystemClock
    from wherry.broker.opening import open  # noqa: A004  the name people look for: wherry.open
    from wherry.client.batch import Batch, Leased
    from wherry.client.catalog import ApiKey
    from wherry.client.client import Client, connect
    from wherry.client.clock import VirtualClock
    from wherry.client.embedded import embedded
    from wherry.client.sync.client import SyncClient, connect_sync
    from wherry.client.sync.embedded import embedded_sync
    from wherry.core.state.assignment import Strategy
    from wherry.core.state.assignment import register as register_assignment
    from wherry.model.calls.amendment import Amended, Amendment
    from wherry.model.calls.dead import AuditRecord, DeadFilter
    from wherry.model.calls.fate import Fate, Fates, Outcome
    from wherry.model.calls.lease import Received
    from wherry.model.calls.listing import Search
    from wherry.model.calls.publish import Published, PublishOptions
    from wherry.model.calls.stats import Removal, SubscriptionStats, TopicStats
    from wherry.model.catalog.key import Right
    from wherry.model.catalog.route import Binding, Route
    from wherry.model.catalog.subscription import Retry, Subscription
    from wherry.model.catalog.topic import Topic
    from wherry.model.catalog.webhook import Webhook
    from wherry.model.errors import (
        AlreadyExists,
        Closed,
        Corrupt,
        CutOff,
        DiskFull,
        DuplicateId,
        Fenced,
        Forbidden,
        HistoryLost,
        InUse,
        InvalidInput,
        LimitReached,
        NotFound,
        NotWaiting,
        OutOfSequence,
        StageLost,
        StaleLease,
        StorageError,
        TooLarge,
        Unauthorized,
        Unavailable,
        VersionConflict,
        WherryError,
        WriterFailed,
    )
    from wherry.model.schema import Message
    from wherry.scanning.scan import Scan, scan
    from wherry.security.oidc.client_credentials import ClientCredentials
    from wherry.security.signing import verify_webhook
    from wherry.service.current import current_call
    from wherry.service.losses import Losses
    from wherry.service.outcomes import ConnectionLost, Failed, RefusalCode, Refused, TimedOut
    from wherry.service.peer import Peer, peer
    from wherry.service.providing.provider import ListenAt
    from wherry.service.service import Service
    from wherry.service.sync import SyncPeer, peer_sync
    from wherry.service.trust import Trust, TrustedIssuer
    from wherry.wire.native.codec.invokes import CallContext

__all__ = [
    "AlreadyExists",
    "Amended",
    "Amendment",
    "ApiKey",
    "AuditRecord",
    "Batch",
    "Binding",
    "Broker",
    "CallContext",
    "Client",
    "ClientCredentials",
    "Clock",
    "Closed",
    "ConnectionLost",
    "Consumer",
    "Corrupt",
    "CutOff",
    "DeadFilter",
    "Delivery",
    "DiskFull",
    "DuplicateId",
    "Failed",
    "Fate",
    "Fates",
    "Fenced",
    "Forbidden",
    "HistoryLost",
    "InUse",
    "InvalidInput",
    "Leased",
    "LimitReached",
    "ListenAt",
    "Losses",
    "Message",
    "NotFound",
    "NotWaiting",
    "OutOfSequence",
    "Outcome",
    "Peer",
    "PublishOptions",
    "Published",
    "Received",
    "RefusalCode",
    "Refused",
    "Removal",
    "Retry",
    "Right",
    "Route",
    "Scan",
    "Search",
    "Service",
    "StageLost",
    "StaleLease",
    "StorageError",
    "Strategy",
    "Subscription",
    "SubscriptionStats",
    "SyncClient",
    "SyncPeer",
    "SystemClock",
    "TimedOut",
    "TooLarge",
    "Topic",
    "TopicStats",
    "Trust",
    "TrustedIssuer",
    "Unauthorized",
    "Unavailable",
    "VersionConflict",
    "VirtualClock",
    "Webhook",
    "WherryError",
    "WriterFailed",
    "connect",
    "connect_sync",
    "current_call",
    "embedded",
    "embedded_sync",
    "open",
    "peer",
    "peer_sync",
    "register_assignment",
    "scan",
    "verify_webhook",
]

_PLACES = {
    "broker.broker": "Broker",
    "broker.clock": "Clock SystemClock",
    "broker.calls.consumer": "Consumer Delivery",
    "broker.opening": "open",
    "client.batch": "Batch Leased",
    "client.catalog": "ApiKey",
    "client.client": "Client connect",
    "client.clock": "VirtualClock",
    "client.embedded": "embedded",
    "client.sync.client": "SyncClient connect_sync",
    "client.sync.embedded": "embedded_sync",
    "core.state.assignment": "Strategy register_assignment=register",
    "model.calls.amendment": "Amended Amendment",
    "model.calls.dead": "DeadFilter AuditRecord",
    "model.errors": (
        "AlreadyExists Closed Corrupt CutOff DiskFull DuplicateId Fenced Forbidden HistoryLost InUse InvalidInput "
        "LimitReached NotFound NotWaiting OutOfSequence StageLost StaleLease StorageError TooLarge Unauthorized "
        "Unavailable VersionConflict WherryError WriterFailed"
    ),
    "model.calls.fate": "Fate Fates Outcome",
    "model.catalog.key": "Right",
    "model.calls.lease": "Received",
    "model.calls.listing": "Search",
    "model.calls.publish": "PublishOptions Published",
    "model.catalog.route": "Binding Route",
    "model.schema": "Message",
    "model.calls.stats": "Removal SubscriptionStats TopicStats",
    "model.catalog.subscription": "Retry Subscription",
    "model.catalog.topic": "Topic",
    "model.catalog.webhook": "Webhook",
    "scanning.scan": "Scan scan",
    "security.oidc.client_credentials": "ClientCredentials",
    "security.signing": "verify_webhook",
    "service.current": "current_call",
    "service.losses": "Losses",
    "service.outcomes": "ConnectionLost Failed RefusalCode Refused TimedOut",
    "service.peer": "Peer peer",
    "service.providing.provider": "ListenAt",
    "service.service": "Service",
    "service.sync": "SyncPeer peer_sync",
    "service.trust": "Trust TrustedIssuer",
    "wire.native.codec.invokes": "CallContext",
}
"""Where each name is; `name=original` where it goes by another one there."""

_PLACE_OF = {
    name.partition("=")[0]: (place, name.rpartition("=")[2])
    for place, names in _PLACES.items()
    for name in names.split()
}


def __getattr__(name: str) -> object:
    if name not in _PLACE_OF:
        raise AttributeError(f"module 'wherry' has no attribute {name!r}")
    place, original = _PLACE_OF[name]
    value = getattr(import_module(f"wherry.{place}"), original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
