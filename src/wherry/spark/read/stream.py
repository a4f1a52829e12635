"""Streaming reads: positions in the log, no leases. The rows of a micro-batch depend only on its two offsets.

The query is a durable subscription of each topic. The reader reports to the broker how far the query has read, so that
the lag of the subscription is true and a queue keeps the messages that were not read. Spark asks for the next offset
only when all before it is done and in Spark's log of commits: the reader advances the subscription then.
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
from wherry.spark.columns.schema import checked
from wherry.spark.link import link
from wherry.spark.options.options import COUNT_MAX, EARLIEST, LATEST, Options
from wherry.spark.read import reading
from wherry.spark.read.due import DueBetween, DuePlan, NotDueYet, now_ms
from wherry.spark.read.positions import (
    DUE_VERSION,
    VERSION,
    Mark,
    PartitionRange,
    Positions,
    mark_of,
    ranges,
)
from wherry.spark.read.reading import ReadTask
from wherry.spark.read.topics import topics_of

WAIT_MS = 100
"""How long an idle source waits in one call; Spark itself would ask some 80 times a second.

It is not longer because Spark asks the sources of a query one after the other, so an idle source delays the others.
"""


class There(NamedTuple):
    """The messages that a topic has now: by partition from `first` up to, but without, `last`."""

    incarnation: int
    first: dict[int, int]
    last: dict[int, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, checked(schema, options)
        self._target: Positions | None = None
        """Where a run with the trigger `availableNow` ends."""
        self._advanced_to: Positions = {}
        """The positions that the subscription was last advanced to."""
        self._waiting = NotDueYet(link(options), options.where)
        self._now_ms: int | None = None
        """The time of a run with the trigger `availableNow`: what is due later is left to the next run."""

    # ------------------------------------------------------------------------------------------ called on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name that Spark calls
        options, topics = self._options, topics_of(link(self._options), self._options)
        options.check_points(topics)
        if options.fail_on_data_loss and options.start.word == "earliest":
            for topic in topics:
                self._check_new(topic)
        subscribe(options)  # before the positions are read, so that the subscription keeps all that comes after them
        there = {topic: self._extents(topic) for topic in topics}
        return Mark(
            version=VERSION,
            positions={topic: self._start_offsets(topic, found) for topic, found in there.items()},
            subscription=f"spark-{secrets.token_hex(8)}" if options.subscription is None else options.subscription,
            incarnations={topic: found.incarnation for topic, found in there.items()},
            initial=True,
        ).json()

    def _check_new(self, topic: str) -> None:
        """Raise `HistoryLost` if the subscription of a new query has read messages of a queue before.

        The queue has deleted the messages that were read. Without the error, a user who deletes a checkpoint to read
        all of them again would get only the rest and not notice.
        """
        name, there = self._options.subscription, link(self._options).action("extents", {"topic": topic})
        if not name or there.get("keep") != "settled":
            return
        known = link(self._options).action("stats", {"topic": topic})["subscriptions"]
        read = sum(each["counters"].get("acked", 0) for each in known if each["name"] == name)
        if not read:
            return
        number, first = max(there["start"].items(), key=lambda each: each[1])
        raise _lost(
            HistoryLost(topic, int(number), 0, first),
            f"subscription {name!r} has read {read} messages of {topic!r} before, and the topic, a queue, let go of"
            " what was read: a query with a new checkpoint would not see it again. Read it from an archive, or set"
            " failOnDataLoss to false to go on with what is left",
        )

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = mark_of(start)
        there = self._there(begin)
        known = {topic: self._known(begin, topic, found) for topic, found in there.items()}
        if not begin.initial:
            self._advance_all(begin, known)
        found = self._reach(known, limit, wait=not begin.initial)
        due = self._due(begin, known, found)
        made = Mark(
            version=VERSION if due.until_ms is None else DUE_VERSION,
            positions=found,
            subscription=begin.subscription,
            origin=known if begin.initial or known != begin.positions else None,
            incarnations={topic: here.incarnation for topic, here in there.items()},
            due_ms=due.until_ms,
            waiting=due.waiting,
            released=due.released,
        )
        is_same = found == begin.positions and not due.released and not _made_anew(begin, there)
        return start if is_same and not begin.initial else made.json()

    def _due(self, begin: Mark, known: Positions, found: Positions) -> DuePlan:
        """Return what the option `dueOnly` means for the next micro-batch."""
        if not self._options.due_only and not begin.waiting:
            return DuePlan(None, {}, {})
        now = now_ms() if self._now_ms is None else self._now_ms
        self._waiting.remember(begin)
        for topic in begin.waiting:
            if known.get(topic) != begin.positions.get(topic):
                self._waiting.forget(topic)
        return self._waiting.plan(known, found, max(now, begin.due_ms or 0) if self._options.due_only else None)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.rows_per_batch)  # bytes are limited too, but Spark has no `ReadLimit` for both

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        topics = topics_of(link(self._options), self._options)
        self._target = {topic: self._extents(topic).last for topic in topics}
        self._now_ms = now_ms()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        topics = topics_of(link(self._options), self._options)
        try:
            return Mark(version=VERSION, positions={topic: self._extents(topic).last for topic in topics}).json()
        except NotFound:  # this offset is only displayed; a read of the missing topic raises
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = mark_of(start), mark_of(end)
        if begin == stop:  # a micro-batch without data; the origin in the mark is that of the batch before
            return []
        known = begin.positions if stop.origin is None else stop.origin
        gone = self._gone(stop)
        if stop.subscription:
            self._follow(begin, known, stop, gone)
        rows, until = self._options.rows_per_task, stop.due_ms
        new = None if until is None else DueBetween(until_ms=until)
        again = DueBetween(after_ms=begin.due_ms, until_ms=until)
        first = {topic: {number: each[0] for number, each in found.items()} for topic, found in stop.released.items()}
        last = {topic: {number: each[1] for number, each in found.items()} for topic, found in stop.released.items()}
        found = [(each, new) for each in ranges(known, stop.positions, rows)]
        found += [(each, again) for each in ranges(first, last, rows)]
        return [self._task(begin, each, due) for each, due in found if each.topic not in gone]

    def _task(self, begin: Mark, part: PartitionRange, due: DueBetween | None) -> ReadTask:
        strict = self._is_strict(begin, part.topic)
        ticket = reading.ask(self._options, self._schema, part.topic, strict=strict, timed=due is not None)
        ticket |= {"partition": part.partition, "start": part.start, "stop": part.stop}
        return ReadTask(msgspec.json.encode(ticket), due)

    def _is_strict(self, begin: Mark, topic: str) -> bool:
        """Return whether a message that is gone counts as data loss.

        It does not where the query begins at a word or a time, which means the messages that exist by then, nor in a
        topic that is new to the query: its subscription keeps messages from the first micro-batch on.
        """
        words = begin.initial and self._options.start.offsets is None
        return self._options.fail_on_data_loss and not words and topic in begin.positions

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this late, and never for the last micro-batch. `latestOffset` advances instead."""

    # -------------------------------------------------------------------------------------------------- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return reading.read(self._options, self._schema, partition)

    # ------------------------------------------------------------------------------------------------ how far to go

    def _reach(self, start: Positions, limit: ReadLimit, *, wait: bool) -> Positions:
        """Return the positions to read up to.

        Where messages are gone, raise `HistoryLost`, or without `failOnDataLoss` begin at the messages that are left.
        """
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
        """Return the extents of the query's topics and of topics that came since.

        A topic that is gone is an error, or is left out without `failOnDataLoss`. A topic that the load no longer names
        is still read, since its subscription still holds its messages.
        """
        found = {}
        for topic in dict.fromkeys((*begin.positions, *topics_of(link(self._options), self._options))):
            try:
                if topic not in begin.positions and begin.subscription and not begin.initial:
                    # From here on the topic keeps what the query has not read.
                    self._subscribe(topic, begin.subscription, "earliest")
                found[topic] = self._extents(topic)
            except NotFound:
                if self._options.fail_on_data_loss:
                    raise
        return found

    def _known(self, begin: Mark, topic: str, there: There) -> dict[int, int]:
        """Return the positions of the query in a topic; in a topic that is new to the query, its first offsets.

        A topic that was created again is an error, or is read from its first offsets without `failOnDataLoss`.
        """
        offsets = begin.positions.get(topic)
        if offsets is None:
            return there.first
        beyond = [number for number, offset in offsets.items() if offset > there.last.get(number, 0)]
        if not beyond and not _made_anew(begin, {topic: there}):
            return dict(offsets)
        if self._options.fail_on_data_loss:
            number = next(iter(beyond or offsets), 0)
            raise _anew(topic, number, offsets.get(number, 0), there.first.get(number, 0))
        return there.first

    def _gone(self, stop: Mark) -> set[str]:
        """Return the topics that were deleted or created again since a micro-batch was planned.

        With `failOnDataLoss` raise instead, since the messages of the micro-batch are gone.
        """
        gone: dict[str, str] = {}
        for topic in stop.positions:
            try:
                if _made_anew(stop, {topic: self._extents(topic)}):
                    gone[topic] = "deleted and created again"
            except NotFound:
                gone[topic] = "deleted"
        if gone and self._options.fail_on_data_loss:
            topic = min(gone)
            number, offset = next(iter(stop.positions[topic].items()), (0, 0))
            raise _anew(topic, number, offset, 0, gone[topic])
        return set(gone)

    def _kept(self, start: Positions) -> Positions:
        """Return the positions, moved to the first message that is left where earlier ones are gone."""
        kept = {}
        for topic, offsets in start.items():
            first = self._extents(topic).first
            kept[topic] = {number: max(offset, first.get(number, 0)) for number, offset in offsets.items()}
        return kept

    # -------------------------------------------------------------------------------------------- at the broker

    def _start_offsets(self, topic: str, there: There) -> dict[int, int]:
        """Return the offsets that the option for the start means in one topic."""
        point = self._options.start
        if point.word is not None:
            return there.first if point.word == "earliest" else there.last
        if point.time_ms is not None:
            found = link(self._options).action("offsets-at", {"topic": topic, "time_ms": point.time_ms})
            return _offsets(found["offsets"])
        words = {EARLIEST: there.first, LATEST: there.last}
        asked = (point.offsets or {}).get(topic, {})
        given = {number: words.get(offset, {}).get(number, offset) for number, offset in asked.items()}
        for number, offset in given.items():
            if not 0 <= offset <= there.last.get(number, -1):
                allowed = {each: f"0 to {last}" for each, last in there.last.items()}
                raise InvalidInput("startingOffsets", {topic: {number: offset}}, f"by partition {allowed}")
        return there.first | given

    def _extents(self, topic: str) -> There:
        found = link(self._options).action("extents", {"topic": topic})
        return There(found["incarnation"], _offsets(found["start"]), _offsets(found["stop"]))

    def _advance_all(self, begin: Mark, known: Positions) -> None:
        """Advance the subscription to the start of the next micro-batch, except of a topic that was created again."""
        for topic, offsets in begin.positions.items() if begin.subscription else ():
            done = begin.settled(topic, offsets)
            if known.get(topic) == offsets and done != self._advanced_to.get(topic):
                self._advance(begin, topic, done)
                self._advanced_to[topic] = done

    def _follow(self, begin: Mark, known: Positions, stop: Mark, gone: Iterable[str]) -> None:
        """Create the subscription of topics that the query begins to read, and advance it to their first positions."""
        for topic in stop.positions:
            if stop.origin is not None and topic not in gone:
                start = _first(self._options) if topic in begin.positions else "earliest"
                self._subscribe(topic, stop.subscription, start)
                offsets = known.get(topic, {})
                same = begin.positions.get(topic) == offsets
                self._advance(stop, topic, begin.settled(topic, offsets) if same else offsets)

    def _subscribe(self, topic: str, name: str, start: str) -> None:
        _subscribe(self._options, topic, name, start)

    def _advance(self, mark: Mark, topic: str, offsets: dict[int, int]) -> None:
        body = {"topic": topic, "subscription": mark.subscription, "offsets": offsets}
        with suppress(NotFound):  # the topic is gone: the next read of its extents raises
            try:
                link(self._options).action("advance", body)
            except NotFound:  # the subscription was deleted
                self._subscribe(topic, mark.subscription, "earliest")
                if not _made_anew(mark, {topic: self._extents(topic)}):
                    link(self._options).action("advance", body)


