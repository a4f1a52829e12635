"""Whether bindings, purges and forwards took effect as clients were answered.

Like all checkers, these judge only what is certain; they compute the way of a message through routes themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from wherry.model.catalog.route import Binding, Kind
from wherry.sim.checkers.attempts import attempts_end
from wherry.sim.checkers.checkers import (
    Checker,
    acked_stays_acked,
    dead_letters_tell_why,
    dedup,
    fencing,
    nothing_early,
    one_lease_at_a_time,
    order_in_pull,
    order_per_key,
)
from wherry.sim.checkers.evidence import dropping
from wherry.sim.history import Bound, Copy, History, Purged, Routed, SubscriptionKey
from wherry.sim.plan import FORWARDED_TO, RoutePlan, RunPlan


def check_routes(history: History, plan: RunPlan) -> list[str]:
    """Return all violations of what was routed, purged and forwarded."""
    found: list[str] = []
    if plan.route_plan is not None:
        own = replace(plan, topics=plan.route_plan.topics, subscriptions=plan.route_plan.subscriptions, logged=None)
        for checker in CHECKERS:
            found += [f"{checker.__name__}: {what}" for what in checker(history, own)]
    return found


def bindings_stay(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a binding is listed once from its bind until its unbind, and that nothing else is listed."""
    bindings = _Bindings(history, plan)
    for listed in history.listed:
        for what in listed.strange:
            yield f"{what} was listed at {listed.end:.3f}, and no client bound it"
        if len(set(listed.bindings)) < len(listed.bindings):
            yield f"a binding was listed twice at {listed.end:.3f}: {listed.bindings}"
        for number in range(bindings.count):
            there = number in listed.bindings
            if there not in bindings.possible(number, listed.start, listed.end):
                yield f"binding {number} should {'not ' if there else ''}be listed at {listed.end:.3f}"


