"""Checkers of a run in process: each reads the history and yields a sentence for each violation.

Checkers judge only what is certain. Between `start` and `end` of a call the broker may have acted at any moment, and a
call without an answer may or may not have taken effect; where the history leaves a doubt, no violation is reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeAlias

from wherry.model.catalog.subscription import Subscription
from wherry.sim.checkers.attempts import attempts_end, failures_count
from wherry.sim.checkers.evidence import amended, can_bury, dropping, maybe_gone, read_in_log
from wherry.sim.checkers.fates import fates_are_true, reported_at_last
from wherry.sim.checkers.logs import (
    growth_stays,
    log_is_lost_by_rule,
    log_is_whole,
    log_lag,
    log_never_changes,
    log_reads_once,
    log_within_bounds,
)
from wherry.sim.history import Got, History, Sent, Settled, SubscriptionKey
from wherry.sim.plan import RunPlan
from wherry.sim.world.clock import EPOCH_US

Checker: TypeAlias = Callable[[History, RunPlan], Iterator[str]]
MessageKey: TypeAlias = tuple[SubscriptionKey, str]
"""A subscription and the name of a message."""

MARGIN_S = 0.002
"""The broker rounds times to milliseconds, at both ends of an interval."""


def check_all(history: History, plan: RunPlan) -> list[str]:
    """Return all violations of a run."""
    found = list(history.faults)
    for checker in CHECKERS:
        found += [f"{checker.__name__}: {what}" for what in checker(history, plan)]
    return found


def ledger(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that each confirmed message was settled by each subscription, or ended in another known way.

    A delivery is not enough: a message that was delivered and never acked must be delivered again, or be a dead letter.
    A message that was delivered once must exist for all subscriptions, confirmed or not: nothing leaves the broker
    before it is durable.
    """
    seen = {got.name for got in history.got} | read_in_log(history)
    done = _acked(history) | _buried(history)
    gone = maybe_gone(history)
    losing = dropping(plan)
    for sent in history.sent:
        promised = sent.outcome == "ok" or (sent.outcome == "unknown" and sent.name in seen)
        if not promised or not sent.persistent or sent.topic in losing or sent.name in gone:
            continue
        for config in _with_acks(plan, sent.topic):
            if done.isdisjoint({((sent.topic, config.name), sent.name), ((sent.topic, ""), sent.name)}):
                yield f"{sent.name} was acknowledged or delivered by {sent.end:.3f}, and {config.name} has lost it"


