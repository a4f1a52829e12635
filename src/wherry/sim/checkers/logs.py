"""Whether a log returns every message, once and unchanged. Like all checkers, these judge only what is certain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeAlias

from wherry.sim.checkers.evidence import amended, dropping, maybe_gone
from wherry.sim.history import History, LogRead, LogRow, Positions, Sent
from wherry.sim.plan import RunPlan

At: TypeAlias = tuple[int, int]
"""A partition and an offset."""


def log_is_whole(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that each confirmed or delivered message is in the final chain of reads, or ended in a known way."""
    chain = [read for read in history.log_reads if read.kind == "range" and read.kept]
    names = {row.name for read in chain for row in read.rows}
    seen = {row.name for read in history.log_reads for row in read.rows}
    seen |= {got.name for got in history.got}
    gone, losing = maybe_gone(history), dropping(plan)
    for sent in history.sent:
        promised = sent.outcome == "ok" or (sent.outcome == "unknown" and sent.name in seen)
        if sent.topic != plan.logged or not promised or not sent.persistent or sent.name in names or sent.name in gone:
            continue
        if sent.topic not in losing:
            yield f"{sent.name} was confirmed or seen by {sent.end:.3f}, and was never read in the log"
        elif sent.offset is not None and not _reported_lost(history, sent):
            yield f"{sent.name} at {sent.partition}-{sent.offset} was not read in the log, and was not reported as lost"


def _reported_lost(history: History, sent: Sent) -> bool:
    at = (sent.partition or 0, sent.offset or 0)
    return any(_covers(each.start_at, each.stop_at, at) for each in history.missed) or sent.name in amended(history)


