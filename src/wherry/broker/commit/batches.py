"""What is gathered for one topic: the rows of one or several callers, as one batch.

Decides what such a batch is (a few messages as values, plain columns, columns), and into which parts a bounded topic
needs it split. It never publishes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.calls.rows import BARE, Handling, Rows, are_checked
from wherry.model.catalog.topic import Topic
from wherry.model.errors import WherryError
from wherry.model.limits import ENVELOPE_BYTES_MAX, PRIORITY_DEFAULT
from wherry.model.row_batch import ROWS_BYTES_MAX, ROWS_MAX, RowBatch, of_columns, of_payloads
from wherry.model.schema import TYPES, PlainBatch, Publishable, plain_batch

OPTIONS = {True: PublishOptions(persistent=True), False: PublishOptions(persistent=False)}

_NO_MORE = (None, None, None)

Submittable: TypeAlias = Publishable | PlainBatch | RowBatch
"""What can be submitted: anything publishable, or messages of this process that are checked already."""


class CallerRows(NamedTuple):
    """Rows of one caller within a batch."""

    rows: Rows
    handling: Handling
    owner: Any
    """The value by which the caller finds its rows."""
    separable: bool
    """Whether each row succeeds or fails alone. A row whose id is refused is published without an id."""
    first: int = 0
    """How many rows of the same `add` come before these: a run may be split."""

    @property
    def is_bare(self) -> bool:
        """Whether the messages have nothing but their payloads."""
        return self.rows.is_bare and (self.handling is BARE[self.handling.persistent] or self.handling[1:] == _NO_MORE)

    def split(self, step: int) -> Iterator[CallerRows]:
        """Split into runs of at most `step` rows."""
        payloads = self.rows.payloads
        for at in range(0, len(payloads), step):
            yield self._replace(rows=self.rows.part(payloads[at : at + step]), first=self.first + at)


class AnsweredRuns(NamedTuple):
    """Runs that were submitted together, and the answer to all of them."""

    topic: str
    runs: list[CallerRows]
    position: int
    answer: Published | WherryError


@dataclass(slots=True)
class TopicBatch:
    """Runs of a submission for one topic, which become one batch."""

    topic: str
    persistent: bool
    size: int = 0
    is_plain: bool = True
    """Whether no message has more than a payload and an envelope within its limit."""
    runs: list[CallerRows] = field(default_factory=list)
    whole: tuple[Publishable, PublishOptions] | None = None
    """The messages of one call that are a batch already, instead of rows: they are submitted unchanged."""

    def add(self, run: CallerRows) -> None:
        """Add a run."""
        self.runs.append(run)
        rows = run.rows
        self.size += rows.size
        self.is_plain = self.is_plain and (
            run.is_bare
            or (
                (rows.key, rows.headers, rows.id) == _NO_MORE
                and run.handling[1:] == _NO_MORE
                and len(rows.envelope or b"") <= ENVELOPE_BYTES_MAX
            )
        )

    def content(self, runs: list[CallerRows]) -> tuple[Submittable, PublishOptions]:
        """Return what a call publishes: the messages of these runs, and its options."""
        if self.whole is not None:
            return self.whole
        few = self.size <= ROWS_BYTES_MAX and len(runs) <= ROWS_MAX
        messages = (row_batch(runs) if few else None) or (plain_columns(runs) if self.is_plain else columns(runs))
        return messages, OPTIONS[self.persistent]


def fitting(config: Topic | None, batch: TopicBatch) -> list[list[CallerRows]]:
    """Split a batch so that a bounded topic can accept it: it drops old messages, or refuses some of the batch."""
    if config is None or batch.whole is not None or not config.is_bounded:
        return [batch.runs]
    step = batch.size if config.messages_max is None else config.messages_max
    if config.overflow == "refuse" or (config.bytes_max is not None and batch.size > config.bytes_max):
        step = 1  # each alone: those that fit are accepted
    pieces = (each for run in batch.runs for each in (run.split(step) if run.separable else (run,)))
    parts: list[list[CallerRows]] = []
    room = 0
    for run in pieces:
        if len(run.rows) > room:
            parts.append([])
            room = step
        parts[-1].append(run)
        room -= len(run.rows)
    return parts


def row_batch(runs: list[CallerRows]) -> RowBatch | None:
    """Return a few messages as values; None if there are too many, or one that has to be checked as columns."""
    payloads = runs[0].rows.payloads if len(runs) == 1 else _payloads(runs)[0]
    if len(payloads) > ROWS_MAX:
        return None
    if len(runs) == 1 and runs[0].is_bare:
        return of_payloads(payloads)
    if not all(are_checked(run.rows, run.handling) for run in runs):
        return None
    values = _values(runs)
    if "priority" in values:
        values["priority"] = [PRIORITY_DEFAULT if each is None else each for each in values["priority"]]
    return of_columns(values)


def columns(runs: list[CallerRows]) -> pa.RecordBatch:
    """Make columns of rows, without columns that have no values."""
    present = _values(runs)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, TYPES[name]) for name, values in present.items()], names=list(present)
    )


def _values(runs: list[CallerRows]) -> dict[str, list[Any]]:
    """Return the values of rows by column, without columns that have no values."""
    payloads, counts = _payloads(runs)
    made = {"payload": payloads, "envelope": _column([run.rows.envelope for run in runs], counts)}
    for name in ("key", "headers", "id"):
        made[name] = _column([getattr(run.rows, name) for run in runs], counts)
    for at, name in enumerate(("priority", "expires", "due"), 1):
        made[name] = _column([run.handling[at] for run in runs], counts)
    return {name: values for name, values in made.items() if values is not None}


def plain_columns(runs: list[CallerRows]) -> PlainBatch:
    """Make columns of rows that have payloads and envelopes only."""
    payloads, counts = _payloads(runs)
    return plain_batch(payloads, _column([run.rows.envelope for run in runs], counts))


def _payloads(runs: list[CallerRows]) -> tuple[list[bytes], list[int] | None]:
    """Return the payloads of runs, and how many each run has (None: each has one)."""
    payloads = runs[0].rows.payloads
    if len(runs) > 1:
        payloads = list(chain.from_iterable(run.rows.payloads for run in runs))
    return payloads, None if len(payloads) == len(runs) else [len(run.rows) for run in runs]


def _column(values: list[Any], counts: list[int] | None) -> list[Any] | None:
    """Return a value of each run for each of its rows; None if no run has a value."""
    if not any(value is not None for value in values):
        return None
    return values if counts is None else list(chain.from_iterable(map(repeat, values, counts)))
