"""Rules of the core machine: publish, pull, settle, subscribe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.property import naive
from tests.property.core_machine import DELAYS, LEASE_MS, PLENTY, Core, rows
from wherry.broker.commit.batches import CallerRows, row_batch
from wherry.core.decide import leasing, publishing, settling
from wherry.core.decide.settling import Ending, Failure, Rejection
from wherry.core.decide.volatile import separate
from wherry.core.index.hashing import hash_text
from wherry.model import ops
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.calls.rows import Handling, Rows
from wherry.model.errors import (
    DuplicateId,
    LimitReached,
    OutOfSequence,
    StaleLease,
    WherryError,
)
from wherry.model.ops import Entry
from wherry.model.schema import Message, compact

names = st.sampled_from(["a", "b", "e"])
shares = st.sampled_from([0.3, 1.0])


def places(answer: Published) -> list[tuple[int, int]]:
    return list(zip(answer.partition.tolist(), answer.offset.tolist(), strict=True))


def run_of(message: Message) -> CallerRows:
    headers = None if message.headers is None else list(message.headers.items())
    rows = Rows([message.payload], message.envelope, message.key, headers, message.id)
    return CallerRows(rows, Handling(True, message.priority, message.expires_ms, message.due_ms), None, separable=False)


PLAIN = {"size": 9, "key": "a", "priority": 1, "due": None, "expires": None, "id": None}


class Consuming(Core):
    def begin(self) -> None:
        self.publish([PLAIN, {**PLAIN, "key": "b", "expires": 60}, {**PLAIN, "key": None, "due": 15}], None, None)

    # Publishing.

    @rule(
        given=rows,
        where=st.none() | st.integers(0, 4),
        producer=st.none() | st.tuples(st.sampled_from("pq"), st.integers(0, 9)),
        callback=st.sampled_from([None, "http://a", "http://b"]),
    )
    def publish(self, given, where, producer, callback="http://a", as_rows=False):
        self.upkeep()
        messages = [self.message(row) for row in given]
        options = PublishOptions(
            partition=where if where is not None and where < self.topic.config.partitions else None,
            producer=None if producer is None else producer[0],
            sequence=None if producer is None else producer[1],
            callback=callback,
        )
        batch = (row_batch(list(map(run_of, messages))) if as_rows else None) or compact(messages)
        before, next_offsets = self.shell.digest(), dict(self.naive.ends)
        try:
            entries, answer = publishing.decide(self.shell.state, self.topic, batch, options, self.now.wall_us)
        except WherryError as fault:
            assert self.shell.digest() == before
            self.check_refusal(fault, messages, producer)
            return
        if answer.repeated:
            assert entries == []
            assert sorted(places(answer)) == sorted(self.sequences[producer][1])
            return
        ids = [message.id for message in messages if message.id]
        assert len(set(ids)) == len(ids)
        assert not set(ids) & self.naive.ids(), "an id of a message in the topic was taken again"
        self.drop(self.removed_by(entries, "dropped"), len(messages))
        self.shell.commit(entries)
        placed = places(answer)
        if producer is not None:
            self.sequences[producer] = (batch, placed)
            self.last_sequence[producer[0]] = producer[1] + len(messages)
        dead = self.overflowed(entries)
        assert answer.dead == len(dead)
        for message, at in sorted(zip(messages, placed, strict=True), key=lambda pair: pair[1]):
            if options.partition is not None:
                assert at[0] == options.partition
            elif message.key is not None:
                assert at[0] == hash_text(message.key) % self.topic.config.partitions
            new = self.naive_message(message, at)
            new.dead = at in dead
            new.watched = callback is not None
            self.naive.publish(new, self.now_ms)
        assert all(at[1] >= next_offsets.get(at[0], 0) for at in placed)

    @rule(given=rows, timed=st.booleans())
    def publish_rows(self, given, timed):
        """Publish messages that stay Python values throughout; most have no times, as in most queues."""
        times = {} if timed else {"due": None, "expires": None}
        self.publish([{**row, **times, "id": None} for row in given], None, None, None, as_rows=True)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def publish_again(self, data):
        """Repeat a call: it gets the same answer and stores nothing, with restarts between or not."""
        producer, sequence = data.draw(st.sampled_from(sorted(self.sequences)))
        batch, placed = self.sequences[producer, sequence]
        options = PublishOptions(producer=producer, sequence=sequence)
        entries, answer = publishing.decide(self.shell.state, self.topic, batch, options, self.now.wall_us)
        assert (entries, places(answer), answer.repeated) == ([], placed, True)

    @property
    def sequences(self) -> dict[tuple[str, int], Any]:
        return self.__dict__.setdefault("_sequences", {})

    @property
    def last_sequence(self) -> dict[str, int]:
        return self.__dict__.setdefault("_last_sequence", {})

    def check_refusal(self, fault: WherryError, messages: list[Message], producer: Any) -> None:
        """Check that a refusal has its reason."""
        ids = [message.id for message in messages if message.id]
        config = self.topic.config
        if isinstance(fault, DuplicateId):
            assert len(set(ids)) < len(ids) or set(ids) & self.naive.ids()
        elif isinstance(fault, LimitReached):
            counted = self.naive.counted()
            assert config.messages_max is not None
            assert len(counted) + len(messages) > config.messages_max
            if config.overflow == "drop-oldest":
                free = [message for message in counted if not self.naive.held_by_durable(message)]
                over = len(counted) + len(messages) - config.messages_max
                assert len(free) < over or len(messages) > config.messages_max
            if config.overflow == "dead-letter":
                assert self.naive.dead() + len(messages) > config.dead_messages_max
        else:
            assert isinstance(fault, OutOfSequence)
            assert producer[1] < self.last_sequence[producer[0]]

    def drop(self, going: list[naive.Message], new: int) -> None:
        if not going:
            return
        counted = self.naive.counted()
        assert self.topic.config.overflow == "drop-oldest"
        assert len(counted) - len(going) + new == self.topic.config.messages_max, "no more than has to go"
        stay = [m for m in counted if m not in going and not self.naive.held_by_durable(m)]
        assert all(m in counted and not self.naive.held_by_durable(m) for m in going)
        assert max(m.published for m in going) <= min((m.published for m in stay), default=PLENTY), "the oldest go"
        self.naive.remove(going, "dropped")

    def overflowed(self, entries: list[Entry]) -> set[tuple[int, int]]:
        return {
            (op.partition, offset)
            for entry in entries
            for op in entry.ops
            if isinstance(op, ops.Publish) and op.dead
            for offset in range(op.base, op.base + op.count)
        }

    # Consuming.

    @rule(
        name=names,
        consumer=st.sampled_from(["c1", "c1", "c2"]),
        n=st.integers(1, 9),
        size=st.sampled_from([PLENTY, PLENTY, 25]),
    )
    def pull(self, name, consumer, n, size):
        if name not in self.naive.subscriptions:
            return
        self.upkeep()
        subscription = self.subscription(name)
        puller = leasing.consumer_of(subscription, consumer)
        out, held_bytes = puller.unsettled_messages, puller.unsettled_bytes
        own = [number for number in subscription.assignment.of(consumer) if number in self.topic.partitions]
        before = {number: self.naive.available(name, number, self.now_ms) for number in self.topic.partitions}
        granted = leasing.lease(self.shell.state, subscription, puller, n, size, self.now)
        taken = [(lease, before[lease.partition][: len(lease.offset)]) for lease in granted]
        for lease, expected in taken:
            assert lease.offset.tolist() == [message.at[1] for message in expected], "the first ones, in order"
            self.check_bodies(subscription, lease, expected, name)
        every = [message for _, messages in taken for message in messages]
        self.check_budget(every, n, size, puller, out, held_bytes)
        if size == PLENTY and consumer == "c1":
            self.check_complete(every, n, own, before, helps=subscription.assignment.helps and not self.key_order)
        for lease, expected in taken:
            deadline = self.now_ms + LEASE_MS
            self.naive.lease(lease.token, naive.Lease(name, consumer, [m.at for m in expected], deadline))

    def check_bodies(self, subscription, lease, expected, name):
        attempts = subscription.readers[lease.partition].attempts(lease.offset)
        assert attempts.tolist() == [message.places[name].attempts for message in expected]
        batch, _ = self.shell.store.deliver(self.topic.number, lease.partition, lease.offset, attempts + 1)
        assert batch.column("payload").to_pylist() == [message.payload for message in expected]
        assert all(m.due is None or m.due <= self.now_ms for m in expected), "nothing early"
        assert lease.size.tolist() == [message.weight() for message in expected]

    def check_budget(self, every, n, size, puller, out, held_bytes):
        total = sum(message.weight() for message in every)
        assert len(every) <= min(n, puller.buffer_messages - out)
        assert total <= size or len(every) == 1
        assert held_bytes + total <= puller.buffer_bytes or (out == 0 and len(every) == 1)
        assert (puller.unsettled_messages, puller.unsettled_bytes) == (out + len(every), held_bytes + total)

    def check_complete(self, every, n, own, before, *, helps):
        mine = [message for number in own for message in before[number]]
        if mine:
            assert len(every) == min(n, len(mine)), "nothing is kept back"
            if self.order != "fifo":
                ranks = sorted(self.rank(message) for message in mine)
                assert sorted(self.rank(message) for message in every) == ranks[: len(every)], "the most urgent of all"
        elif helps:
            assert bool(every) == any(before.values()), "no consumer is idle while messages wait"

    def rank(self, message):
        return (
            message.priority if self.order == "priority" else message.published if message.due is None else message.due
        )

    def some_lease(self, data, share):
        if not self.naive.leases:
            return None
        token = data.draw(st.sampled_from(sorted(self.naive.leases)))
        at = self.naive.leases[token].at
        some = at if share == 1.0 else data.draw(st.lists(st.sampled_from(at), min_size=1, unique=True))
        offsets = None if share == 1.0 and data.draw(st.booleans()) else np.array([each[1] for each in some], np.int64)
        return token, list(some), offsets

    @rule(data=st.data(), share=shares, how=st.sampled_from(["ack", "ack", "nack", "delay", "dead letter", "release"]))
    def settle(self, data, share, how):
        self.upkeep()
        picked = self.some_lease(data, share)
        if picked is None:
            return
        token, some, offsets = picked
        state, ending, why = self.shell.state, Ending(), Rejection("bad", "")
        lease = leasing.held_lease(state, token)
        rows = settling.rows_of(lease, offsets)
        if how == "release":
            settling.release(state, lease, rows)
            self.naive.release(token, some)
            return
        if how == "dead letter":
            name = self.naive.leases[token].subscription
            full = self.naive.dead() + len(some) > self.naive.dead_max
            if full and self.naive.subscriptions[name].durable:
                with pytest.raises(LimitReached):
                    settling.dead_letter(state, ending, lease, rows, why)
                return
            steps = settling.dead_letter(state, ending, lease, rows, why)
            for message in self.naive.take_out(token, some):
                self.naive.bury(message, name)
            self.naive.settle_up()
        elif how == "ack":
            steps = self.acked_by_two(ending, lease, rows)
            self.naive.ack(token, some)
        else:
            delay = 25 if how == "delay" else None
            failure = Failure(f"no {self.bodies}", self.now_ms, self.entropy, delay)
            steps = settling.failed(state, ending, lease, rows, failure)
            self.naive.fail(token, some, delay or DELAYS, self.now_ms)
        self.shell.commit(separate(state, self.now.wall_us, steps))
        ending.carry_out(state)
        if token not in self.naive.leases:
            with pytest.raises(StaleLease):
                leasing.held_lease(state, token)

    def acked_by_two(self, ending, lease, rows):
        """Decide acks of two calls in one turn, and a third that names the same messages and is refused."""
        every = np.arange(len(lease.offset)) if rows is None else rows
        half = len(every) // 2
        steps = [op for some in (every[:half], every[half:]) if len(some) for op in settling.ack(ending, lease, some)]
        mark = ending.mark()
        with pytest.raises(StaleLease):
            settling.ack(ending, lease, rows)
        ending.undo(mark)
        return settling.joined_acks(steps)

    @precondition(lambda self: self.naive.leases)
    @rule(data=st.data())
    def renew(self, data):
        self.upkeep()
        if self.naive.leases:
            token = data.draw(st.sampled_from(sorted(self.naive.leases)))
            leasing.renew(self.shell.state, leasing.held_lease(self.shell.state, token), 80, self.now)
            self.naive.leases[token].deadline = self.now_ms + 80

    @rule(name=names)
    def leave_and_join(self, name):
        if name in self.naive.subscriptions:
            for consumer in ("c1", "c2"):
                leasing.leave(self.shell.state, self.subscription(name), consumer)
            for token in [t for t, lease in self.naive.leases.items() if lease.subscription == name]:
                self.naive.release(token, list(self.naive.leases[token].at))
            self.join(name)

    # Subscriptions.

    @rule(name=st.sampled_from(["b", "e"]), start=st.sampled_from(["earliest", "latest", "middle"]))
    def subscribe(self, name, start):
        self.upkeep()
        if name not in self.naive.subscriptions:
            self.subscribe_to(name, durable=name != "e", start=start)

    @rule(name=names, is_cut_off=st.booleans())
    def unsubscribe(self, name, is_cut_off):
        keep = is_cut_off and name != "e"
        if name in self.naive.subscriptions and (name != "a" or self.now_ms % 3 == 0):
            number = self.subscription(name).number
            entry = Entry(self.now.wall_us, [ops.DeleteSubscription(number, "", keep)], volatile=name == "e")
            self.shell.commit([entry])
            self.naive.unsubscribe(name, keep_dead=keep)

    @rule(name=names)
    def backfill(self, name):
        self.upkeep()
        if name not in self.naive.subscriptions:
            return
        for number in list(self.subscription(name).readers):
            stop, offsets = self.shell.backfill(self.subscription(name), number, self.now)
            self.naive.admit(name, number, stop, offsets, self.now_ms)
