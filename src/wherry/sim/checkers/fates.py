"""Whether fates and outcomes were reported correctly. Like all checkers, these judge only what is certain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from wherry.sim.checkers.evidence import amended, dropping
from wherry.sim.history import LOG, History, Sent
from wherry.sim.plan import RunPlan


def reported_at_last(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that each message with a callback is reported in spite of crashes, and that the last report is its fate."""
    reported: dict[tuple[str, int, int], str] = {each.place: each.fate for each in history.reported}
    asked = {each.name: each.fate for each in history.asked}
    for sent in history.sent:
        if sent.outcome != "ok" or sent.partition is None or sent.offset is None:
            continue
        seen, found = reported.get((sent.topic, sent.partition, sent.offset)), asked[sent.name]
        if not sent.callback:
            if seen is not None:
                yield f"{sent.name} was reported as {seen}, and had no callback"
        elif seen is None:
            yield f"{sent.name} is {found}, and was never reported to its producer"
        elif seen != found:
            yield f"{sent.name} is {found}, and was reported to its producer as {seen}"


def fates_are_true(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that each fate that was reported or asked for agrees with what was done to the message by then."""
    evidence = _Evidence(history, plan)
    sents = {sent.name: sent for sent in history.sent}
    places = {(sent.topic, sent.partition, sent.offset): sent for sent in history.sent}
    for reported in history.reported:
        if reported.place in places:  # else its publish was not answered
            yield from evidence.against(places[reported.place], reported.fate, reported.at, reported.at)
    for asked in history.asked:
        yield from evidence.against(sents[asked.name], asked.fate, asked.start, asked.end)
    buried = {each.name for each in history.buried}
    last = {each.name: each.fate for each in history.asked}
    for name in sorted(buried & set(last)):
        if last[name] != "dead":
            yield f"{name} is a dead letter, and was reported as {last[name]}"


class _Evidence:
    """What happened to messages, as far as clients know."""

    def __init__(self, history: History, plan: RunPlan) -> None:
        self._plan = plan
        self._acked: dict[tuple[str, str, str], float] = {}
        self._certain: dict[tuple[str, str, str], float] = {}
        for each in history.settled:
            place = (*each.subscription, each.name)
            if each.kind == "ack" and each.outcome != "refused":
                self._acked[place] = min(each.start, self._acked.get(place, each.start))
            if each.kind == "ack" and each.outcome == "ok":
                self._certain[place] = min(each.end, self._certain.get(place, each.end))
        self._cancelled: dict[str, float] = {}
        for changed in history.changed:
            if changed.kind == "cancel" and changed.outcome != "refused":
                self._cancelled.setdefault(changed.name, changed.start)
        self._buried = {each.name for each in history.buried}
        self._redriven: dict[str, float] = defaultdict(lambda: float("inf"))
        for redriven in history.redriven:
            self._redriven[redriven.topic] = min(redriven.start, self._redriven[redriven.topic])
        self._dropping = dropping(plan)
        self._note_log(history)

    def _note_log(self, history: History) -> None:
        """Add the settles of the log reader, which settles by position."""
        offsets: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
        for sent in history.sent:
            if sent.partition is not None and sent.offset is not None:
                offsets[sent.topic, sent.name].add((sent.partition, sent.offset))
        for read in history.log_reads:
            for row in read.rows:
                offsets[read.topic, row.name].add((row.partition, row.offset))
        moved = amended(history)
        mortal = {sent.name for sent in history.sent if sent.expires_ms is not None}
        for (topic, name), found in offsets.items():
            place = (topic, LOG, name)
            for each in history.advanced:
                below = [each.topic == topic and offset < each.positions.get(number, 0) for number, offset in found]
                if any(below):
                    self._acked[place] = min(each.start, self._acked.get(place, each.start))
                # A dead letter that was redriven, or the successor of a message, may wait again below.
                still = name in moved or name in mortal or topic in self._redriven
                if all(below) and each.outcome == "ok" and not still:
                    self._certain[place] = min(each.end, self._certain.get(place, each.end))

    def against(self, sent: Sent, fate: str, start: float, end: float) -> Iterator[str]:
        """Return why a fate that was reported between two times cannot be true; empty if it can."""
        subscriptions = [each for each in self._plan.subscriptions if each.topic == sent.topic]
        places = [(sent.topic, each.name, sent.name) for each in subscriptions if each.acks]
        certain = len(places) == len(subscriptions)
        if sent.topic == self._plan.logged:
            places.append((sent.topic, LOG, sent.name))
        never = float("inf")
        possible = True
        if fate == "settled":
            acked = [self._acked.get(place, never) <= end for place in places]
            # It may have expired for all subscriptions, and have come again for those that had a dead letter of it.
            came_again = sent.expires_ms is not None and self._redriven[sent.topic] <= end
            possible = all(acked) or (came_again and any(acked))
        elif fate == "dead":  # a redriven message may have been settled since; a transient one is lost with a restart
            possible = sent.name in self._buried or self._redriven[sent.topic] < never or not sent.persistent
        elif fate == "cancelled":
            possible = self._cancelled.get(sent.name, never) <= end
        elif fate == "expired":
            possible = sent.expires_ms is not None
        elif fate == "dropped":
            possible = sent.topic in self._dropping
        elif fate == "gone":
            possible = not sent.persistent  # lost with a restart
        elif certain:  # still under way: false if all subscriptions had settled it before
            possible = any(self._certain.get(place, never) >= start for place in places)
        if not possible:
            yield f"{sent.name} was reported as {fate} at {end:.3f}, which cannot be"
