"""A core on the desk: one topic, calls in a line each, and the ways to go through a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.property.shell import Shell
from wherry.core.decide import (
    amending,
    dead_letters,
    leasing,
    publishing,
    settling,
    upkeep,
)
from wherry.core.decide.leasing import Now
from wherry.core.decide.settling import Ending, Failure, Rejection
from wherry.core.decide.volatile import separate
from wherry.core.inspect.audit import audit
from wherry.core.inspect.stats import of_subscription
from wherry.core.state.lease import Lease
from wherry.core.state.state import SubscriptionState, TopicState
from wherry.model import ops
from wherry.model.calls.amendment import Amended, Amendment
from wherry.model.calls.dead import DeadFilter
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.calls.stats import SubscriptionStats
from wherry.model.catalog.subscription import Retry, Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.ops import AnyOp, Entry
from wherry.model.schema import compact

PLENTY = 1 << 30


class Desk:
    """The topic is `t` (number 1), its subscriptions are named as you like; time moves by hand."""

    def __init__(self, **topic: Any) -> None:
        self.shell = Shell()
        self.ms = 1_000_000
        self.shell.opened(self.now)
        self.commit([Entry(self.now.wall_us, [ops.PutTopic(1, Topic(name="t", **topic).checked())])])

    @property
    def now(self) -> Now:
        return Now(self.ms * 1000, self.ms)

    @property
    def topic(self) -> TopicState:
        return self.shell.state.topic("t")

    def commit(self, entries: list[Entry]) -> None:
        self.shell.commit(entries)
        audit(self.shell.state)

    def subscribe(self, name: str = "s", *, start: int = 0, **fields: Any) -> SubscriptionState:
        config = Subscription(topic="t", name=name, **{"retry": Retry(attempts=1, jitter=0.0), **fields}).checked()
        state = self.shell.state
        number = state.catalog.next_number
        if not config.durable:
            state.last_ephemeral -= 1
            number = state.last_ephemeral
        starts = np.array([start], np.int64)
        op = ops.PutSubscription(number, 1, config, starts)
        self.commit([Entry(self.now.wall_us, [op], volatile=not config.durable)])
        leasing.join(self.subscription(name), "c", None, None)
        return self.subscription(name)

    def subscription(self, name: str = "s") -> SubscriptionState:
        return self.shell.state.subscription("t", name)

    def publish(self, *messages: Any, **options: Any) -> Published:
        batch = compact(list(messages))
        wanted = PublishOptions(**options)
        entries, answer = publishing.decide(self.shell.state, self.topic, batch, wanted, self.now.wall_us)
        self.commit(entries)
        return answer

    def pull(self, name: str = "s", n: int = 100, size: int = PLENTY) -> list[Lease]:
        subscription = self.subscription(name)
        consumer = leasing.consumer_of(subscription, "c")
        return leasing.lease(self.shell.state, subscription, consumer, n, size, self.now)

    def offsets(self, name: str = "s") -> list[int]:
        """Pull, release the messages at once, and return their offsets."""
        leases = self.pull(name)
        for lease in leases:
            settling.release(self.shell.state, lease, None)
        return [offset for lease in leases for offset in lease.offset.tolist()]

    def settle(self, step: Callable[[Ending], list[AnyOp]]) -> None:
        """Settle as the broker does: decide, write, and only then take the messages out of the lease."""
        ending = Ending()
        self.shell.commit(separate(self.shell.state, self.now.wall_us, step(ending)))
        ending.carry_out(self.shell.state)
        audit(self.shell.state)

    def ack(self, lease: Lease) -> None:
        self.settle(lambda ending: settling.ack(ending, lease, None))

    def nack(self, lease: Lease, error: str = "", delay_ms: int | None = None) -> None:
        failure = Failure(error, self.ms, np.zeros, delay_ms).checked()
        self.settle(lambda ending: settling.failed(self.shell.state, ending, lease, None, failure))

    def dead_letter(self, *leases: Lease) -> None:
        def step(ending: Ending) -> list[AnyOp]:
            state, why = self.shell.state, Rejection("bad", "")
            return [op for each in leases for op in settling.dead_letter(state, ending, each, None, why)]

        self.settle(step)

    def cancel(self, *ids: str) -> None:
        self.commit(amending.cancel(self.shell.state, self.topic, list(ids), self.now.wall_us))

    def amend(self, message_id: str, **change: Any) -> Amended:
        wanted = Amendment(**change)
        entries, new = amending.amend(self.shell.state, self.topic, message_id, wanted, None, self.now.wall_us)
        self.commit(entries)
        return new

    def redrive(self, **wanted: Any) -> int:
        groups = dead_letters.select(self.shell.state, self.topic, DeadFilter(**wanted))
        self.commit(dead_letters.redrive(self.shell.state, self.topic, groups, "", self.now.wall_us))
        return sum(len(group.offsets) for group in groups)

    def discard(self, **wanted: Any) -> int:
        groups = dead_letters.select(self.shell.state, self.topic, DeadFilter(**wanted))
        self.commit(dead_letters.discard(self.shell.state, self.topic, groups, "", self.now.wall_us))
        return sum(len(group.offsets) for group in groups)

    def upkeep(self, ms: int = 0) -> None:
        """Advance the clock, and commit the upkeep that is due."""
        self.ms += ms
        for entry in upkeep.due(self.shell.state, self.now, np.zeros):
            self.shell.commit([entry])
        audit(self.shell.state)

    def stats(self, name: str = "s") -> SubscriptionStats:
        return of_subscription(self.subscription(name), self.ms)

    def recover(self, by: str) -> None:
        """Continue from the journal or from a checkpoint; without transient messages both give the same state."""
        other = self.shell.replayed() if by == "replay" else self.shell.reloaded()
        assert other.digest() == self.shell.digest()
        self.shell = other
        self.shell.opened(self.now)
        audit(self.shell.state)
        for subscription in self.shell.state.subscriptions.values():
            leasing.join(subscription, "c", None, None)
