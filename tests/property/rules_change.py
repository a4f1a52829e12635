"""Rules of the core machine: messages by id, dead letters, transactions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.property import naive
from tests.property.core_machine import PLENTY, rows
from tests.property.rules_consume import Consuming, shares
from wherry.core.decide import amending, dead_letters, staging
from wherry.core.inspect import by_id
from wherry.model.calls.amendment import Amendment
from wherry.model.calls.dead import DeadFilter
from wherry.model.errors import (
    DuplicateId,
    LimitReached,
    NotFound,
    NotWaiting,
    StageLost,
    StaleLease,
    VersionConflict,
    WherryError,
)
from wherry.model.schema import compact


class Changing(Consuming):
    # Messages by id.

    def some_message(self, data):
        """Return a message that is in the topic, and one of its names."""
        kept = sorted(at for at, message in self.naive.messages.items() if not message.gone)
        if not kept:
            return None, None
        message = self.naive.messages[data.draw(st.sampled_from(kept))]
        default = f"{message.at[0]}-{message.at[1]}"
        return message, default if data.draw(st.booleans()) else message.id

    def can_change(self, message):
        places = message.places.values()
        durable = [message.places[name].where for name in self.naive.durable()]
        done = bool(durable) and all(where in ("settled", "dead") for where in durable)
        dead = message.dead or (message.orphaned and not self.naive.counts_against_the_bounds(message))
        return not dead and not any(place.where == "leased" for place in places) and not done

    @rule(data=st.data())
    def cancel(self, data):
        self.upkeep()
        message, name = self.some_message(data)
        if message is None or name is None:
            return
        if not self.can_change(message):
            with pytest.raises(NotWaiting):
                amending.cancel(self.shell.state, self.topic, [name], self.now.wall_us)
            return
        self.shell.commit(amending.cancel(self.shell.state, self.topic, [name], self.now.wall_us))
        self.naive.remove([message], "cancelled")
        if not message.is_dead_somewhere():
            with pytest.raises(NotFound):
                by_id.find(self.shell.state, self.topic, name)

    @rule(
        data=st.data(), due=st.sampled_from([None, 0, 20]), priority=st.sampled_from([None, 0, 3]), stale=st.booleans()
    )
    def amend(self, data, due, priority, stale):
        self.upkeep()
        message, name = self.some_message(data)
        if message is None or name is None or not self.can_change(message):
            return
        change = Amendment(payload=b"amended", priority=priority, due_ms=None if due is None else self.now_ms + due)
        version = message.version + 1 if stale else message.version
        if message.is_dead_somewhere():
            with pytest.raises(NotWaiting):
                amending.amend(self.shell.state, self.topic, name, change, None, self.now.wall_us)
            return
        try:
            entries, new = amending.amend(self.shell.state, self.topic, name, change, version, self.now.wall_us)
        except VersionConflict:
            assert stale
            return
        assert not stale
        self.shell.commit(entries)
        assert (new.partition, new.version) == (message.at[0], message.version + 1)
        changed = naive.Message(
            (new.partition, new.offset),
            self.now_ms,
            message.key,
            message.priority if priority is None else priority,
            message.due if due is None else self.now_ms + due,
            message.expires,
            message.id or f"{message.at[0]}-{message.at[1]}",
            b"amended",
            new.version,
        )
        assert new.id == changed.id
        self.naive.replace(message, changed, self.now_ms)
        found = by_id.find(self.shell.state, self.topic, changed.id)
        assert (found.partition, found.offset) == changed.at

    # Dead letters.

    @rule(limit=st.integers(1, 3), back=st.booleans(), whose=st.sampled_from([None, "a", ""]))
    def redrive_or_discard(self, limit, back, whose):
        self.upkeep()
        state = self.shell.state
        if whose == "a" and "a" not in self.naive.subscriptions:
            return
        groups = dead_letters.select(state, self.topic, DeadFilter(subscription=whose, limit=limit))
        count = sum(len(group.offsets) for group in groups)
        every = [(m, name) for m in self.naive.messages.values() for name, p in m.places.items() if p.where == "dead"]
        every += [(m, "") for m in self.naive.messages.values() if m.dead or m.orphaned]
        assert count == min(limit, sum(whose in (None, name) for _, name in every))
        if not back:
            self.shell.commit(dead_letters.discard(state, self.topic, groups, "me", self.now.wall_us))
            for group in groups:
                for offset in group.offsets.tolist():
                    self.discard(self.naive.messages[group.partition, offset], group.name)
            return
        bound = self.topic.config.messages_max
        try:
            entries = dead_letters.redrive(state, self.topic, groups, "me", self.now.wall_us)
        except LimitReached:
            assert bound is not None
            assert len(self.naive.counted()) + count > bound
            return
        self.shell.commit(entries)
        for group in groups:
            for offset in group.offsets.tolist():
                self.redrive(self.naive.messages[group.partition, offset], group.name)

    def discard(self, message, name):
        message.why = "dead"
        if name:
            message.places[name] = naive.Place("settled")
        else:
            self.forget(message)
        self.naive.settle_up()

    def forget(self, message):
        """Forget a dead letter of no subscription, unless a subscription still has the message."""
        waited_for = not message.dead and self.naive.counts_against_the_bounds(message)
        message.dead = message.orphaned = False
        message.gone = not waited_for and not message.is_dead_somewhere()

    def redrive(self, message, name):
        if name:
            self.naive.redrive(message, name, self.now_ms)
            return
        self.forget(message)
        message.why = "dead"
        at = (message.at[0], self.naive.ends[message.at[0]])
        new = naive.Message(at, self.now_ms, message.key, message.priority, message.due, message.expires)
        new.id, new.payload = message.id if message.gone else None, message.payload
        self.naive.publish(new, self.now_ms)

    # Transactions.

    @rule(key=st.sampled_from("kl"), given=rows)
    def stage(self, key, given):
        self.upkeep()
        messages = [self.message(row) for row in given]
        state = self.shell.state
        ids = [message.id for message in messages if message.id]
        try:
            entries = staging.stage_publish(state, key, self.topic, compact(messages), None, self.now.wall_us)
        except DuplicateId:
            assert len(set(ids)) < len(ids)
            return
        except StageLost:
            assert key in self.committed or self.stages[key]["lost"]
            return
        self.shell.commit(entries)
        stage = self.stages.setdefault(key, {"messages": {}, "settles": [], "lost": False})
        stage["messages"] |= {message.payload: message for message in messages}

    @rule(key=st.sampled_from("kl"), data=st.data(), share=shares)
    def stage_settle(self, key, data, share):
        self.upkeep()
        picked = self.some_lease(data, share)
        if picked is None:
            return
        token, some, offsets = picked
        state = self.shell.state
        try:
            entries = staging.stage_settle(state, key, token, offsets, self.now.wall_us)
        except StageLost:
            assert key in self.committed or self.stages[key]["lost"]
            return
        if entries:
            self.shell.commit(entries)
            staging.note_settle(state, key, token, offsets)
        stage = self.stages.setdefault(key, {"messages": {}, "settles": [], "lost": False})
        stage["settles"].append((token, some))

    @rule(key=st.sampled_from("kl"))
    def commit(self, key):
        self.upkeep()
        before = self.shell.digest()
        state = self.shell.state
        try:
            entries, done = staging.commit(state, key, self.now.wall_us)
        except WherryError as fault:
            assert self.shell.digest() == before
            self.check_commit_refusal(fault, key)
            return
        if key in self.committed:
            assert entries == []
            assert done.placed.tolist() == self.committed[key]
            return
        stage = self.stages.pop(key)
        assert sum(not entry.volatile for entry in entries) == 1, "one atomic entry"
        self.drop(self.removed_by(entries, "dropped"), len(stage["messages"]))
        self.shell.commit(entries)
        done.end_leases(state)
        self.committed[key] = done.placed.tolist()
        for token in {token for token, _ in stage["settles"]}:
            self.naive.ack(token, {at for each, some in stage["settles"] if each == token for at in some})
        for _, partition, base, count in done.placed.reshape(-1, 4).tolist():
            offsets = np.arange(base, base + count, dtype=np.int64)
            bodies = self.shell.store.take(self.topic.number, partition, offsets, ("payload",)).column(0).to_pylist()
            for offset, body in enumerate(bodies, base):
                message = self.naive_message(stage["messages"].pop(body), (partition, offset))
                self.naive.publish(message, self.now_ms)
        assert not stage["messages"], "all or nothing"

    def check_commit_refusal(self, fault, key):
        stage = self.stages.get(key)
        if stage is None:
            assert isinstance(fault, NotFound)
        elif isinstance(fault, StaleLease):
            held = {token: set(lease.at) for token, lease in self.naive.leases.items()}
            assert any(not set(some) <= held.get(token, set()) for token, some in stage["settles"])
        elif isinstance(fault, DuplicateId):
            ids = [message.id for message in stage["messages"].values() if message.id]
            assert len(set(ids)) < len(ids) or set(ids) & self.naive.ids()
        elif isinstance(fault, LimitReached):
            config = self.topic.config
            assert len(self.naive.counted()) + len(stage["messages"]) > (config.messages_max or PLENTY)
        else:
            assert isinstance(fault, StageLost)
            assert stage["lost"]

    @rule(key=st.sampled_from("kl"))
    def abort(self, key):
        self.shell.commit(staging.abort(self.shell.state, key, self.now.wall_us))
        self.stages.pop(key, None)