def nothing_invented(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that refused and aborted messages are never delivered, nor messages that no client published."""
    outcomes = {sent.name: sent.outcome for sent in history.sent}
    for got in history.got:
        outcome = outcomes.get(got.name)
        if outcome is None:
            yield f"{got.name} was delivered and never sent"
        elif outcome == "refused":
            yield f"{got.name} was refused, and delivered at {got.end:.3f}"
    for name in sorted(read_in_log(history)):
        if outcomes.get(name, "refused") == "refused":
            yield f"{name} was refused or never sent, and read in the log"


def acked_stays_acked(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a message is neither delivered nor a dead letter after a confirmed ack."""
    done: dict[MessageKey, float] = {}
    for settled in history.settled:
        if settled.kind == "ack" and settled.outcome == "ok":
            place = (settled.subscription, settled.name)
            done[place] = min(done.get(place, settled.end), settled.end)
    for got in history.got:
        end = done.get((got.subscription, got.name))
        if end is not None and got.start > end:
            yield f"{got.name} came again to {got.subscription[1]} at {got.end:.3f}, acked at {end:.3f}"
    for buried in history.buried:
        place = ((buried.topic, buried.subscription), buried.name)
        if place in done:
            yield f"{buried.name} is a dead letter of {buried.subscription}, and was acked at {done[place]:.3f}"


def at_most_once(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a subscription without acks gets each message at most once."""
    silent = {(config.topic, config.name) for config in plan.subscriptions if not config.acks}
    seen: dict[MessageKey, Got] = {}
    for got in history.got:
        if got.subscription in silent:
            place = (got.subscription, got.name)
            if place in seen:
                yield f"{got.name} was delivered to {got.subscription[1]} twice, without acks"
            seen[place] = got


def one_lease_at_a_time(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that no message is delivered while another consumer certainly holds it."""
    config_of = _configs(plan)
    released = _releases(history)
    last: dict[MessageKey, Got] = {}
    for got in sorted(history.got, key=lambda each: each.end):
        place = (got.subscription, got.name)
        before = last.get(place)
        last[place] = got
        if before is None or before.life != got.life or not config_of[got.subscription].acks:
            continue
        held_until = before.start + config_of[got.subscription].lease_ms / 1000 - MARGIN_S
        freed = any(start <= got.end for start in released.get((before.token, got.name), ()))
        freed |= history.left.get(before.consumer, float("inf")) <= got.end
        if got.end < held_until and not freed:
            yield (
                f"{got.name} was delivered to {got.consumer} at {got.end:.3f} while {before.consumer} "
                f"held it until {held_until:.3f}"
            )


def fencing(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a settle with a token that has certainly ended is refused."""
    config_of = _configs(plan)
    ends_of = {life.number: life.end for life in history.lives}
    taken: dict[tuple[int, str], Got] = {(got.token, got.name): got for got in history.got}
    renewed: dict[tuple[int, str], list[Settled]] = defaultdict(list)
    for settled in history.settled:
        if settled.kind == "renew":
            renewed[settled.token, settled.name].append(settled)
    for settled in history.settled:
        got = taken.get((settled.token, settled.name))
        if got is None or settled.outcome != "ok":
            continue
        ends = [got.end, *(r.end for r in renewed[settled.token, settled.name] if r.outcome != "refused")]
        deadline = max(ends) + config_of[got.subscription].lease_ms / 1000 + MARGIN_S
        if settled.start > deadline:
            yield f"{settled.kind} of {got.name} at {settled.start:.3f} was taken, its lease ended by {deadline:.3f}"
        elif settled.start > ends_of.get(got.life, float("inf")):
            yield f"{settled.kind} of {got.name} with a token of an earlier life was taken at {settled.start:.3f}"


def order_in_pull(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that the messages of one pull are in the order of the topic."""
    orders = {topic.name: topic.order for topic in plan.topics}
    amended = {changed.name for changed in history.changed if changed.kind == "amend"}
    by_delivery: dict[int, list[Got]] = defaultdict(list)
    for got in history.got:
        if got.name not in amended:
            by_delivery[got.delivery].append(got)
    for batch in by_delivery.values():
        order = orders[batch[0].subscription[0]]
        for one, other in pairwise(batch):
            if order == "fifo":
                wrong = one.partition == other.partition and one.offset > other.offset
            elif order == "priority":
                wrong = one.priority > other.priority
            else:
                wrong = one.due_ms is not None and other.due_ms is not None and one.due_ms > other.due_ms
            if wrong:
                yield f"{one.name} came before {other.name} in one pull of a {order} topic at {one.end:.3f}"


def order_per_key(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that with key order no message is delivered while an earlier one of its key is leased."""
    released = _releases(history)
    amended = {changed.name for changed in history.changed if changed.kind == "amend"}
    for config in plan.subscriptions:
        if not config.key_order:
            continue
        key_of = (config.topic, config.name)
        by_key: dict[tuple[int, str], list[Got]] = defaultdict(list)
        for got in sorted(history.got, key=lambda each: (each.end, each.row)):
            if got.subscription != key_of or got.key is None or got.name in amended:
                continue
            earlier = by_key[got.partition, got.key]
            for before in earlier:
                left = history.left.get(before.consumer, float("inf")) <= got.end
                if not left and _is_certainly_leased(before, got, config, released):
                    yield f"{got.name} was delivered at {got.end:.3f} while {before.name} of its key was leased"
            earlier.append(got)


def _is_certainly_leased(before: Got, got: Got, config: Subscription, released: Releases) -> bool:
    if before.delivery == got.delivery or before.life != got.life or before.name == got.name:
        return False
    held_until = before.start + config.lease_ms / 1000 - MARGIN_S
    freed = any(start <= got.end for start in released.get((before.token, before.name), ()))
    return before.end < got.start < got.end < held_until and not freed


def nothing_early(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that no message is delivered before its due time, by the latest wall time that was read."""
    for got in history.got:
        if got.due_ms is not None and got.due_ms > got.seen_ms:
            yield f"{got.name} was due at {got.due_ms}, and was delivered when no clock had passed {got.seen_ms}"
    if plan.clock_jumps:
        return
    amended = {changed.name for changed in history.changed if changed.kind == "amend"}
    nacked: dict[MessageKey, list[Settled]] = defaultdict(list)
    for settled in history.settled:
        if settled.kind == "nack" and settled.outcome == "ok" and settled.delay_ms and settled.name not in amended:
            nacked[settled.subscription, settled.name].append(settled)
    for got in history.got:
        for nack in nacked[got.subscription, got.name]:
            due = nack.start + (nack.delay_ms or 0) / 1000 - MARGIN_S
            if nack.end < got.start and got.end < due and not _redriven_between(history, nack.start, got.end):
                yield f"{got.name} came again at {got.end:.3f}, its delay ended at {due:.3f}"


def nothing_expired(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a pull gets no message that had expired when the pull began.

    While the disk is full, a message may stay though it has expired, since its removal does not fit the journal.
    """
    if plan.clock_jumps:
        return
    changed = amended(history)
    mortal = {sent.name: sent for sent in history.sent if sent.expires_ms is not None and sent.name not in changed}
    for got in history.got:
        sent = mortal.get(got.name)
        if sent is None or _redriven_between(history, sent.start, got.end):  # a redriven message does not expire
            continue
        expired = ((sent.expires_ms or 0) - EPOCH_US // 1000) / 1000 + MARGIN_S
        was_full = any(begin <= got.end and expired <= end for begin, end in history.full)
        if expired < got.start and not was_full:
            yield f"{got.name} expired at {expired:.3f}, and a pull that began at {got.start:.3f} got it"


def bounds_held(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that no topic holds more than its bound, by its statistics and by the history."""
    for sampled in history.sampled:
        if sampled.messages_max is not None and sampled.messages > sampled.messages_max:
            yield f"{sampled.topic} counted {sampled.messages} messages, {sampled.messages_max} are allowed"
        if sampled.dead > sampled.dead_max:
            yield f"{sampled.topic} counted {sampled.dead} dead letters, {sampled.dead_max} are allowed"
    for topic in plan.topics:
        if topic.messages_max is None:
            continue
        yield from _over_by_count(history, plan, topic.name, topic.messages_max)


def _over_by_count(history: History, plan: RunPlan, topic: str, limit: int) -> Iterator[str]:
    """Yield bounds that were exceeded by messages that certainly waited: confirmed, and delivered only much later."""
    first: dict[str, float] = {}
    for got in history.got:
        if got.subscription[0] == topic:
            first[got.name] = min(first.get(got.name, got.start), got.start)
    gone = maybe_gone(history) | {buried.name for buried in history.buried} | _may_have_died(history, plan)
    steps: list[tuple[float, int]] = []
    for sent in history.sent:
        if sent.topic != topic or sent.outcome != "ok" or not sent.persistent or sent.name in gone:
            continue
        if first.get(sent.name, sent.end) > sent.end:
            steps += [(sent.end, 1), (first[sent.name], -1)]
    held = 0
    for at, change in sorted(steps):
        held += change
        if held > limit:
            yield f"{topic} held at least {held} messages at {at:.3f}, {limit} are allowed"
            return


def dedup(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a message keeps its offset, unless it was amended or redriven."""
    moved = {changed.name for changed in history.changed if changed.kind == "amend"}
    places: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
    for got in history.got:
        places[got.subscription[0], got.name].add((got.partition, got.offset))
    for read in history.log_reads:
        for row in read.rows:
            places[read.topic, row.name].add((row.partition, row.offset))
    redriven = {each.topic for each in history.redriven}
    for (topic, name), found in sorted(places.items()):
        if len(found) > 1 and name not in moved and topic not in redriven:
            yield f"{name} was delivered, or read in the log, from {len(found)} places: {sorted(found)}"


def all_or_nothing(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that messages published together are all stored or none."""
    seen = {got.name for got in history.got} | {buried.name for buried in history.buried} | read_in_log(history)
    gone = maybe_gone(history)
    losing = dropping(plan)
    groups: dict[int, list[Sent]] = defaultdict(list)
    for sent in history.sent:
        groups[sent.group].append(sent)
    for group in groups.values():
        if any(not sent.persistent or sent.name in gone or sent.topic in losing for sent in group):
            continue
        if any(not _with_acks(plan, sent.topic) for sent in group):
            continue
        there = [sent.name for sent in group if sent.name in seen]
        if there and len(there) < len(group):
            yield f"of {len(group)} messages published together only {len(there)} exist: {there}"


def replay_equals_live(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that recovery finds the state that the last life left, when all of it was durable."""
    for before, after in pairwise(history.lives):
        if before.left is not None and after.found is not None and before.left != after.found:
            yield f"life {after.number} recovered another state than life {before.number} left at {before.end:.3f}"


def keys_kept(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that an API key is listed from its put until its deletion, and not after it."""
    certain: dict[str, bool] = {}
    for keyed in history.keyed:
        if keyed.outcome == "ok":
            certain[keyed.id] = keyed.kind == "put"
        elif keyed.outcome == "unknown":
            certain.pop(keyed.id, None)
        for public_id, there in certain.items() if keyed.listed is not None else ():
            if there != (public_id in (keyed.listed or ())):
                yield f"key {public_id} should {'' if there else 'not '}be listed, after {keyed.kind} of {keyed.id}"


def dead_letters_tell_why(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that each dead letter has a reason, and as many attempts as its policy allows.

    Where a topic may have no room for dead letters, messages are tried more often.
    """
    config_of, ample = _configs(plan), can_bury(plan)
    for buried in history.buried:
        if not buried.reason:
            yield f"{buried.name} died without a reason"
        config = config_of.get((buried.topic, buried.subscription))
        if config is None or config.retry.attempts is None or "failed deliveries" not in buried.reason:
            continue
        late = buried.attempts > config.retry.attempts and buried.topic in ample
        if buried.attempts < config.retry.attempts or late:
            yield f"{buried.name} died after {buried.attempts} attempts, {config.retry.attempts} are allowed"


CHECKERS: tuple[Checker, ...] = (
    ledger,
    nothing_invented,
    acked_stays_acked,
    at_most_once,
    one_lease_at_a_time,
    fencing,
    order_in_pull,
    order_per_key,
    nothing_early,
    nothing_expired,
    bounds_held,
    dedup,
    all_or_nothing,
    replay_equals_live,
    keys_kept,
    dead_letters_tell_why,
    failures_count,
    attempts_end,
    reported_at_last,
    fates_are_true,
    log_is_whole,
    log_reads_once,
    log_within_bounds,
    log_never_changes,
    log_is_lost_by_rule,
    log_lag,
    growth_stays,
)

Releases: TypeAlias = dict[tuple[int, str], list[float]]


def _configs(plan: RunPlan) -> dict[SubscriptionKey, Subscription]:
    return {(config.topic, config.name): config for config in plan.subscriptions}


def _with_acks(plan: RunPlan, topic: str) -> list[Subscription]:
    """Return the subscriptions that must get every message: without acks, messages under way at a crash are lost."""
    return [config for config in plan.subscriptions if config.topic == topic and config.acks]


def _acked(history: History) -> set[MessageKey]:
    """Return what may have been acked: all acks that were not refused."""
    return {
        (each.subscription, each.name) for each in history.settled if each.kind == "ack" and each.outcome != "refused"
    }


def _buried(history: History) -> set[MessageKey]:
    return {((buried.topic, buried.subscription), buried.name) for buried in history.buried}


def _releases(history: History) -> Releases:
    """Return when a lease on a message may first have ended: the times of settles that were not refused."""
    result: Releases = defaultdict(list)
    for settled in history.settled:
        if settled.kind != "renew" and settled.outcome != "refused":
            result[settled.token, settled.name].append(settled.start)
    return result


def _may_have_died(history: History, plan: RunPlan) -> set[str]:
    """Return messages that may have died and been redriven, in topics that do not refuse what overflows."""
    dying = {topic.name for topic in plan.topics if topic.overflow != "refuse"}
    return {sent.name for sent in history.sent if sent.topic in dying}


def _redriven_between(history: History, start: float, end: float) -> bool:
    return any(each.start <= end and each.end >= start for each in history.redriven)
