"""Facts of a run that several checkers need."""

from __future__ import annotations

from wherry.sim.history import History
from wherry.sim.plan import DEAD_AMPLE, RunPlan


def maybe_gone(history: History) -> set[str]:
    """Return messages that may end without a delivery: cancelled ones, and those that expire."""
    gone = {each.name for each in history.changed if each.kind == "cancel" and each.outcome != "refused"}
    return gone | {sent.name for sent in history.sent if sent.expires_ms is not None}


def dropping(plan: RunPlan) -> set[str]:
    """Return topics that may lose their oldest messages: they drop them, or may have no room to bury them."""
    narrow = {topic.name for topic in plan.topics if topic.dead_messages_max < DEAD_AMPLE}
    return {
        topic.name
        for topic in plan.topics
        if topic.messages_max
        and (topic.overflow == "drop-oldest" or (topic.overflow == "dead-letter-oldest" and topic.name in narrow))
    }


def can_bury(plan: RunPlan) -> set[str]:
    """Return topics that always have room for a dead letter. In others, a message may be tried for longer."""
    return {topic.name for topic in plan.topics if topic.dead_messages_max >= DEAD_AMPLE}


def amended(history: History) -> set[str]:
    """Return messages that a client tried to amend: they may have several offsets."""
    return {each.name for each in history.changed if each.kind == "amend" and each.outcome != "refused"}


def read_in_log(history: History) -> set[str]:
    """Return messages that were read in a log."""
    return {row.name for read in history.log_reads for row in read.rows}
