"""Reads the options of a load or a save from their text and checks them, once: later code gets values."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from wherry.model import check, limits
from wherry.model.calls.narrowing import WHOLE, Interval
from wherry.model.calls.where import Where
from wherry.model.errors import InvalidInput
from wherry.spark.options import kafka_options
from wherry.spark.options.options import (
    BYTES_PER_BATCH,
    COUNT_MAX,
    EARLIEST,
    KNOWN,
    LATEST,
    PAYLOADS,
    RETRY_S,
    ROWS_PER_BATCH,
    ROWS_PER_TASK,
    SCHEMES,
    SPARKS_OWN,
    TABLE_OPTION,
    TABLES,
    URL,
    LogPoint,
    Options,
)
from wherry.spark.options.times import instant_ms

OFFSETS = 'earliest, latest, or JSON of offsets by topic and partition, as {"orders": {"0": 17}}'

T = TypeVar("T")


def parse(given: Mapping[str, str], now_ms: int | None = None, *, is_write: bool = False) -> Options:
    """Return the options of a load or save; raise `InvalidInput` for the first that is wrong or unknown."""
    asked = {name.lower() for name in given}
    given = kafka_options.translated({name: given[name] for name in given if not name.lower().startswith(TABLE_OPTION)})
    allowed = {name.lower() for name in KNOWN} | SPARKS_OWN | kafka_options.NAMES
    for name in given:
        if name.lower() not in allowed:
            raise InvalidInput(f"option {name}", given[name], "one of " + ", ".join(KNOWN))
    texts = {name.lower(): value for name, value in given.items()}
    read = _Reader(texts, int(time.time() * 1_000) if now_ms is None else now_ms)
    start, stop = read.point("starting", "earliest"), read.point("ending", "latest")
    options = Options(
        url=read.url(),
        key=_checked_key(read.text("apiKey") or os.environ.get("WHERRY_KEY") or None),
        ca=read.text("ca") or os.environ.get("WHERRY_CA") or None,
        topics=read.topics(),
        table=read.word("table", TABLES),
        start=start,
        stop=stop,
        rows_per_task=read.count("rowsPerTask", ROWS_PER_TASK),
        where=read.where(),
        partitions=read.bounds("partition"),
        offsets=read.bounds("offset"),
        local_files=read.flag("localFiles", True),
        payload=read.word("payload", PAYLOADS),
        payload_schema=read.text("payloadSchema"),
        writer_schemas=read.text("writerSchemas"),
        pattern=read.expression("subscribePattern"),
        like_kafka=not asked.isdisjoint(kafka_options.ROWS),
        kafka_headers=read.flag("includeHeaders", False),
        rows_per_batch=read.count("maxRowsPerBatch", ROWS_PER_BATCH),
        bytes_per_batch=read.count("maxBytesPerBatch", BYTES_PER_BATCH),
        subscription=read.subscription(),
        fail_on_data_loss=read.flag("failOnDataLoss", True),
        due_only=read.flag("dueOnly", False),
        retry_s=read.seconds("retrySeconds", RETRY_S),
        commit_key=read.text("commitKey"),
        by=read.text("by") or "spark",
        given=frozenset(texts),
    )
    _agree(options, is_write=is_write)
    return options


def _checked_key(key: str | None) -> str | None:
    """Refuse a token that gRPC would drop; the value is in no error."""
    if key is not None and len(key) > limits.FLIGHT_KEY_CHARS_MAX - len("Bearer "):
        allowed = f"at most {limits.FLIGHT_KEY_CHARS_MAX:,} with its scheme, since gRPC allows 8 KB of headers"
        raise InvalidInput(
            "option apiKey", f"{len(key):,} characters", f"{allowed}: a token with fewer claims, or a key"
        )
    return key


def _agree(options: Options, *, is_write: bool) -> None:
    """Raise `InvalidInput` for options that contradict each other."""
    if not options.topics and options.pattern is None and options.table == "messages" and not is_write:
        raise InvalidInput("topic", None, "the name of a topic, several with commas between, or a pattern with *")
    if options.table != "messages" and options.payload != "bytes":
        raise InvalidInput("payload", options.payload, "bytes, for a table other than messages")
    if options.payload_schema is not None and options.payload not in ("json", "avro", "confluent"):
        raise InvalidInput("payloadSchema", options.payload_schema, "none, unless payload is json, avro or confluent")
    if options.payload in ("avro", "confluent") and options.payload_schema is None:
        raise InvalidInput("payloadSchema", None, f"an Avro schema as JSON, since payload is {options.payload}")
    if (options.writer_schemas is None) == (options.payload == "confluent"):
        allowed = 'Avro schemas by their ids, as {"7": {…}}, if payload is confluent, and else none'
        raise InvalidInput("writerSchemas", options.writer_schemas, allowed)
    if options.like_kafka and (options.payload != "bytes" or options.table != "messages"):
        raise InvalidInput("option subscribe", ",".join(options.topics), "topic, for decoded payloads and other tables")
    if options.pattern is not None and options.topics:
        raise InvalidInput("option subscribePattern", options.pattern, "one of subscribePattern, subscribe and topic")
    if options.kafka_headers and not options.like_kafka:
        raise InvalidInput("option includeHeaders", "true", "subscribe: other loads have the column headers anyway")


class _Reader:
    """Reads values from the text of options."""

    def __init__(self, texts: Mapping[str, str], now_ms: int) -> None:
        self._texts, self._now_ms = texts, now_ms

    def text(self, name: str) -> str | None:
        return self._texts.get(name.lower())

    def url(self) -> str:
        url = self.text("url") or os.environ.get("WHERRY_FLIGHT_URL") or URL
        if not url.startswith(SCHEMES):
            raise InvalidInput("url", url, f"an address of Arrow Flight, such as {URL} or grpc+tls://host:7072")
        return url

    def topics(self) -> tuple[str, ...]:
        given = self.text("topic") or self.text("path") or ""
        names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
        for name in names:
            check.name("topic", name, limits.TOPIC_NAME_BYTES_MAX)
        return names

    def subscription(self) -> str | None:
        given = self.text("subscription")
        if given:
            check.name("subscription", given, limits.SUBSCRIPTION_NAME_CHARS_MAX)
        return given

    def word(self, name: str, words: tuple[T, ...]) -> T:
        given = self.text(name)
        for word in words:
            if given is None or given.lower() == word:
                return word
        raise InvalidInput(name, given, "one of " + ", ".join(map(str, words)))

    def count(self, name: str, default: int) -> int:
        return self._integer(name, 1, COUNT_MAX, default)

    def _integer(self, name: str, low: int, high: int, default: T) -> int | T:
        given = self.text(name)
        if given is None:
            return default
        if not given.strip().isdecimal():
            raise InvalidInput(name, given, f"a whole number from {low} to {high}")
        return check.integer(name, int(given), low, high)

    def seconds(self, name: str, default: float) -> float:
        given = self.text(name)
        try:
            return default if given is None else check.number(name, float(given), 0, 86_400)
        except ValueError:
            raise InvalidInput(name, given, "seconds, from 0 to 86400") from None

    def flag(self, name: str, default: bool) -> bool:
        given = self.text(name)
        if given is not None and given.lower() not in ("true", "false"):
            raise InvalidInput(name, given, "true or false")
        return default if given is None else given.lower() == "true"

    def point(self, side: str, default: Literal["earliest", "latest"]) -> LogPoint:
        offsets, moment = self.text(f"{side}Offsets"), self.text(f"{side}Time")
        if offsets is not None and moment is not None:
            raise InvalidInput(f"{side}Offsets, {side}Time", (offsets, moment), "one of the two")
        if moment is not None:
            return LogPoint(time_ms=instant_ms(f"{side}Time", moment, self._now_ms))
        word = default if offsets is None else offsets.strip().lower()
        if word in ("earliest", "latest"):
            return LogPoint(word)  # type: ignore[arg-type]
        found = self._json(f"{side}Offsets", dict[str, dict[int, int]], OFFSETS)
        least = EARLIEST if side == "starting" else LATEST
        for topic, given in found.items():
            for number, offset in given.items():
                if offset < least:
                    allowed = "an offset, -1 for latest" + (" or -2 for earliest" if side == "starting" else "")
                    raise InvalidInput(f"{side}Offsets", {topic: {number: offset}}, allowed)
        return LogPoint(offsets=found)

    def expression(self, name: str) -> str | None:
        given = self.text(name)
        try:
            re.compile(given or "")
        except re.error as fault:
            raise InvalidInput(f"option {name}", given, f"a regular expression ({fault})") from None
        return given

    def bounds(self, name: str) -> Interval:
        low = self._integer(f"{name}Min", 0, limits.OFFSET_MAX, WHOLE.low)
        return Interval(low, self._integer(f"{name}Max", 0, limits.OFFSET_MAX, WHOLE.high))

    def instant(self, name: str) -> int | None:
        given = self.text(name)
        return None if given is None else instant_ms(name, given, self._now_ms)

    def where(self) -> Where:
        keys = self.text("keys")
        if keys is not None and keys.lstrip().startswith("["):
            listed: list[str] | None = self._json("keys", list[str], "a JSON list of keys, or keys with commas between")
        else:
            listed = None if keys is None else [key.strip() for key in keys.split(",")]
        headers = self._json("headers", dict[str, str], 'a JSON object of text, as {"kind": "order"}')
        return Where(
            keys=listed,
            headers=headers,
            from_ms=self.instant("publishedFrom"),
            to_ms=self.instant("publishedTo"),
            priority_min=self._integer("priorityMin", 0, limits.PRIORITY_MAX, None),
            priority_max=self._integer("priorityMax", 0, limits.PRIORITY_MAX, None),
        ).checked()

    def _json(self, name: str, kind: Any, allowed: str) -> Any:
        given = self.text(name)
        if given is None:
            return None
        try:
            return msgspec.json.decode(given, type=kind)
        except msgspec.MsgspecError:
            raise InvalidInput(name, given, allowed) from None
