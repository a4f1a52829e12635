"""Streaming reads: positions in the log, no leases. What a micro-batch has depends on its two offsets alone.

The query is a durable subscription of each topic: it is told how far the query is, so lag is true and a queue keeps
what was not read. Spark asks how far to go from some offset only when everything before it is done and in its log of
commits; that is when the subscription is told.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

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

from wherry.model.errors import AlreadyExists, HistoryLost, InvalidInput, NotFound
from wherry.spark.link import link
from wherry.spark.options import COUNT_MAX, Options
from wherry.spark.read import reading
from wherry.spark.read.positions import (
    VERSION,
    Mark,
    Positions,
    mark_of,
    stretches,
)
from wherry.spark.read.reading import Part
from wherry.spark.read.topics import resolve
from wherry.spark.schema import checked

WAIT_MS = 100
"""How long an idle source waits in one call; Spark itself would ask some 80 times a second. Not longer: Spark asks the
sources of a query one after the other, so an idle one holds up those that are not."""


class There(NamedTuple):
    """What there is of a topic by now: by partition from `first` up to `last`."""

    incarnation: int
    first: dict[int, int]
    last: dict[int, int]


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
        options.check_places(topics)
        if options.fail_on_data_loss and options.start.word == "earliest":
            for topic in topics:
                self._check_new(topic)
        subscribe(options)  # before the positions: whatever comes after them is kept for it
        there = {topic: self._extents(topic) for topic in topics}
        return Mark(
            version=VERSION,
            positions={topic: self._placed(topic, found) for topic, found in there.items()},
            subscription=f"spark-{secrets.token_hex(8)}" if options.subscription is None else options.subscription,
            incarnations={topic: found.incarnation for topic, found in there.items()},
            initial=True,
        ).json()

    def _check_new(self, topic: str) -> None:
        """Raise `HistoryLost` if the subscription of a query that begins anew has read of a queue, which let go of it.

        Else whoever deletes a checkpoint to read everything again reads what is left, without a word.
        """
        name, there = self._options.subscription, link(self._options).action("extents", {"topic": topic})
        if not name or there.get("keep") != "settled":
            return
        known = link(self._options).action("stats", {"topic": topic})["subscriptions"]
        read = sum(each["counters"].get("acked", 0) for each in known if each["name"] == name)
        if not read:
            return
        number, first = max(there["start"].items(), key=lambda each: each[1])
        fault = HistoryLost(topic, int(number), 0, first)
        fault.args = (
            f"subscription {name!r} has read {read} messages of {topic!r} before, and the topic, a queue, let go of"
            " what was read: a query with a new checkpoint would not see it again. Read it from an archive, or set"
            " failOnDataLoss to false to go on with what is left",
        )
        raise fault

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = mark_of(start)
        there = self._there(begin)
        known = {topic: self._known(begin, topic, found) for topic, found in there.items()}
        if not begin.initial:
            self._tell(begin, known)
        found = self._reach(known, limit, wait=not begin.initial)
        made = Mark(
            version=VERSION,
            positions=found,
            subscription=begin.subscription,
            origin=known if begin.initial or known != begin.positions else None,
            incarnations={topic: here.incarnation for topic, here in there.items()},
        )
        is_same = found == begin.positions and not _made_anew(begin, there)
        return start if is_same and not begin.initial else made.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.rows_per_batch)  # of bytes too, but Spark has no word for both

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        topics = resolve(link(self._options), self._options.topics)
        self._target = {topic: self._extents(topic).last for topic in topics}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        topics = resolve(link(self._options), self._options.topics)
        try:
            return Mark(version=VERSION, positions={topic: self._extents(topic).last for topic in topics}).json()
        except NotFound:  # it is only shown: what a missing topic means is said where it is read
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = mark_of(start), mark_of(end)
        if begin == stop:  # Spark has micro-batches without data, and the origin is of the one before
            return []
        known = begin.positions if stop.origin is None else stop.origin
        gone = self._gone(stop)
        if stop.subscription:
            self._follow(begin, known, stop, gone)
        parts: list[InputPartition] = []
        for each in stretches(known, stop.positions, self._options.rows_per_task):
            if each.topic not in gone:
                strict = self._is_strict(begin, each.topic)
                ticket = reading.ask(self._options, self._schema, each.topic, strict=strict)
                ticket |= {"partition": each.partition, "start": each.start, "stop": each.stop}
                parts.append(Part(msgspec.json.encode(ticket)))
        return parts

    def _is_strict(self, begin: Mark, topic: str) -> bool:
        """Whether a message that is gone is a loss.

        Words and times mean what there is by then, and so does a topic that came since: from its first micro-batch on
        the subscription keeps what is to come.
        """
        words = begin.initial and self._options.start.offsets is None
        return self._options.fail_on_data_loss and not words and topic in begin.positions

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

    def _there(self, begin: Mark) -> dict[str, There]:
        """What there is of the query's topics, and of those that came since; without those that are gone, if it may be.

        A topic that is no longer among those that the load names is still read: its subscription waits for it.
        """
        found = {}
        for topic in dict.fromkeys((*begin.positions, *resolve(link(self._options), self._options.topics))):
            try:
                if topic not in begin.positions and begin.subscription and not begin.initial:
                    self._subscribe(topic, begin.subscription, "earliest")  # from here on it keeps what is not read
                found[topic] = self._extents(topic)
            except NotFound:
                if self._options.fail_on_data_loss:
                    raise
        return found

    def _known(self, begin: Mark, topic: str, there: There) -> dict[int, int]:
        """The positions in a topic: those of the query, or its beginning if it is new, or was made anew."""
        offsets = begin.positions.get(topic)
        if offsets is None:
            return there.first
        beyond = [number for number, offset in offsets.items() if offset > there.last.get(number, 0)]
        if not beyond and not _made_anew(begin, {topic: there}):
            return dict(offsets)
        if self._options.fail_on_data_loss:
            number = next(iter(beyond or offsets), 0)
            raise HistoryLost(topic, number, offsets.get(number, 0), there.first.get(number, 0))
        return there.first

    def _gone(self, stop: Mark) -> set[str]:
        """Topics that were deleted, or made anew, since a micro-batch was planned: nothing of it is there."""
        gone = set()
        for topic in stop.positions:
            try:
                if _made_anew(stop, {topic: self._extents(topic)}):
                    gone.add(topic)
            except NotFound:
                gone.add(topic)
        if gone and self._options.fail_on_data_loss:
            topic = min(gone)
            number, offset = next(iter(stop.positions[topic].items()), (0, 0))
            raise HistoryLost(topic, number, offset, 0)
        return gone

    def _kept(self, start: Positions) -> Positions:
        """The same, from what is left."""
        kept = {}
        for topic, offsets in start.items():
            first = self._extents(topic).first
            kept[topic] = {number: max(offset, first.get(number, 0)) for number, offset in offsets.items()}
        return kept

    # -------------------------------------------------------------------------------------------- at the broker

    def _placed(self, topic: str, there: There) -> dict[int, int]:
        """The offsets that are meant by the option."""
        place = self._options.start
        if place.word is not None:
            return there.first if place.word == "earliest" else there.last
        if place.time_ms is not None:
            found = link(self._options).action("offsets-at", {"topic": topic, "time_ms": place.time_ms})
            return _offsets(found["offsets"])
        given = (place.offsets or {}).get(topic, {})
        for number, offset in given.items():
            if not 0 <= offset <= there.last.get(number, -1):
                allowed = {each: f"0 to {last}" for each, last in there.last.items()}
                raise InvalidInput("startingOffsets", {topic: {number: offset}}, f"by partition {allowed}")
        return there.first | given

    def _extents(self, topic: str) -> There:
        found = link(self._options).action("extents", {"topic": topic})
        return There(found["incarnation"], _offsets(found["start"]), _offsets(found["stop"]))

    def _tell(self, begin: Mark, known: Positions) -> None:
        """The subscription is done with all before the next micro-batch; not of a topic that was made anew."""
        for topic, offsets in begin.positions.items() if begin.subscription else ():
            if known.get(topic) == offsets != self._told.get(topic):
                self._advance(begin, topic, offsets)
                self._told[topic] = offsets

    def _follow(self, begin: Mark, known: Positions, stop: Mark, gone: Iterable[str]) -> None:
        """Have the subscription: from where the query began, and of topics that came since."""
        for topic in stop.positions:
            if stop.origin is not None and topic not in gone:
                start = _first(self._options) if topic in begin.positions else "earliest"
                self._subscribe(topic, stop.subscription, start)
                self._advance(stop, topic, known.get(topic, {}))

    def _subscribe(self, topic: str, name: str, start: str) -> None:
        _subscribe(self._options, topic, name, start)

    def _advance(self, mark: Mark, topic: str, offsets: dict[int, int]) -> None:
        body = {"topic": topic, "subscription": mark.subscription, "offsets": offsets}
        with suppress(NotFound):  # of the topic: the next look at it says so
            try:
                link(self._options).action("advance", body)
            except NotFound:  # somebody took the subscription away
                self._subscribe(topic, mark.subscription, "earliest")
                if not _made_anew(mark, {topic: self._extents(topic)}):
                    link(self._options).action("advance", body)


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


def _made_anew(mark: Mark, there: dict[str, There]) -> bool:
    """Whether one of the topics is another one than the positions are of; not known of old checkpoints."""
    return any(mark.incarnations.get(topic, found.incarnation) != found.incarnation for topic, found in there.items())


def _offsets(given: dict[str, int]) -> dict[int, int]:
    return {int(number): offset for number, offset in given.items()}


def _positions(given: dict[str, dict[str, int]]) -> Positions:
    return {topic: _offsets(offsets) for topic, offsets in given.items()}
