"""What the copies of dead letters keep in memory."""

from __future__ import annotations

from types import SimpleNamespace

from tests.unit.queueing.envelopes import envelope
from wherry.model.calls.dead import DeadRow
from wherry.queueing.flow import dead_copies
from wherry.queueing.flow.dead_copies import Copier
from wherry.queueing.hosts.queue_terms import QueueTerms

TERMS = QueueTerms(durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"})


def test_the_stories_that_are_kept_are_bounded_by_their_bytes():
    copier = Copier(SimpleNamespace(now_ms=lambda: 0), lambda *_: ())
    for number in range(60):
        row = DeadRow(number, b"", envelope(100_000 + number), None, None, "rejected", 1_000)
        copier.copies("q", TERMS, [row])
    kept = sum(len(story.columns["envelope"]) for story in copier._stories.values())
    assert 100_000 <= kept * dead_copies.STORY_FACTOR <= dead_copies.STORIES_BYTES_MAX
