"""How the broker itself is: whether it works, what time it is there, its bounds, and who measures it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wherry.broker.calls.calls import BrokerCalls
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
        """Raise why the broker can store nothing any more; do nothing while it can."""
        self.shard.committer.check()

    @property
    def entry_bytes_max(self) -> int:
        """The most bytes that one step may have in the journal."""
        return self.shard.writer.entry_bytes_max

    @property
    def cache_bytes_max(self) -> int:
        """The memory that recent messages may take."""
        return self.shard.store.cache_bytes_max

    @property
    def slices(self) -> Slices:
        """The turns in which long listings are made, so that other calls run between."""
        return self.shard.slices

    @property
    def metrics(self) -> Metrics | None:
        """What is measured of the broker; None where nothing is."""
        return self.shard.metrics

    def trace(self, tracer: Tracer) -> Callable[[], None]:
        """Report to a tracer what happens to messages; return what ends it."""
        return Tracing(self.shard, tracer).stop

    def catch_up(self) -> None:
        """Do what the time calls for, and have every call that waits look again: the clock was moved by hand."""
        shard = self.shard
        shard.upkeep(shard.now())
        shard.waiters.wake_all()
        shard.pressure.set()