def subscribe(options: Options) -> None:
    """Create the subscription that a load names in each of its topics, so that they keep what it has not read."""
    for topic in topics_of(link(options), options) if options.subscription else ():
        _subscribe(options, topic, options.subscription or "", _first(options))


def _first(options: Options) -> str:
    return "latest" if options.start.word == "latest" else "earliest"


def _subscribe(options: Options, topic: str, name: str, start: str) -> None:
    try:
        link(options).action("subscribe", {"topic": topic, "name": name, "start": start})
    except AlreadyExists:
        return  # another client created it with other settings: use it as it is


def _made_anew(mark: Mark, there: dict[str, There]) -> bool:
    """Return whether a topic is not the one that the positions belong to; old checkpoints do not hold that."""
    return any(mark.incarnations.get(topic, found.incarnation) != found.incarnation for topic, found in there.items())


def _anew(topic: str, number: int, offset: int, first: int, what: str = "deleted and created again") -> HistoryLost:
    """Return the error of a query whose topic is not the one that it has read so far."""
    return _lost(
        HistoryLost(topic, number, offset, first),
        f"topic {topic!r} was {what} since this query read it: its messages up to offset {offset} of partition {number}"
        " are gone with it. Start the query with a new checkpoint, or set failOnDataLoss to false to read the topic"
        " that has the name now from its beginning",
    )


def _lost(fault: HistoryLost, why: str) -> HistoryLost:
    """Return the error with another text: these messages were not deleted by age, size or settling alone."""
    fault.args = (why,)
    return fault


def _offsets(given: dict[str, int]) -> dict[int, int]:
    return {int(number): offset for number, offset in given.items()}


def _positions(given: dict[str, dict[str, int]]) -> Positions:
    return {topic: _offsets(offsets) for topic, offsets in given.items()}
