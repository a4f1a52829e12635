"""Whether failed deliveries are counted, and end: a message whose failures are not counted never is a dead letter."""

from __future__ import annotations

from collections.abc import Iterator

from wherry.sim.checkers.evidence import can_bury
from wherry.sim.history import Got, History
from wherry.sim.plan import RunPlan


def failures_count(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that a redelivery in the same life counts one attempt more, unless the message was released."""
    counted = {(config.topic, config.name) for config in plan.subscriptions if config.acks and config.durable}
    back = {(each.token, each.name) for each in history.settled if each.kind == "release" and each.outcome != "refused"}
    last: dict[tuple[object, ...], Got] = {}
    # By token, which is the order of the leases: of two pulls that wait for the disk, the later may be answered first.
    for got in sorted(history.got, key=lambda each: each.token):
        place = (got.subscription, got.name, got.partition, got.offset)
        before = last.get(place)
        last[place] = got
        if before is None or before.life != got.life or got.subscription not in counted:
            continue
        if (before.token, got.name) in back or history.left.get(before.consumer, got.end + 1) <= got.end:
            continue
        if got.attempt <= before.attempt and not _began_anew(history, before, got):
            yield f"{got.name} came to {got.consumer} as attempt {got.attempt} after {before.attempt} had failed"


def attempts_end(history: History, plan: RunPlan) -> Iterator[str]:
    """Check that no message is delivered more often than the policy of its subscription allows."""
    ample = can_bury(plan)
    allowed = {(each.topic, each.name): each.retry.attempts for each in plan.subscriptions if each.topic in ample}
    for got in history.got:
        most = allowed.get(got.subscription)
        if most is not None and got.attempt > most:
            yield f"{got.name} came to {got.consumer} at {got.end:.3f} as attempt {got.attempt}, {most} are allowed"


def _began_anew(history: History, before: Got, got: Got) -> bool:
    """Return whether the message may have died between two deliveries, and been redriven."""
    return any(
        each.topic == got.subscription[0] and each.end >= before.start and each.start <= got.end
        for each in history.redriven
    )