def routed_by_bindings(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a message is in each topic that the bindings led to during its whole publish, and in no other.

    A refused message must be in none.
    """
    bindings = _Bindings(history, plan)
    seen = _seen(history)
    for routed in history.routed:
        must, may = bindings.reached(routed)
        if routed.outcome == "ok" and not must <= set(routed.topics) <= may:
            yield f"{routed.name} went to {routed.topics} by {routed.end:.3f}, not to {sorted(must)} to {sorted(may)}"
        allowed = {"ok": set(routed.topics), "unknown": may, "refused": set[str]()}[routed.outcome]
        for topic in sorted(seen[routed.name] - allowed):
            yield f"{routed.name} ({routed.outcome} by {routed.end:.3f}) was seen in {topic}, not in {sorted(allowed)}"
    for name in sorted(set(seen) - {routed.name for routed in history.routed}):
        yield f"{name} was delivered, and no client published it"


def copies_are_kept(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that each copy was settled, is a dead letter, or was forwarded, except as many as were purged or dropped.

    A purge returns how many it took; a topic that drops its oldest messages, or has no room to bury them, counts them.
    """
    bindings, seen = _Bindings(history, plan), _seen(history)
    known = _acked(history, certain=False) | _buried(history) | _in_forwarded_to(history) | _fleeting(history)
    missing: dict[SubscriptionKey, list[Routed]] = defaultdict(list)
    for routed in history.routed:
        topics = set(routed.topics)
        if routed.outcome == "unknown" and seen[routed.name]:  # all copies or none
            topics = bindings.reached(routed)[0] | seen[routed.name]
        for config in plan.subscriptions:
            places = {(config.topic, config.name, routed.name), (config.topic, "", routed.name)}
            if config.topic in topics and known.isdisjoint(places):
                missing[config.topic, config.name].append(routed)
    losing = dropping(plan)
    for subscription, lost in missing.items():
        purges = [each for each in history.purged if each.subscription == subscription]
        allowed = history.dropped[subscription[0]] if subscription[0] in losing else 0
        for routed in lost:
            if not allowed and all(purged.end < routed.start or _is_empty(purged) for purged in purges):
                yield f"{routed.name} was routed by {routed.end:.3f}, and {subscription} has lost it"
        allowed += sum(purged.count for purged in purges)
        if len(lost) > allowed and all(purged.outcome == "ok" for purged in purges):
            names = [routed.name for routed in lost]
            yield f"{len(lost)} are missing in {subscription}, and {allowed} were purged or dropped: {names}"


def _is_empty(purged: Purged) -> bool:
    return purged.outcome == "ok" and purged.count == 0


def purges_count_true(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that purges count no more than can have been there, and nothing that ended in another way."""
    bindings = _Bindings(history, plan)
    elsewhere = _acked(history, certain=True) | _buried(history) | _in_forwarded_to(history)
    for config in plan.subscriptions:
        total = sum(each.count for each in history.purged if each.subscription == (config.topic, config.name))
        possible = 0
        for routed in history.routed if total else ():
            topics = set(routed.topics) if routed.outcome != "unknown" else bindings.reached(routed)[1]
            places = {(config.topic, config.name, routed.name), (config.topic, "", routed.name)}
            possible += config.topic in topics and elsewhere.isdisjoint(places)
        if total > possible:
            yield f"{total} were purged from {config.topic}/{config.name}, where at most {possible} can have been"


def purge_takes_all(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that messages which waited from before a purge until its end are not delivered after it.

    With key order, a message that waits for its key is not ready; nor is one that waits for its due time.
    """
    orders = {topic.name: topic.order for topic in plan.topics}
    config_of = {(config.topic, config.name): config for config in plan.subscriptions}
    sent = {routed.name: routed for routed in history.routed if routed.outcome == "ok" and not routed.timed}
    first: dict[tuple[SubscriptionKey, str], float] = {}
    for got in history.got:
        place = (got.subscription, got.name)
        first[place] = min(first.get(place, got.start), got.start)
    for purged in (each for each in history.purged if each.outcome == "ok"):
        config = config_of[purged.subscription]
        since = purged.start - config.lease_ms / 1000
        held = any(
            torn.subscription == purged.subscription and torn.start <= purged.end and torn.end >= since
            for torn in history.torn
        )
        if held or config.key_order or orders[config.topic] == "timeline":
            continue
        for (subscription, name), start in first.items():
            waited = subscription == purged.subscription and name in sent and sent[name].end < purged.start
            if waited and start > purged.end:
                yield f"{name} was delivered at {start:.3f}, and was purged by {purged.end:.3f}"


def forwarded_once(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a forwarded dead letter is not delivered again and is not a dead letter any more.

    That it is stored once is checked by `dedup`, that it is not lost by `copies_are_kept`.
    """
    there = _in_forwarded_to(history)
    tried: set[Copy] = set()
    done: dict[Copy, float] = {}
    for forwarded in history.forwarded:
        copies = forwarded.copies
        tried |= set(copies) if forwarded.outcome != "refused" else set()
        if forwarded.count not in (0, len(copies)):
            yield f"of {copies} only {forwarded.count} were dead letters, and all were forwarded"
        elif forwarded.count:
            done |= dict.fromkeys(copies, forwarded.end)
    for copy in sorted(set(done) - there - _fleeting(history)):
        yield f"{copy} was forwarded by {done[copy]:.3f}, and never came"
    for copy in sorted(there - tried):
        yield f"{copy} was delivered, and no client forwarded it"
    for copy in sorted(there & (_buried(history) | _acked(history, certain=True))):
        yield f"{copy} was forwarded, and was acked or is a dead letter as well"
    for got in history.got:
        for copy in ((*got.subscription, got.name), (got.subscription[0], "", got.name)):
            if copy in done and got.start > done[copy]:
                yield f"{copy} came again at {got.end:.3f}, forwarded by {done[copy]:.3f}"


def _acked(history: History, *, certain: bool) -> set[Copy]:
    """Return what was acked, or may have been."""
    outcomes = ("ok",) if certain else ("ok", "unknown")
    acks = [each for each in history.settled if each.kind == "ack"]
    return {(*each.subscription, each.name) for each in acks if each.outcome in outcomes}


def _buried(history: History) -> set[Copy]:
    return {(each.topic, each.subscription, each.name) for each in history.buried}


def _in_forwarded_to(history: History) -> set[Copy]:
    """Return forwarded dead letters that were delivered from the topic that they were forwarded to."""
    names = {got.name for got in history.got if got.subscription[0] == FORWARDED_TO}
    names |= {buried.name for buried in history.buried if buried.topic == FORWARDED_TO}
    return {(topic, subscription, name) for topic, subscription, name in (full.split("/") for full in names)}


def _fleeting(history: History) -> set[Copy]:
    """Return dead letters that may have been forwarded as transient messages, and lost with the process."""
    tried = [each for each in history.forwarded if each.outcome != "refused"]
    return {copy for each in tried for copy in each.fleeting}


def _seen(history: History) -> dict[str, set[str]]:
    """Return in which topics each message was delivered or listed, by its name."""
    seen: dict[str, set[str]] = defaultdict(set)
    got = {(*each.subscription, each.name) for each in history.got}
    for topic, _, name in got | _buried(history) | _in_forwarded_to(history):
        if topic != FORWARDED_TO:
            seen[name].add(topic)
    return seen


class _Bindings:
    """Which bindings there were, as far as clients know, and where they led to."""

    def __init__(self, history: History, plan: RunPlan) -> None:
        assert plan.route_plan is not None
        self._route_plan: RoutePlan = plan.route_plan
        self._kinds: dict[str, Kind] = {route.name: route.kind for route in plan.route_plan.routes}
        self._otherwise = {route.name: route.otherwise for route in plan.route_plan.routes}
        self._bound: dict[int, list[Bound]] = defaultdict(list)
        for bound in history.bound:
            if bound.outcome != "refused":
                self._bound[bound.binding].append(bound)
        self.count = len(plan.route_plan.bindings)

    def possible(self, number: int, start: float, end: float) -> set[bool]:
        """Return whether a binding may have existed, and may have been absent, between two times.

        Each change that had begun counts, unless another one certainly came after it and before the interval.
        """
        changes = self._bound[number]
        sure = [each for each in changes if each.outcome == "ok" and each.end < start]
        last = [each for each in changes if each.start <= end and not any(other.start > each.end for other in sure)]
        return {each.kind == "bind" for each in last} | (set() if sure else {False})

    def reached(self, routed: Routed) -> tuple[set[str], set[str]]:
        """Return the topics that the bindings led to during a whole publish, and those that they may have led to."""
        certain: dict[str, list[Binding]] = defaultdict(list)
        perhaps: dict[str, list[Binding]] = defaultdict(list)
        for number, (route, binding) in enumerate(self._route_plan.bindings):
            possible = self.possible(number, routed.start, routed.end)
            if True in possible and _matches(self._kinds[route], binding, routed.routing_key, routed.headers):
                perhaps[route].append(binding)
                if False not in possible:
                    certain[route].append(binding)
        return self._follow(routed.route, certain, perhaps), self._follow(routed.route, perhaps, certain)

    def _follow(self, route: str, taken: dict[str, list[Binding]], bars: dict[str, list[Binding]]) -> set[str]:
        """Return the topics of the taken bindings; a route without `bars` also leads to its `otherwise`."""
        topics: set[str] = set()
        waiting, met = [route], {route}
        while waiting:
            name = waiting.pop()
            topics |= {binding.topic for binding in taken[name] if binding.topic is not None}
            onward = {binding.route for binding in taken[name]} | (set() if bars[name] else {self._otherwise[name]})
            new = sorted(each for each in onward if each is not None and each not in met)
            waiting += new
            met |= set(new)
        return topics


def _matches(kind: Kind, binding: Binding, routing_key: str, headers: dict[str, str]) -> bool:
    if kind == "direct":
        return binding.match == routing_key
    if kind == "pattern":
        return _words_match(_words(binding.match), _words(routing_key))
    if kind == "headers":
        hits = [headers.get(name) == value for name, value in binding.headers.items()]
        return any(hits) if binding.any_header else all(hits)
    return True


def _words(text: str) -> list[str]:
    return text.split(".") if text else []


def _words_match(pattern: list[str], words: list[str]) -> bool:
    """Match in the simplest way, which is slow; there are only a few words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_words_match(pattern[1:], words[count:]) for count in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _words_match(pattern[1:], words[1:])


CHECKERS: tuple[Checker, ...] = (
    acked_stays_acked,
    one_lease_at_a_time,
    fencing,
    order_in_pull,
    order_per_key,
    nothing_early,
    dedup,
    dead_letters_tell_why,
    attempts_end,
    bindings_stay,
    routed_by_bindings,
    copies_are_kept,
    purges_count_true,
    purge_takes_all,
    forwarded_once,
)
"""Checkers of other topics that hold here as well, and those about routes, purges and forwards."""
