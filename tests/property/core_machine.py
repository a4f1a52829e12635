"""The whole core beside a naive queue: the same calls go to both, and after each they must agree."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from tests.property import naive
from tests.property.shell import Shell
from wherry.core.decide import leasing, upkeep
from wherry.core.decide.leasing import Now
from wherry.core.inspect import stats
from wherry.core.inspect.audit import audit
from wherry.core.state import fates
from wherry.core.state.plan import plan_of
from wherry.core.state.state import SubscriptionState, TopicState
from wherry.model import ops
from wherry.model.calls.fate import FATES, SETTLED, Outcome
from wherry.model.catalog.subscription import Retry, Subscription
from wherry.model.catalog.topic import Order, Topic
from wherry.model.ops import Entry
from wherry.model.schema import Message

START_MS = 1_000_000
LEASE_MS = 50
RETRY = Retry(attempts=2, first_ms=10, factor=2.0, cap_ms=100, jitter=0.0)
DELAYS = {attempt: min(10 * 2 ** (attempt - 1), 100) for attempt in range(1, 60)}
PLENTY = 1 << 30

rows = st.lists(
    st.fixed_dictionaries(
        {
            "size": st.integers(0, 30),
            "key": st.sampled_from([None, None, "a", "b", ""]),
            "priority": st.sampled_from([None, 0, 1, 40_000]),
            "due": st.sampled_from([None, None, None, -5, 0, 15, 40]),
            "expires": st.sampled_from([None, None, None, 30, 60]),
            "id": st.sampled_from([None, None, None, "x", "y", "z"]),
        }
    ),
    min_size=1,
    max_size=5,
)


class Core(RuleBasedStateMachine):
    """The two worlds and their clock; the rules are in `test_core.py`."""

    order: ClassVar[Order] = "fifo"

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.shell = Shell()
        self.bodies = 0

    @initialize(
        partitions=st.integers(1, 3),
        bound=st.sampled_from([None, None, 6, 12]),
        overflow=st.sampled_from(["refuse", "dead-letter", "drop-oldest"]),
        expired=st.sampled_from(["drop", "dead-letter"]),
        keep_ms=st.sampled_from([None, None, 100]),
        dead_max=st.sampled_from([1_000_000, 2]),
        key_order=st.booleans(),
        planned=st.booleans(),
    )
    def create(self, partitions, bound, overflow, expired, keep_ms, dead_max, key_order, planned):
        config = Topic(
            name="t",
            order=self.order,
            partitions=partitions,
            messages_max=bound,
            overflow=overflow,
            expired=expired if dead_max > 2 else "drop",
            keep="settled" if keep_ms is None else "age",
            keep_ms=keep_ms,
            dead_messages_max=dead_max,
        ).checked()
        self.key_order = key_order
        self.shell.planned = planned
        self.naive = naive.Queue(self.order, stream=keep_ms is not None, dead_max=dead_max)
        self.stages: dict[str, dict[str, Any]] = {}
        self.committed: dict[str, list[int]] = {}
        self.shell.opened(self.now)
        self.shell.commit([Entry(self.now.wall_us, [ops.PutTopic(1, config)])])
        self.subscribe_to("a", durable=True, start="earliest")
        self.begin()

    def begin(self) -> None:
        """Make something to work on, so that the first steps are not wasted on an empty queue."""

    # Both worlds.

    @property
    def now(self) -> Now:
        return Now(self.now_ms * 1000, self.now_ms)

    @property
    def topic(self) -> TopicState:
        return self.shell.state.topic("t")

    def subscription(self, name: str) -> SubscriptionState:
        return self.shell.state.subscription("t", name)

    def entropy(self, count: int) -> Any:
        return np.full(count, 0.5)

    def subscribe_to(self, name: str, *, durable: bool, start: str) -> None:
        config = Subscription(
            topic="t",
            name=name,
            durable=durable,
            lease_ms=LEASE_MS,
            retry=RETRY,
            key_order=self.key_order and name != "b",
            assignment="balanced" if name != "e" else "shared",
        ).checked()
        state, topic = self.shell.state, self.topic
        number = state.catalog.next_number if durable else state.last_ephemeral - 1
        state.last_ephemeral = min(state.last_ephemeral, number)
        starts = np.zeros(max(topic.partitions, default=0) + 1, np.int64)
        for index, partition in topic.partitions.items():
            starts[index] = {"earliest": 0, "latest": partition.next_offset, "middle": partition.next_offset // 2}[
                start
            ]
        op = ops.PutSubscription(number, topic.number, config, starts)
        self.shell.commit([Entry(self.now.wall_us, [op], volatile=not durable)])
        new = naive.Subscription(name, durable, config.key_order, RETRY.attempts or 0)
        late = [n for n, reader in self.subscription(name).readers.items() if reader.backlog is not None]
        self.naive.subscribe(new, dict(enumerate(starts.tolist())), late)
        self.join(name)

    def join(self, name: str) -> None:
        leasing.join(self.subscription(name), "c1", None, None)
        leasing.join(self.subscription(name), "c2", 4, 40)

    def message(self, row: dict[str, Any]) -> Message:
        self.bodies += 1
        due = None if row["due"] is None else self.now_ms + row["due"]
        return Message(
            payload=f"{self.bodies}:".encode().ljust(row["size"], b"."),
            id=row["id"],
            key=row["key"],
            priority=row["priority"],
            due_ms=due,
            expires_ms=None if row["expires"] is None else self.now_ms + row["expires"],
        )

    def naive_message(self, message: Message, at: tuple[int, int]) -> naive.Message:
        return naive.Message(
            at,
            self.now_ms,
            message.key,
            32_768 if message.priority is None else message.priority,
            message.due_ms,
            message.expires_ms,
            message.id,
            message.payload,
        )

    def upkeep(self) -> None:
        """Do what the time calls for, in both worlds, before every decision."""
        for entry in upkeep.due(self.shell.state, self.now, self.entropy):
            self.shell.commit([entry])
        late = [token for token, lease in self.naive.leases.items() if lease.deadline <= self.now_ms]
        for token in sorted(late, key=lambda token: (self.naive.leases[token].deadline, token)):
            self.naive.fail(token, list(self.naive.leases[token].at), DELAYS, self.now_ms)
        going = self.naive.due_to_expire(self.now_ms)
        if self.topic.config.expired == "dead-letter":
            for message in going:
                message.dead = not self.naive.durable()
                for name in self.naive.durable():
                    if message.places[name].where in naive.ACTIVE:
                        self.naive.bury(message, name)
        self.naive.remove(going, "expired")
        self.naive.withdraw(self.naive.expired(self.now_ms), bury=self.topic.config.expired == "dead-letter")

    def removed_by(self, entries: list[Entry], reason: str) -> list[naive.Message]:
        return [
            self.naive.messages[op.partition, offset]
            for entry in entries
            for op in entry.ops
            if isinstance(op, ops.Remove) and op.reason == reason
            for offset in ops.from_ranges(op.ranges).tolist()
        ]

    def outcomes(self) -> dict[tuple[int, int], Outcome]:
        """Return the outcomes that are to be reported, by place."""
        found = self.topic.outbox.unreported("t", PLENTY, np.empty(0, np.int64), ())
        return {(each.partition, each.offset): each for each in found}

    def check_outcomes(self, number: int, expected: list[str]) -> None:
        """Check that each outcome is reported, or is still to be; in a stream a new subscription may reopen it."""
        outcomes = self.outcomes()
        assert bool(outcomes) <= (self.topic.number in self.shell.state.with_outcomes)
        for at, fate in ((at, fate) for at, fate in enumerate(expected) if FATES.index(fate) >= SETTLED):
            message = self.naive.messages[number, at]
            if message.watched:
                last = outcomes[number, at].fate if (number, at) in outcomes else message.reported
                assert last == fate or (self.naive.stream and last == "settled"), (at, last, fate)

    # What must hold after every step.

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "naive"):
            return
        self.upkeep()
        audit(self.shell.state)
        assert self.topic.plan == plan_of(self.topic), "a plan that rests on what is no longer so"
        seen = stats.of_topic(self.shell.state, self.topic, self.now_ms)
        assert seen.messages == len(self.naive.counted()), [message.at for message in self.naive.counted()]
        assert seen.dead == self.naive.dead()
        bound = self.topic.config.messages_max
        assert bound is None or seen.messages <= bound
        assert [each.name for each in seen.subscriptions] == sorted(self.naive.subscriptions)
        for each in seen.subscriptions:
            expected = self.naive.stats(each.name, self.now_ms)
            assert {name: getattr(each, name) for name in expected} == expected, (each, expected)
        for name in self.naive.subscriptions:
            for consumer in self.subscription(name).consumers.values():
                out = self.naive.held_by(name, consumer.id)
                held = (consumer.unsettled_messages, consumer.unsettled_bytes)
                assert held == (len(out), sum(message.weight() for message in out))
        for number, partition in self.topic.partitions.items():
            every = np.arange(partition.next_offset, dtype=np.int64)
            codes = fates.fates(self.shell.state, self.topic, number, every, self.now_ms)
            expected_fates = [self.naive.fate(self.naive.messages[number, at], self.now_ms) for at in every.tolist()]
            assert [FATES[code] for code in codes.tolist()] == expected_fates
            self.check_outcomes(number, expected_fates)
        kept = {at for at, message in self.naive.messages.items() if not message.gone}
        partitions = self.topic.partitions
        assert kept == {
            (number, offset)
            for number, partition in partitions.items()
            for offset in partition.released.missing(0, partition.next_offset).tolist()
        }