def log_reads_once(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that the final chain has no gap except where messages were lost, and has each message once."""
    chain = [read for read in history.log_reads if read.kind == "range" and read.kept]
    for one, other in pairwise(chain):
        for number, start in other.start_at.items():
            lost = any(each.stop_at.get(number) == start for each in history.missed)
            if start != one.stop_at.get(number, 0) and not lost:
                yield f"a range begins at {number}-{start}, the one before ended at {one.stop_at.get(number, 0)}"
    places: dict[str, list[At]] = defaultdict(list)
    for read in chain:
        for row in read.rows:
            places[row.name].append((row.partition, row.offset))
    moved = amended(history)
    redriven = any(each.topic == plan.logged for each in history.redriven)
    for name, found in places.items():
        if len(set(found)) < len(found) or (len(found) > 1 and name not in moved and not redriven):
            yield f"{name} was read {len(found)} times in one chain of ranges, at {found}"


def log_within_bounds(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that no read is larger than its bounds, except by a single message."""
    for read in history.log_reads:
        if read.messages_max is None or read.bytes_max is None or len(read.rows) <= 1:
            continue
        size = sum(row.bytes for row in read.rows)
        if len(read.rows) > read.messages_max or size > read.bytes_max:
            yield (
                f"a range of {len(read.rows)} messages and {size} bytes at {read.end:.3f}, where "
                f"{read.messages_max} and {read.bytes_max} were asked for"
            )


def log_never_changes(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that an offset always has the same message, and that a repeated read returns the same messages.

    So the log showed nothing that a crash removed, and hid nothing that a crash restored.
    """
    names = _names(history, plan)
    for read in history.log_reads:
        rows = _in_span(read, read.rows)
        if len(rows) < len(read.rows):
            yield f"messages outside of {read.start_at} to {read.stop_at} were read at {read.end:.3f}"
        yield from _other_names(read, names)
    transient = {sent.name for sent in history.sent if not sent.persistent}
    excuse = _Excuse(history, plan)
    for n, later in enumerate(history.log_reads):
        found = {(row.partition, row.offset) for row in later.rows}
        lasting = [row for row in later.rows if row.name not in transient]
        for one, other in pairwise(lasting):
            if one.partition == other.partition and one.offset >= other.offset:
                yield f"{one.name} was read before {other.name} at {later.end:.3f}, which is earlier in the log"
        for earlier in (each for each in history.log_reads[:n] if each.end <= later.start):
            before = {(row.partition, row.offset) for row in earlier.rows}
            for row in _in_span(later, earlier.rows):
                if (row.partition, row.offset) not in found and not excuse.gone(row, later.end):
                    yield f"{row.name} was read by {earlier.end:.3f}, and was not there at {later.end:.3f}"
            for row in _in_span(earlier, later.rows):
                if (row.partition, row.offset) not in before:
                    yield f"{row.name} was read at {later.end:.3f}, and had not been there by {earlier.end:.3f}"


def _names(history: History, plan: RunPlan) -> dict[At, str]:
    """Return which message has which offset, by the answers to producers and consumers."""
    names: dict[At, str] = {}
    for sent in history.sent:
        if sent.topic == plan.logged and sent.partition is not None and sent.offset is not None:
            names[sent.partition, sent.offset] = sent.name
    for got in history.got:
        if got.subscription[0] == plan.logged:
            names.setdefault((got.partition, got.offset), got.name)
    return names


def _other_names(read: LogRead, names: dict[At, str]) -> Iterator[str]:
    for row in read.rows:
        known = names.setdefault((row.partition, row.offset), row.name)
        if known != row.name:
            yield f"{row.name} was read at {row.partition}-{row.offset}, where {known} is"


class _Excuse:
    """Reasons why a message that was read may be missing later."""

    def __init__(self, history: History, plan: RunPlan) -> None:
        self._any = plan.logged in dropping(plan)
        self._fleeting = {sent.name for sent in history.sent if not sent.persistent or sent.expires_ms is not None}
        self._changed: dict[str, float] = {}
        for changed in history.changed:
            if changed.outcome != "refused":
                self._changed.setdefault(changed.name, changed.start)
        # A message that did not fit is a dead letter of no subscription: redriven, it is published again.
        moving = {each.name for each in plan.topics if each.overflow == "dead-letter" and each.messages_max}
        times = [each.start for each in history.redriven if each.topic == plan.logged and each.topic in moving]
        self._redriven = min(times, default=float("inf"))
        self._advanced = history.advanced

    def gone(self, row: LogRow, by: float) -> bool:
        if self._any or row.name in self._fleeting or self._redriven <= by:
            return True
        if self._changed.get(row.name, float("inf")) <= by:
            return True
        return any(row.offset < each.positions.get(row.partition, 0) for each in self._advanced if each.start <= by)


def _covers(start_at: Positions, stop_at: Positions, at: At) -> bool:
    number, offset = at
    return start_at.get(number, 0) <= offset < stop_at.get(number, 0)


def _in_span(read: LogRead, rows: Iterable[LogRow]) -> list[LogRow]:
    return [row for row in rows if _covers(read.start_at, read.stop_at, (row.partition, row.offset))]


def log_is_lost_by_rule(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that only a topic that drops its oldest messages loses messages which its log reader has not read."""
    for missed in history.missed:
        if missed.topic not in dropping(plan):
            yield f"{missed.start_at} to {missed.stop_at} was reported as lost at {missed.at:.3f}"


def log_lag(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that the lag counts exactly the messages above the last confirmed advance.

    And that no partition ends before an offset that a reader was given.
    """
    redriven = min((each.start for each in history.redriven if each.topic == plan.logged), default=float("inf"))
    waiting = _certainly_waiting(history, plan)
    for measured in history.measured:
        done: Positions = {}
        asked: Positions = {}
        for advanced in history.advanced:
            if advanced.outcome == "ok" and advanced.end < measured.start:  # in one instant either may have been first
                _raise(done, advanced.positions)
            if advanced.start <= measured.end:
                _raise(asked, advanced.positions)
        above = sum(stop - min(stop, done.get(number, 0)) for number, stop in measured.stop_at.items())
        if measured.lag > above and redriven > measured.end:
            yield f"{measured.lag} behind at {measured.end:.3f}, and only {above} offsets are above {done}"
        least = [
            sent.name
            for sent in waiting
            if sent.end <= measured.start and (sent.offset or 0) >= asked.get(sent.partition or 0, 0)
        ]
        if measured.lag < len(least):
            yield f"{measured.lag} behind at {measured.end:.3f}, and {len(least)} wait: {least[:5]}"
        for read in history.log_reads:
            short = {n: stop for n, stop in read.stop_at.items() if measured.stop_at.get(n, 0) < stop}
            if short and read.end <= measured.start:
                yield f"the log ends at {measured.stop_at} by {measured.end:.3f}, and was read up to {short}"


def _certainly_waiting(history: History, plan: RunPlan) -> list[Sent]:
    """Return messages that only an advance removes from the lag."""
    changed = {each.name for each in history.changed if each.outcome != "refused"}
    firm = {topic.name for topic in plan.topics if topic.messages_max is None or topic.overflow == "refuse"}
    return [
        sent
        for sent in history.sent
        if sent.topic == plan.logged
        and sent.topic in firm
        and sent.outcome == "ok"
        and sent.offset is not None
        and sent.persistent
        and sent.expires_ms is None
        and sent.name not in changed
    ]


def _raise(positions: Positions, to: Positions) -> None:
    for number, offset in to.items():
        positions[number] = max(offset, positions.get(number, 0))


def growth_stays(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a topic has the partitions that it was given, and no others."""
    for topic in plan.topics:
        grown = [each for each in history.grown if each.topic == topic.name]
        for sampled in (each for each in history.sampled if each.topic == topic.name):
            done = [each.partitions for each in grown if each.outcome == "ok" and each.end <= sampled.start]
            tried = [each.partitions for each in grown if each.start <= sampled.at]
            low, high = max(done, default=topic.partitions), max(tried, default=topic.partitions)
            if not low <= sampled.partitions <= high:
                yield f"{topic.name} has {sampled.partitions} partitions at {sampled.at:.3f}, not {low} to {high}"
