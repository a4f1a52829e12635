"""Reads offsets of the log: from files where the broker is on this machine, else by Flight; little at first.

A read may be ended after a few rows (a limit), which the reader of the rows alone knows. So the first ticket is small,
and each next one larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from wherry.model.calls.narrowing import Narrowing
from wherry.scanning.columns import counted
from wherry.scanning.cut import Cut
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive.tail import UnarchivedRange, tail

FIRST_ROWS, GROWTH = 4_096, 4


def batches(
    link: FlightLink,
    cut: Cut,
    span: UnarchivedRange,
    columns: list[str],
    wanted: Narrowing,
    *,
    strict: bool,
    files: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a range, with the offset; rows that do not match may be among them.

    With `strict`, raise `HistoryLost` for messages that were deleted before they were read, and are in no archive.
    """
    names = list(dict.fromkeys(["offset", *columns]))
    where = msgspec.to_builtins(wanted.where())
    more = {"where": where} if where else {}
    read = partial(_read, link, files=files)
    if cut.here is not None:
        yield from tail(link, cut.here, span, names, more, read, strict=strict)
        return
    ticket = {"topic": span.topic, "partition": span.partition, "start": span.start, "stop": span.stop}
    if not columns and not where:
        at, asked = span.start, {**ticket, "strict": strict}
        while at < span.stop:
            found = link.action("nearby", {**asked, "start": at})
            if found.get("rows") is None:  # a broker before that could count
                break
            yield from counted(found["rows"])
            at = found["stop"]
        ticket["start"] = at
    yield from read({**ticket, "columns": names, **more, "strict": strict})


def _read(link: FlightLink, ticket: Mapping[str, Any], *, files: bool) -> Iterator[pa.RecordBatch]:
    start, stop = int(ticket["start"]), int(ticket["stop"])
    from_ms = ticket.get("where", {}).get("from_ms")
    at = start if from_ms is None else _first_since(link, ticket, from_ms)
    if ticket["strict"] and at > start:
        _check_kept(link, ticket, min(at, stop))
    rows = FIRST_ROWS
    while at < stop:
        end = min(at + rows, stop)
        yield from link.read({**ticket, "start": at, "stop": end}, files=files)
        at, rows = end, rows * GROWTH


def _first_since(link: FlightLink, ticket: Mapping[str, Any], from_ms: int) -> int:
    """Return the first offset from `start` on that is still in the log and was published at or after a time."""
    found = link.action("offsets-at", {"topic": ticket["topic"], "time_ms": from_ms})["offsets"]
    return max(int(ticket["start"]), int(found[str(ticket["partition"])]))


def _check_kept(link: FlightLink, ticket: Mapping[str, Any], stop: int) -> None:
    """Raise `HistoryLost` if messages below `stop` are gone: nothing is known of when they were published."""
    at = int(ticket["start"])
    asked = {"topic": ticket["topic"], "partition": ticket["partition"], "stop": stop, "strict": True}
    while at < stop:
        at = int(link.action("nearby", {**asked, "start": at})["stop"])
