"""What several checkers have to know of a run before they judge it."""

from __future__ import annotations

from wherry.sim.history import History
from wherry.sim.plan import DEAD_AMPLE, Plan


def maybe_gone(history: History) -> set[str]:
    """Messages that may rightly have gone unread: cancelled, or mortal."""
    gone = {each.name for each in history.changed if each.kind == "cancel" and each.outcome != "refused"}
    return gone | {sent.name for sent in history.sent if sent.expires_ms is not None}


def dropping(plan: Plan) -> set[str]:
    """Topics that may lose their oldest messages: they drop them, or bury them and may have no room for that."""
    narrow = {topic.name for topic in plan.topics if topic.dead_messages_max < DEAD_AMPLE}
    return {
        topic.name
        for topic in plan.topics
        if topic.messages_max
        and (topic.overflow == "drop-oldest" or (topic.overflow == "dead-letter-oldest" and topic.name in narrow))
    }


def amended(history: History) -> set[str]:
    """Messages that somebody tried to amend, and perhaps did: they may stand in several places."""
    return {each.name for each in history.changed if each.kind == "amend" and each.outcome != "refused"}


def read_in_log(history: History) -> set[str]:
    """Messages that somebody read in a log."""
    return {row.name for stretch in history.stretches for row in stretch.rows}
