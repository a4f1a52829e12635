"""Streaming reads: positions in the log, no leases. What a micro-batch has depends on its two offsets alone.

The query is a durable subscription of each topic: it is told how far the query is, so lag is true and a queue keeps
what was not read. Spark asks how far to go from some offset only when everything before it is done and in its log of
commits; that is when the subscription is told.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from wherry.model.errors import AlreadyExists, HistoryLost, NotFound
from wherry.spark import reading
from wherry.spark.link import link
from wherry.spark.options import COUNT_MAX, Options, Place
from wherry.spark.positions import VERSION, Mark, Positions, mark_of, stretches
from wherry.spark.reading import Part
from wherry.spark.schema import checked
from wherry.spark.topics import resolve

WAIT_MS = 1_000
"""How long an idle query waits in one call; Spark itself would ask some 80 times a second."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, checked(schema, options)
        self._target: Positions | None = None
        """Where a run with the trigger `availableNow` ends."""
        self._told: Positions = {}
        """What the subscription knows to be done."""

    # ------------------------------------------------------------------------------------------ called on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name that Spark calls
        options, topics = self._options, resolve(link(self._options), self._options.topics)
        name = options.subscription
        subscribe(options)  # before the positions: whatever comes after them is kept for it
        positions = {topic: self._placed(topic, options.start) for topic in topics}
        name = f"spark-{secrets.token_hex(8)}" if name is None else name
        return Mark(version=VERSION, positions=positions, subscription=name, initial=True).json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = mark_of(start)
        known = self._there(begin.positions)
        if not begin.initial:
            self._tell(begin, known)
        found = self._reach(known, limit, wait=not begin.initial)
        if found == begin.positions and not begin.initial:
            return start
        moved = any(known.get(topic) != offsets for topic, offsets in begin.positions.items())
        origin = known if begin.initial or moved else None
        return Mark(version=VERSION, positions=found, subscription=begin.subscription, origin=origin).json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.rows_per_batch)  # of bytes too, but Spark has no word for both

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        topics = resolve(link(self._options), self._options.topics)
        self._target = {topic: self._extents(topic)[1] for topic in topics}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        topics = resolve(link(self._options), self._options.topics)
        try:
            return Mark(version=VERSION, positions={topic: self._extents(topic)[1] for topic in topics}).json()
        except NotFound:  # it is only shown: what a missing topic means is said where it is read
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = mark_of(start), mark_of(end)
        if begin == stop:  # Spark has micro-batches without data, and the origin is of the one before
            return []
        known = begin.positions if stop.origin is None else stop.origin
        if stop.subscription:
            self._follow(known, stop)
        # Words and times mean what there is by then; from the first batch on the subscription keeps what is to come.
        words = stop.origin is not None and self._options.start.offsets is None
        strict = self._options.fail_on_data_loss and not words
        parts: list[InputPartition] = []
        for each in stretches(known, stop.positions, self._options.rows_per_task):
            ticket = reading.ask(self._options, self._schema, each.topic, strict=strict)
            ticket |= {"partition": each.partition, "start": each.start, "stop": each.stop}
            parts.append(Part(msgspec.json.encode(ticket)))
        return parts

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes late, and for the last micro-batch never. `latestOffset` has told it by then."""

    # -------------------------------------------------------------------------------------------------- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return reading.read(self._options, self._schema, partition)

    # ------------------------------------------------------------------------------------------------ how far to go

    def _reach(self, start: Positions, limit: ReadLimit, *, wait: bool) -> Positions:
        """The positions to read to; where messages are gone, an error, or from what is left."""
        rows, size = self._limits(limit)
        wait_ms = WAIT_MS if wait and self._target is None and start else 0
        body = {"start": start, "messages_max": rows, "bytes_max": size, "wait_ms": wait_ms}
        if self._target is not None:
            body["stop"] = self._target
        try:
            return _positions(link(self._options).action("reach", body, wait_ms)["stop"]) if start else {}
        except HistoryLost:
            if self._options.fail_on_data_loss:
                raise
            return self._reach(self._kept(start), limit, wait=wait)

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return COUNT_MAX, COUNT_MAX
        rows = min(limit.max_rows, options.rows_per_batch) if isinstance(limit, ReadMaxRows) else options.rows_per_batch
        size = options.bytes_per_batch
        return rows, min(limit.max_bytes, size) if isinstance(limit, ReadMaxBytes) else size

    def _there(self, known: Positions) -> Positions:
        """The positions, and topics that came since; where a topic is gone or was made anew, an error or what is left.

        A topic that is no longer among those that the load names is still read: its subscription waits for it.
        """
        named = resolve(link(self._options), self._options.topics)
        result: Positions = {}
        for topic in dict.fromkeys((*known, *named)):
            try:
                result[topic] = self._in_range(topic, known.get(topic, {}))
            except (NotFound, HistoryLost):
                if self._options.fail_on_data_loss:
                    raise
        return result

    def _in_range(self, topic: str, offsets: dict[int, int]) -> dict[int, int]:
        """Offsets beyond the end are of an earlier topic of that name: they would pass over what is in this one."""
        first, last = self._extents(topic)
        beyond = [number for number, offset in offsets.items() if offset > last.get(number, 0)]
        if beyond and self._options.fail_on_data_loss:
            raise HistoryLost(topic, beyond[0], offsets[beyond[0]], last.get(beyond[0], 0))
        return first if beyond else dict(offsets)

    def _kept(self, start: Positions) -> Positions:
        """The same, from what is left."""
        kept = {}
        for topic, offsets in start.items():
            first, _ = self._extents(topic)
            kept[topic] = {number: max(offset, first.get(number, 0)) for number, offset in offsets.items()}
        return kept

    # -------------------------------------------------------------------------------------------- at the broker

    def _placed(self, topic: str, place: Place) -> dict[int, int]:
        """The offsets that are meant by the option."""
        first, last = self._extents(topic)
        if place.word is not None:
            return first if place.word == "earliest" else last
        if place.time_ms is not None:
            found = link(self._options).action("offsets-at", {"topic": topic, "time_ms": place.time_ms})
            return _offsets(found["offsets"])
        return first | (place.offsets or {}).get(topic, {})

    def _extents(self, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        found = link(self._options).action("extents", {"topic": topic})
        return _offsets(found["start"]), _offsets(found["stop"])

    def _tell(self, begin: Mark, known: Positions) -> None:
        """The subscription is done with all before the next micro-batch; not of a topic that was made anew."""
        for topic, offsets in begin.positions.items() if begin.subscription else ():
            if known.get(topic) == offsets != self._told.get(topic):
                self._advance(topic, begin.subscription, offsets)
                self._told[topic] = offsets

    def _follow(self, known: Positions, stop: Mark) -> None:
        """Have the subscription: from where the query began, and of topics that came since."""
        for topic in stop.positions:
            if topic not in known:
                self._subscribe(topic, stop.subscription, "earliest")
            elif stop.origin is not None:
                self._subscribe(topic, stop.subscription, self._first())
                self._advance(topic, stop.subscription, known[topic])

    def _first(self) -> str:
        return _first(self._options)

    def _subscribe(self, topic: str, name: str, start: str) -> None:
        _subscribe(self._options, topic, name, start)

    def _advance(self, topic: str, name: str, offsets: dict[int, int]) -> None:
        body = {"topic": topic, "subscription": name, "offsets": offsets}
        try:
            link(self._options).action("advance", body)
        except NotFound:  # a topic that came since, or somebody took the subscription away
            self._again(topic, name, body)

    def _again(self, topic: str, name: str, body: dict[str, Any]) -> None:
        try:
            self._subscribe(topic, name, "earliest")
            link(self._options).action("advance", body)
        except NotFound:
            if self._options.fail_on_data_loss:
                raise


def subscribe(options: Options) -> None:
    """Have the subscription that a load names, of each of its topics: from now on they keep what it has not read."""
    for topic in resolve(link(options), options.topics) if options.subscription else ():
        _subscribe(options, topic, options.subscription or "", _first(options))


def _first(options: Options) -> str:
    return "latest" if options.start.word == "latest" else "earliest"


def _subscribe(options: Options, topic: str, name: str, start: str) -> None:
    try:
        link(options).action("subscribe", {"topic": topic, "name": name, "start": start})
    except AlreadyExists:
        return  # made by somebody in another way: it is there


def _offsets(given: dict[str, int]) -> dict[int, int]:
    return {int(number): offset for number, offset in given.items()}


def _positions(given: dict[str, dict[str, int]]) -> Positions:
    return {topic: _offsets(offsets) for topic, offsets in given.items()}
