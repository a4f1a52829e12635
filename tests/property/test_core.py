"""Every decision of the core in any order, live, replayed and reopened, against a naive queue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.examples import scaled
from tests.property.core_machine import PLENTY
from tests.property.rules_log import Logging
from tests.property.shell import Shell
from wherry.core.decide import leasing, settling, span, upkeep
from wherry.core.decide.leasing import Now
from wherry.core.decide.settling import Ending
from wherry.core.decide.volatile import separate
from wherry.core.index import directory, keys, runs, table
from wherry.journal.bodies import merged
from wherry.model import ops
from wherry.model.calls.fate import FATES, SETTLED
from wherry.model.ops import Entry


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Make indexes so small that a handful of messages reaches every level of each."""
    for name, value in {"TAIL_MAX": 4, "RUN_MAX": 16, "BLOCK": 2, "MERGE_FAN": 2}.items():
        monkeypatch.setattr(runs, name, value)
    monkeypatch.setattr(table, "RECENT_MAX", 3)
    for name, value in {"PART_ROWS": 3, "OPEN_MIN": 2}.items():
        monkeypatch.setattr(directory, name, value)
    monkeypatch.setattr(keys, "WINDOW", 2)
    monkeypatch.setattr(span, "ADVANCE_STEP", 3)
    monkeypatch.setattr(leasing, "FEW_MAX", 2)
    monkeypatch.setattr(merged, "LEAST", 2)
    monkeypatch.setattr(merged, "TOGETHER_MIN", 2)


class Rules(Logging):
    # Reports to producers.

    @rule(limit=st.integers(1, 4))
    def report(self, limit):
        """Report some outcomes, which are then forgotten; one that is reported with an earlier fate stays."""
        for at, outcome in list(self.outcomes().items())[:limit]:
            self.naive.messages[at].reported = outcome.fate
            for fate in (SETTLED - 1, FATES.index(outcome.fate)):
                op = ops.Reported(self.topic.number, at[0], np.array([at[1]]), np.array([fate]))
                self.shell.commit([Entry(self.now.wall_us, [op])])
                assert (at in self.outcomes()) == (fate < SETTLED)

    # Time and restarts.

    @rule(ms=st.sampled_from([1, 7, 11, 30, 60]))
    def tick(self, ms):
        self.now_ms += ms

    @rule()
    def housekeeping(self):
        self.upkeep()
        for entry in upkeep.housekeeping(self.shell.state, self.now.wall_us):
            going = self.removed_by([entry], "trimmed")
            assert all(not m.is_dead_somewhere() and not self.naive.held_by_durable(m) for m in going)
            assert all(m.published + (self.topic.config.keep_ms or PLENTY) <= self.now_ms for m in going)
            self.shell.commit([entry])
            self.naive.remove(going, "dropped")

    @rule(by=st.sampled_from(["replay", "checkpoint"]))
    def restart(self, by):
        """Start again from what the journal, or a checkpoint, holds."""
        self.shell = self.shell.replayed() if by == "replay" else self.shell.reloaded()
        self.shell.opened(self.now)
        self.naive.restart()
        for stage in self.stages.values():
            stage["lost"] |= bool(stage["settles"])
        for name in self.naive.subscriptions:
            self.join(name)

    @rule()
    def recover(self):
        """Check that (a) replay through bytes and (b) a checkpoint lead to the same durable state."""
        digest = self.shell.digest()
        assert self.shell.replayed().digest() == digest
        assert self.shell.reloaded().digest() == digest

    def teardown(self):
        """Check that all of them behave alike from here on: everything that is left is delivered in the same order."""
        if hasattr(self, "naive"):
            self.recover()
            later = Now((self.now_ms + 10_000) * 1000, self.now_ms)
            assert drained(self.shell.replayed(), later) == drained(self.shell.reloaded(), later)


def drained(shell: Shell, now: Now) -> list[Any]:
    shell.opened(now)
    result: list[Any] = []
    for subscription in sorted(shell.state.subscriptions.values(), key=lambda each: each.number):
        for number in list(subscription.readers):
            while subscription.readers[number].backlog is not None:
                shell.backfill(subscription, number, now)
        consumer = leasing.join(subscription, "drain", None, None)
        while leases := leasing.lease(shell.state, subscription, consumer, 5, PLENTY, now):
            for lease in leases:
                result.append((subscription.config.name, lease.partition, lease.offset.tolist(), lease.rank.tolist()))
                ending = Ending()
                steps = settling.ack(ending, lease, None)
                shell.commit(separate(shell.state, now.wall_us, steps))
                ending.carry_out(shell.state)
    return result


class Fifo(Rules):
    order = "fifo"


class Rows(Rules):
    """A plain queue of one partition whose messages stay Python values: leased and settled as runs of offsets."""

    order = "fifo"

    @initialize(
        bound=st.sampled_from([None, None, 12]),
        overflow=st.sampled_from(["refuse", "drop-oldest"]),
        planned=st.booleans(),
    )
    def create(self, bound, overflow, planned):
        super().create(1, bound, overflow, "drop", None, 1_000_000, False, planned)

    def publish(self, given, where, producer, callback=None, as_rows=True):
        more = {} if given[0]["key"] else {"key": None, "priority": None}
        bare = [{**row, "id": None, "due": None, "expires": None, **more} for row in given]
        super().publish(bare, None, None, None, as_rows=True)


class Priority(Rules):
    order = "priority"


class Timeline(Rules):
    order = "timeline"


TestFifo = Fifo.TestCase
TestRows = Rows.TestCase
TestPriority = Priority.TestCase
TestTimeline = Timeline.TestCase
for case in (TestFifo, TestRows, TestPriority, TestTimeline):
    case.settings = settings(max_examples=scaled(60), stateful_step_count=40)
del case
