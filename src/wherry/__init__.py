"""Wherry: a message queue that is installed with pip, whose log is Apache Arrow.

>>> import wherry
>>> async def main():
...     async with wherry.open("data") as broker:
...         await broker.create_topic("jobs")
...         await broker.subscribe("jobs", "workers")
...         await broker.publish("jobs", [b"hello"])
"""

from wherry.broker.broker import Broker
from wherry.broker.browse import Search
from wherry.broker.clock import Clock, SystemClock
from wherry.broker.consumer import Consumer, Delivery, Received
from wherry.broker.opening import open  # noqa: A004  the name people look for: wherry.open
from wherry.core.amending import Amended, Amendment
from wherry.core.assignment import Strategy
from wherry.core.assignment import register as register_assignment
from wherry.core.deadletters import DeadFilter
from wherry.core.publishing import Published, PublishOptions
from wherry.core.state import Deed
from wherry.core.stats import SubscriptionStats, TopicStats
from wherry.model.errors import (
    AlreadyExists,
    Closed,
    Corrupt,
    CutOff,
    DiskFull,
    DuplicateId,
    Fenced,
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
    VersionConflict,
    WherryError,
    WriterFailed,
)
from wherry.model.route import Binding, Route
from wherry.model.schema import Message
from wherry.model.subscription import Retry, Subscription
from wherry.model.topic import Topic

__all__ = [
    "AlreadyExists",
    "Amended",
    "Amendment",
    "Binding",
    "Broker",
    "Clock",
    "Closed",
    "Consumer",
    "Corrupt",
    "CutOff",
    "DeadFilter",
    "Deed",
    "Delivery",
    "DiskFull",
    "DuplicateId",
    "Fenced",
    "InUse",
    "InvalidInput",
    "LimitReached",
    "Message",
    "NotFound",
    "NotWaiting",
    "OutOfSequence",
    "PublishOptions",
    "Published",
    "Received",
    "Retry",
    "Route",
    "Search",
    "StageLost",
    "StaleLease",
    "StorageError",
    "Strategy",
    "Subscription",
    "SubscriptionStats",
    "SystemClock",
    "TooLarge",
    "Topic",
    "TopicStats",
    "VersionConflict",
    "WherryError",
    "WriterFailed",
    "open",
    "register_assignment",
]
