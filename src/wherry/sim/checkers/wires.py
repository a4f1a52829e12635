"""Checkers of a run over wires: those of other runs that apply here, and new ones.

A message that a client holds was sent at some time after `start` and arrived at `end`. A settle without a receipt has
no end; where the history leaves a doubt, no violation is reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

from wherry.sim.checkers.checkers import (
    Checker,
    acked_stays_acked,
    all_or_nothing,
    nothing_invented,
    replay_equals_live,
)
from wherry.sim.history import NOWHERE, Got, History, Sent, Settled
from wherry.sim.plan import RunPlan
from wherry.sim.wire_plan import DEAD, SOLO, SOON, SOON_MS

MARGIN_S = 0.002
"""Times of expiry are whole milliseconds."""

QueuedMessage: TypeAlias = tuple[str, str]
"""A queue and the name of a message."""


def check_wires(history: History, plan: RunPlan) -> list[str]:
    """Return all violations of a run over wires."""
    found = list(history.faults)
    for checker in CHECKERS:
        found += [f"{checker.__name__}: {what}" for what in checker(history, plan)]
    return found


def nobody_loses(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that each message that was confirmed or delivered was acked in the end, in its queue or as a dead letter.

    All queues are drained and acked at the end of a run. A message that is rejected among the dead letters is dropped.
    """
    acked = {each.name for each in history.settled if each.kind == "ack" or _is_thrown_away(each)}
    seen = {got.name for got in history.got}
    for sent in history.sent:
        promised = sent.outcome == "ok" or (sent.outcome == "unknown" and sent.name in seen)
        if promised and sent.persistent and sent.name not in acked:
            yield f"{sent.name} for {sent.topic} was confirmed or seen by {sent.end:.3f}, and is lost"


