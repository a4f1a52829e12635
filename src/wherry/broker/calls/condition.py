"""The condition of the broker itself: whether it works, its clock, its bounds, its metrics and traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wherry.broker.calls.calls import BrokerCalls
from wherry.broker.commit.turn import Phase
from wherry.broker.metrics.tracing import Tracer, Tracing
from wherry.broker.waiting.slices import Slices
from wherry.model.errors import WherryError

if TYPE_CHECKING:
    from wherry.broker.metrics.metrics import Metrics


class ConditionCalls(BrokerCalls):
    """The calls about the broker as a whole."""

    def now_ms(self) -> int:
        """Return the time by the broker's clock, Unix milliseconds."""
        return self.shard.clock.wall_us() // 1000

    @property
    def failure(self) -> WherryError | None:
        """Why the journal failed, None while it works: after a failure nothing can be stored or confirmed."""
        return self.shard.committer.failure

    @property
    def is_closing(self) -> bool:
        """Whether the broker takes no new messages, since it is about to close."""
        return self.shard.committer.closing

    def check_alive(self) -> None:
        """Raise the failure of the journal, if it failed; do nothing while the broker can store messages."""
        self.shard.committer.check()

    @property
    def entry_bytes_max(self) -> int:
        """The most bytes that one entry may have in the journal."""
        return self.shard.writer.entry_bytes_max

    @property
    def cache_bytes_max(self) -> int:
        """The memory that recent messages may take."""
        return self.shard.store.cache_bytes_max

    @property
    def slices(self) -> Slices:
        """The slices in which long listings are made, so that other calls run between them."""
        return self.shard.slices

    @property
    def metrics(self) -> Metrics | None:
        """The metrics of the broker; None while nothing is measured."""
        return self.shard.metrics

    def trace(self, tracer: Tracer) -> Callable[[], None]:
        """Report to a tracer what happens to messages; return a function that stops it."""
        return Tracing(self.shard, tracer).stop

    def at_end_of_turn(self, send: Callable[[], None]) -> None:
        """Call at the end of this turn of the loop, behind its sync and its wake-ups: to send what they led to."""
        self.shard.turn.at_end(Phase.SEND, send)

    def clock_moved(self) -> None:
        """Do what is due by now and wake all waiters; for tests that have moved the clock."""
        shard = self.shard
        shard.upkeep(shard.now())
        shard.waiters.wake_all()
        shard.housekeeping_due.set()
