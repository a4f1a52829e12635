"""Writes histories as lines of text, one for each record: when it was asked and answered, by whom, what, the answer.

Lines are in the order of the answers. A record without an answer is in the place where its call began; records
without a time (the dead letters that were listed at the end) come last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from wherry.sim.history import (
    NOWHERE,
    Acted,
    Advanced,
    Asked,
    Bound,
    Buried,
    Changed,
    Forwarded,
    Got,
    Grown,
    History,
    Keyed,
    Life,
    Listed,
    LogRead,
    Measured,
    Missed,
    Purged,
    Redriven,
    ReportedOutcome,
    Routed,
    Sampled,
    Sent,
    Settled,
    Torn,
)

NEVER = float("inf")
WHAT_CHARS = 60
"""The width of the column of acts; longer ones push their answer to the right."""


class Line(NamedTuple):
    """One line: when, who, what, and the answer."""

    start: float
    end: float
    client: str
    what: str
    answer: str


def lines(*histories: History) -> list[str]:
    """Return all records of some histories of one world, as aligned lines in the order of their answers."""
    found = [each for history in histories for each in _of(history)]
    found += _of_lives(histories[0].lives) if histories else ()
    found.sort(key=_time)
    clients = max((len(each.client) for each in found), default=0)
    return [
        f"{_second(each.start)} {_second(each.end)}  {each.client:<{clients}}  "
        f"{each.what:<{WHAT_CHARS}}  {each.answer}".rstrip()
        for each in found
    ]


def _time(line: Line) -> tuple[float, float]:
    return (line.end if line.end < NEVER else line.start), line.start


def _second(at: float) -> str:
    return f"{at:10.3f}" if at < NEVER else f"{'-':>10}"


def _of(history: History) -> Iterator[Line]:
    holders = {(each.token, each.name): each.consumer for each in history.got}
    for settled in history.settled:
        client = settled.consumer or holders.get((settled.token, settled.name), "?")
        delay = "" if settled.delay_ms is None else f", again after {settled.delay_ms} ms"
        place = f"{_place(settled.subscription)} (token {settled.token}{delay}){_group(settled)}"
        what = f"{settled.kind} {settled.name} of {place}"
        yield Line(settled.start, settled.end, client, what, "refused: stale" if settled.stale else settled.outcome)
    for client, at in history.left.items():
        yield Line(at, at, client, "leaves", "")
    for records, line in RECORDS.items():
        for record in getattr(history, records):
            yield line(record)


def _of_lives(lives: list[Life]) -> Iterator[Line]:
    for life in lives:
        yield Line(life.start, life.start, "broker", f"life {life.number} begins", "")
        if life.end < NEVER:
            yield Line(life.end, life.end, "broker", f"life {life.number} ends", life.ended_by)


def _place(subscription: tuple[str, str]) -> str:
    return "/".join(subscription)


def _group(record: Sent | Settled) -> str:
    return f" in group {record.group}" if record.group else ""


def _given(**properties: object) -> str:
    """Return those of some properties that a message has."""
    found = [f"{name.replace('_', ' ')} {value}" for name, value in properties.items() if value is not None]
    return f" ({', '.join(found)})" if found else ""


def _sent(sent: Sent) -> Line:
    given = _given(key=sent.key, priority=sent.priority, due_ms=sent.due_ms, expires_ms=sent.expires_ms)
    kind = ("" if sent.persistent else ", transient") + (", with a callback" if sent.callback else "")
    at = "" if sent.offset is None else f" at {sent.partition}-{sent.offset}"
    client = sent.sender or sent.name.rpartition(".")[0]
    return Line(
        sent.start,
        sent.end,
        client,
        f"publish {sent.name} to {sent.topic}{given}{kind}{_group(sent)}",
        sent.outcome + at,
    )


def _got(got: Got) -> Line:
    again = "" if got.again is None else f", redelivered {got.again}"
    at = "" if got.offset == NOWHERE else f", at {got.partition}-{got.offset}"
    answer = f"{got.name} (token {got.token}, attempt {got.attempt}{at}{again})"
    return Line(got.start, got.end, got.consumer, f"receive from {_place(got.subscription)}", answer)


def _changed(each: Changed) -> Line:
    what = f"{each.kind} {each.name} of {each.topic}{_given(due_ms=each.due_ms, priority=each.priority)}"
    return Line(each.start, each.end, "operator", what, each.outcome)


def _buried(each: Buried) -> Line:
    place = _place((each.topic, each.subscription))
    answer = f"{each.name}: {each.reason}, {each.attempts} attempts"
    return Line(NEVER, NEVER, "operator", f"list the dead letters of {place}", answer)


def _log_read(each: LogRead) -> Line:
    bounds = _given(messages_max=each.messages_max, bytes_max=each.bytes_max)
    what = f"read the log of {each.topic} ({each.kind}) from {each.start_at} to {each.stop_at}{bounds}"
    names = " ".join(f"{row.partition}-{row.offset}={row.name}" for row in each.rows)
    return Line(each.start, each.end, "log reader", what, f"{len(each.rows)} messages: {names}")


def _sampled(each: Sampled) -> Line:
    answer = f"{each.messages} messages, {each.dead} dead letters, {each.partitions} partitions"
    return Line(each.start, each.at, "operator", f"ask for the statistics of {each.topic}", answer)


def _forwarded(each: Forwarded) -> Line:
    what = "forward " + ", ".join(f"{name} of {_place((topic, whose))}" for topic, whose, name in each.copies)
    return Line(each.start, each.end, "route operator", what, f"{each.outcome}, {each.count} forwarded")


def _routed(each: Routed) -> Line:
    what = f"publish {each.name} to route {each.route} with key {each.routing_key!r}, headers {each.headers}"
    client = each.name.rpartition(".")[0]
    return Line(each.start, each.end, client, what, f"{each.outcome} {' '.join(each.topics)}".rstrip())


def _acted(each: Acted) -> Line:
    return Line(each.start, each.end, each.client, each.what, each.result)


def _redriven(each: Redriven) -> Line:
    return Line(each.start, each.end, "operator", f"redrive {each.topic}", "ok" if each.end < NEVER else "unknown")


def _keyed(each: Keyed) -> Line:
    listed = "" if each.listed is None else f", then listed: {' '.join(each.listed)}"
    return Line(each.start, each.start, "operator", f"{each.kind} the API key {each.id}", each.outcome + listed)


def _reported(each: ReportedOutcome) -> Line:
    topic, partition, offset = each.place
    return Line(each.at, each.at, "outcome client", f"report {partition}-{offset} of {topic}", each.fate)


def _asked(each: Asked) -> Line:
    return Line(each.start, each.end, "outcome client", f"ask for the fate of {each.name}", each.fate)


def _missed(each: Missed) -> Line:
    what = f"read the log of {each.topic} from {each.start_at} to {each.stop_at}"
    return Line(each.at, each.at, "log reader", what, "refused: messages are lost")


def _advanced(each: Advanced) -> Line:
    return Line(each.start, each.end, "log reader", f"advance in {each.topic} to {each.positions}", each.outcome)


def _measured(each: Measured) -> Line:
    return Line(
        each.start, each.end, "log reader", f"ask for the lag in {each.topic}", f"{each.lag}, end {each.stop_at}"
    )


def _grown(each: Grown) -> Line:
    return Line(each.start, each.end, "operator", f"give {each.topic} {each.partitions} partitions", each.outcome)


def _torn(each: Torn) -> Line:
    return Line(each.start, each.end, "a consumer", f"receive from {_place(each.subscription)}", "no answer")


def _bound(each: Bound) -> Line:
    return Line(each.start, each.end, "route operator", f"{each.kind} binding {each.binding}", each.outcome)


def _listed(each: Listed) -> Line:
    return Line(each.start, each.end, "route operator", "list the bindings", f"{each.bindings} {each.strange}")


def _purged(each: Purged) -> Line:
    what = f"purge {_place(each.subscription)}"
    return Line(each.start, each.end, "route operator", what, f"{each.outcome}, {each.count} purged")


RECORDS: dict[str, Callable[[Any], Line]] = {
    "sent": _sent,
    "got": _got,
    "changed": _changed,
    "buried": _buried,
    "redriven": _redriven,
    "sampled": _sampled,
    "keyed": _keyed,
    "reported": _reported,
    "asked": _asked,
    "log_reads": _log_read,
    "missed": _missed,
    "advanced": _advanced,
    "measured": _measured,
    "grown": _grown,
    "torn": _torn,
    "bound": _bound,
    "listed": _listed,
    "routed": _routed,
    "purged": _purged,
    "forwarded": _forwarded,
    "acted": _acted,
}
"""The lists of a history that hold records of one kind, and how a record is written."""
