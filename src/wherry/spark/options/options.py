"""The options of a load or a save as values, and which of them each use reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

import msgspec

from wherry.model.calls.narrowing import WHOLE, Interval
from wherry.model.calls.where import Where
from wherry.model.errors import InvalidInput
from wherry.spark.options import kafka_options

URL = "grpc://127.0.0.1:7072"
SCHEMES = ("grpc://", "grpc+tcp://", "grpc+tls://", "grpc+unix://")

Table = Literal["messages", "dead", "subscriptions", "topics"]
Payload = Literal["bytes", "text", "json", "avro", "confluent"]
Use = Literal["read", "readStream", "write", "writeStream"]
TABLES: tuple[Table, ...] = ("messages", "dead", "subscriptions", "topics")
PAYLOADS: tuple[Payload, ...] = ("bytes", "text", "json", "avro", "confluent")

ROWS_PER_TASK = 500_000
ROWS_PER_BATCH = 1_000_000
BYTES_PER_BATCH = 128 << 20
"""The most of a micro-batch by default. A write to a topic stages it whole.

Eight queries at a time stay below the bytes that a broker allows in open stages.
"""
COUNT_MAX = 1 << 48
RETRY_S = 30.0

EARLIEST, LATEST = -2, -1
"""Numbers that stand for words where offsets are given, as in Kafka."""


class LogPoint(NamedTuple):
    """A point in the log of each topic, given as one of three: a word, offsets by topic and partition, or a time."""

    word: Literal["earliest", "latest"] | None = None
    offsets: dict[str, dict[int, int]] | None = None
    time_ms: int | None = None

    def of(self, topic: str) -> object:
        """Return the point in one topic, as Flight expects it."""
        if self.word is not None:
            return self.word
        if self.time_ms is not None:
            return {"time_ms": self.time_ms}
        return {"offsets": {str(number): offset for number, offset in (self.offsets or {}).get(topic, {}).items()}}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """All options; `docs/spark.md` describes each."""

    url: str = URL
    key: str | None = None
    ca: str | None = None
    topics: tuple[str, ...] = ()
    table: Table = "messages"
    start: LogPoint = LogPoint("earliest")
    stop: LogPoint = LogPoint("latest")
    rows_per_task: int = ROWS_PER_TASK
    where: Where = Where()
    partitions: Interval = WHOLE
    offsets: Interval = WHOLE
    local_files: bool = True
    payload: Payload = "bytes"
    payload_schema: str | None = None
    writer_schemas: str | None = None
    pattern: str | None = None
    """A regular expression, of `subscribePattern`."""
    like_kafka: bool = False
    """Whether the load has the columns of Spark's Kafka source."""
    kafka_headers: bool = False
    rows_per_batch: int = ROWS_PER_BATCH
    bytes_per_batch: int = BYTES_PER_BATCH
    subscription: str | None = None
    fail_on_data_loss: bool = True
    due_only: bool = False
    retry_s: float = RETRY_S
    commit_key: str | None = None
    by: str = "spark"
    given: frozenset[str] = frozenset()
    """Names of the options that were set, in lower case."""

    def __repr__(self) -> str:
        return f"Options({self.url!r}, {self.table}, {self.topics})"  # the key appears in no message and no trace

    def one_topic(self) -> str:
        """Return the topic of a call that needs exactly one; raise for a pattern, none or several."""
        if len(self.topics) != 1 or is_pattern(self.topics[0]):
            raise InvalidInput("topic", ",".join(self.topics) or None, "the name of one topic")
        return self.topics[0]

    def made_for(self, use: Use) -> Options:
        """Return the options; raise `InvalidInput` if one is set that this use would ignore."""
        allowed = ALLOWED.get((use, self.table), EVERYWHERE)
        if self.like_kafka and use not in ("read", "readStream"):
            raise InvalidInput("option subscribe", ",".join(self.topics), "topic: subscribe is for a read")
        for name in KNOWN:
            if name.lower() in self.given and name not in allowed:
                raise InvalidInput(f"option {name}", use, f"for {use} of {self.table}: " + ", ".join(allowed))
        return self

    def check_points(self, topics: Collection[str]) -> None:
        """Raise `InvalidInput` unless the offsets belong to topics of the load."""
        for side, point in (("starting", self.start), ("ending", self.stop)):
            for topic in point.offsets or {}:
                if topic not in topics:
                    raise InvalidInput(f"{side}Offsets", topic, "topics of the load: " + ", ".join(topics))


_DECODING = ("payload", "payloadSchema", "writerSchemas")
EVERYWHERE = ("url", "apiKey", "ca", "topic", "table", "retrySeconds")
_LOAD = ("startingOffsets", "startingTime", "rowsPerTask", "localFiles", *_DECODING, "dueOnly")
_FILTERS = ("keys", "headers", "priorityMin", "priorityMax", "publishedFrom", "publishedTo")
_PLACES = ("partitionMin", "partitionMax", "offsetMin", "offsetMax")
_FOLLOW = ("maxRowsPerBatch", "maxBytesPerBatch", "subscription", "failOnDataLoss")
ALLOWED: dict[tuple[Use, str], tuple[str, ...]] = {
    ("read", "messages"): (*EVERYWHERE, *_LOAD, "endingOffsets", "endingTime", *_FILTERS, *_PLACES, "failOnDataLoss"),
    ("readStream", "messages"): (*EVERYWHERE, *_LOAD, *_FILTERS, *_FOLLOW),
    ("write", "messages"): (*EVERYWHERE, "commitKey"),
    ("write", "dead"): (*EVERYWHERE, "by"),
}
"""The options that are read, by use and table; elsewhere only those that name the broker and topics."""
KNOWN = tuple(dict.fromkeys(name for names in ALLOWED.values() for name in names))
SPARKS_OWN = frozenset(
    {"path", "checkpointlocation", "queryname", "outputmode"}
    | {"provider", "location", "owner", "comment", "external", "is_managed_location", "collation"}
)
"""Options that Spark itself adds: of a query, and of a table. A `path` without a `topic` is the topic."""
TABLE_OPTION = "option."
"""The prefix under which Spark passes each option of a table a second time, besides the option's name."""


def is_pattern(topic: str) -> bool:
    """Return whether the text stands for all topics that match it."""
    return "*" in topic


def of_table(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a table of Spark's catalog was created with, without the key; none for other loads.

    Examples
    --------
    >>> of_table({"owner": "ann", "provider": "wherry", "topic": "orders", "option.topic": "orders", "comment": "c"})
    {'topic': 'orders'}
    >>> of_table({"topic": "orders"})
    {}
    """
    names = [name.lower() for name in given]
    if not any(name.startswith(TABLE_OPTION) for name in names):
        return {}
    known = {name.lower() for name in KNOWN} - {"apikey"} | kafka_options.NAMES
    return {name: given[name] for name in given if name.lower() in known}


def writable(kept: Mapping[str, str]) -> dict[str, str]:
    """Return those options of a table that mean something to a write, as `INSERT INTO` does one.

    Examples
    --------
    >>> writable({"topic": "orders", "payload": "json", "payloadSchema": "id LONG"})
    {'topic': 'orders'}
    """
    known = {name.lower() for name in (*ALLOWED["write", "messages"], *ALLOWED["write", "dead"])}
    return {name: value for name, value in kept.items() if name.lower() in known}