def redelivery_is_flagged(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a message that a client held before has the redelivered flag."""
    last: dict[QueuedMessage, Got] = {}
    for got in _by_time(history):
        if got.again is None:  # of a wire without the flag: a message that its client gives back may come as new
            continue
        before = last.setdefault((got.subscription[0], got.name), got)
        if before.end < got.start and got.again is False:
            yield f"{got.name} came to {got.consumer} at {got.end:.3f} as new, and to {before.consumer} before"


def one_holder(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that no message is sent while another client certainly holds it."""
    released: dict[int, float] = {each.token: each.start for each in reversed(history.settled)}
    last: dict[QueuedMessage, Got] = {}
    for got in _by_time(history):
        place = (got.subscription[0], got.name)
        before, last[place] = last.get(place), got
        if before is None or before.end >= got.start or before.consumer not in history.left:
            continue
        freed = min(released.get(before.token, float("inf")), history.left.get(before.consumer, float("inf")))
        if freed > got.end:
            yield f"{got.name} was sent to {got.consumer} after {got.start:.3f}, and {before.consumer} had it"


def order_kept(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a consumer gets new messages in the order in which one channel or session published them."""
    sent = {each.name: each for each in history.sent}
    last: dict[tuple[str, str], Sent] = {}
    for got in history.got:
        one = sent.get(got.name)
        if one is None or not _is_new(got, one, history) or one.topic != got.subscription[0]:
            continue
        before = last.setdefault((got.consumer, one.sender), one)
        if before.number > one.number:
            yield f"{one.name} came to {got.consumer} at {got.end:.3f}, after {before.name}"
        last[got.consumer, one.sender] = one


def requeued_in_place(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a requeued message is delivered again before later ones, where one consumer has the queue alone.

    The broker may already have sent as many later messages as the consumer had room for.
    """
    sent = {each.name: each for each in history.sent}
    first: dict[str, Got] = {}
    by_consumer: dict[str, list[Got]] = defaultdict(list)
    for got in history.got:
        first.setdefault(got.name, got)
        by_consumer[got.consumer].append(got)
    for back in history.settled:
        if (
            back.kind not in ("nack", "release")
            or back.under_way is None
            or back.subscription[0] != SOLO
            or back.name not in sent
        ):
            continue
        one, behind = sent[back.name], 0
        if one.topic != SOLO:
            continue
        for got in by_consumer[back.consumer]:
            if got.token <= back.after:
                continue
            if got.name == back.name:
                break
            other = sent.get(got.name)
            is_new = not got.again and first[got.name] is got
            if other is not None and other.sender == one.sender and other.number > one.number and is_new:
                behind += 1
        if behind > back.under_way:
            yield f"{back.name} went back at {back.start:.3f}, and {behind} from behind it came before it"


def transactions_are_whole(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that the acks and publishes of one transaction took effect together."""
    seen = {got.name for got in history.got}
    published: dict[int, list[Sent]] = defaultdict(list)
    for sent in history.sent:
        published[sent.group].append(sent)
    acked: dict[int, list[Settled]] = defaultdict(list)
    for each in history.settled:
        if each.group and each.kind == "ack":
            acked[each.group].append(each)
    for group, acks in acked.items():
        theirs = published.get(group, [])
        for ack in acks:
            later = [got for got in history.got if _is_again(got, ack)]
            if later and any(sent.name in seen for sent in theirs):
                yield f"{ack.name} came again at {later[0].end:.3f}, and what was published with its ack is there"


def confirmed_in_place(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that each message is at the place in its confirm, and no two messages at one place.

    A dead letter is published again, to another queue: only places in the queue that it was sent to are compared.
    """
    sent = {each.name: each for each in history.sent if each.offset is not None}
    taken: dict[tuple[str, int | None, int | None], str] = {}
    for each in sent.values():
        other = taken.setdefault((each.topic, each.partition, each.offset), each.name)
        if other != each.name:
            yield f"{each.name} and {other} were both confirmed at {each.partition}-{each.offset} of {each.topic}"
    for got in history.got:
        one = sent.get(got.name)
        if one is None or got.offset == NOWHERE or one.topic != got.subscription[0]:
            continue
        place, came_from = (one.partition, one.offset), (got.partition, got.offset)
        if place != came_from:
            yield f"{got.name} was confirmed at {place} of {one.topic}, and came from {came_from}"


def forwarded_once(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a message that expired was published again once: the drain finds it at one place at most."""
    soon = {each.name for each in history.sent if each.topic == SOON}
    places: dict[str, int] = {}
    for got in history.got:
        if got.name in soon and got.offset != NOWHERE:
            first = places.setdefault(got.name, got.offset)
            if first != got.offset:
                yield f"{got.name} expired, and is at {first} and at {got.offset} of {got.subscription[0]}"


def not_before_its_time(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that no message comes before it expired, where the wall clock is not set forward."""
    sent = {each.name: each for each in history.sent if each.topic == SOON}
    for got in history.got if not plan.clock_jumps else ():
        one = sent.get(got.name)
        if one is not None and got.end < one.start + SOON_MS / 1000 - MARGIN_S:
            yield f"{got.name} was published at {one.start:.3f}, and came at {got.end:.3f} already"


def _is_new(got: Got, sent: Sent, history: History) -> bool:
    """Return whether a message was certainly not meant for another client before.

    On a wire without the redelivered flag, a message is new to the history if no attempt is counted. Not so if a client
    left meanwhile: what was under way to it, or waited for the disk on its way, came back without a counted attempt.
    """
    if got.again or (got.again is None and got.attempt > 1):
        return False
    released = [each.start for each in history.settled if each.kind == "release" and each.name == got.name]
    return not any(sent.start <= at <= got.end for at in (*history.left.values(), *released))


def _is_thrown_away(settled: Settled) -> bool:
    return settled.kind == "dead" and settled.subscription[0] == DEAD


def _is_again(got: Got, ack: Settled) -> bool:
    """Return whether a message was certainly sent after its ack was under way, to another client or again."""
    return (
        (got.subscription, got.name) == (ack.subscription, ack.name)
        and got.token != ack.token
        and (got.start > ack.start and got.again is not False)
    )


def _by_time(history: History) -> list[Got]:
    """Return the deliveries over wires, and then those of the drain."""
    return sorted(history.got, key=lambda each: (each.start, each.end))


CHECKERS: tuple[Checker, ...] = (
    nobody_loses,
    nothing_invented,
    acked_stays_acked,
    all_or_nothing,
    replay_equals_live,
    redelivery_is_flagged,
    one_holder,
    order_kept,
    requeued_in_place,
    transactions_are_whole,
    confirmed_in_place,
    forwarded_once,
    not_before_its_time,
)
"""Clients record further violations: `prefetch_kept`, `rules_kept`, `answers_come` and `beats_come`; those of the
native wire also `credit_kept`, `buffer_kept` and `own_leases`. The run records `no_faults_logged`, `beats_heard`,
`nothing_kept` and `drain`."""
