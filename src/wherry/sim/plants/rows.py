"""Planted bugs where few messages are rows and runs of offsets, are kept of a block, or are synced by the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyroaring import BitMap64

from wherry.core.apply import planned
from wherry.core.decide import leasing
from wherry.core.index import directory
from wherry.core.index.directory_part import COUNT, LIVE, WAITING
from wherry.core.index.waiting import Fifo, Ranked
from wherry.core.state.partition import Partition
from wherry.core.state.reader import Reader
from wherry.core.state.state import TopicState
from wherry.journal.bodies import merged
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.segments.reading import Block
from wherry.journal.bodies.singles import Columns
from wherry.model.row_batch import RowBatch
from wherry.sim.patch import patched
from wherry.sim.world import world
from wherry.sim.world.disk import SimFiles


def _quick(faults: Any) -> Any:
    return lambda **_: faults(quick=1.0)


@contextmanager
def trust_the_page_cache() -> Iterator[None]:
    """Confirm a group that the loop has written, and not synced."""
    with (
        patched(SimFiles, "_sync_now", lambda sync: lambda self, *args: None if self.is_quick() else sync(self, *args)),
        patched(world, "DiskFaults", _quick),
    ):
        yield


def lease_a_run_twice() -> Any:
    """Leave the last message of a run waiting, which was leased."""

    def make(claim: Any) -> Any:
        return lambda self, stop: claim(self, max(self._claimed.floor, stop - 1))

    return patched(Fifo, "claim_run", make)


def journal_half_a_payload() -> Any:
    """Store only the beginning of payloads that travel as rows: after a restart the rest is gone."""

    def make(bodies: Any) -> Any:
        def cut(self: RowBatch) -> list[list[Any]]:
            *others, payloads = bodies(self)
            return [*others, [payload[:-1] for payload in payloads]]

        return cut

    return patched(RowBatch, "bodies", make)


def settle_one_too_few() -> Any:
    """Settle a run without its last message, which comes back when its lease would have ended."""

    def make(settle: Any) -> Any:
        return lambda self, first, stop: settle(self, first, max(first, stop - 1)) and settle(self, stop, stop)

    return patched(Reader, "settle_run", make)


def keep_what_is_settled() -> Any:
    """Count a run as freed that stays in the directory: the topic's bounds drift."""

    def make(settled: Any) -> Any:
        def twice(self: Partition, first: int, stop: int) -> Any:
            freed = settled(self, first, stop)
            return None if freed is None else freed._replace(messages=freed.messages - 1)

        return twice

    return patched(Partition, "settled_run", make)


def lease_few_twice() -> Any:
    """Leave the last of a few messages of a ranked order waiting, which was leased."""
    return patched(Ranked, "claim_first", lambda claim: lambda self, n: claim(self, n - 1))


def settle_a_set_without_one() -> Any:
    """Settle messages in any places without the last of them, which comes back when its lease would have ended."""

    def make(settle: Any) -> Any:
        return lambda self, some: settle(self, some - BitMap64([some.max()]) if len(some) > 1 else some)

    return patched(Reader, "settle_set", make)


def keep_a_set_that_is_settled() -> Any:
    """Count a message in any place as kept that is freed: the topic's bounds drift."""

    def make(settled: Any) -> Any:
        def one_less(self: Partition, *some: Any) -> Any:
            freed = settled(self, *some)
            return None if freed is None else freed._replace(messages=freed.messages - 1)

        return one_less

    return patched(Partition, "settled_set", make)


def read_the_next_row() -> Any:
    """Give a lone message of a batch of columns the content of the message behind it."""

    def make(row: Any) -> Any:
        return lambda self, at, *rest: row(self, min(at + 1, len(self._payload_edges) - 2), *rest)

    return patched(Columns, "row", make)


@contextmanager
def lose_the_place_in_merged() -> Iterator[None]:
    """Merge batches, and look for the messages of each at the beginning."""
    with (
        patched(CachedBatch, "belong_to", lambda belong: lambda self, whole, start: belong(self, whole, 0)),
        patched(merged, "LEAST", lambda _: 2),
        patched(leasing, "FEW_MAX", lambda _: 0),
    ):
        yield


def pack_settled_messages_as_new() -> Any:
    """Pack the rows of a directory as if no message of a batch was settled, where some are."""

    def make(pack: Any) -> Any:
        def whole(rows: Any) -> Any:
            rows = rows.copy()
            rows[LIVE] = rows[WAITING] = rows[COUNT]
            return pack(rows)

        return whole

    return patched(directory, "packed", make)


def take_a_part_for_the_whole() -> Any:
    """Keep some messages of a block, and do not read the others when they are asked for."""
    return patched(Block, "only", lambda only: lambda self, offsets: only(self, offsets)._replace(is_whole=True))


def keep_the_neighbours() -> Any:
    """Keep other messages of a block than those that were asked for, under their offsets."""

    def make(only: Any) -> Any:
        def shifted(self: Block, offsets: Any) -> Block:
            found = only(self, offsets)
            count = len(found.offsets)
            return found._replace(batch=self.batch.slice(self.batch.num_rows - count, count))

        return shifted

    return patched(Block, "only", make)


def keep_an_old_plan() -> Any:
    """Keep the plan of a topic when its subscriptions change: a new one gets no lone message."""

    def make(replan: Any) -> Any:
        return lambda self: replan(self) if self.plan is None else None

    return patched(TopicState, "replan", make)


def ack_for_the_reader_alone() -> Any:
    """Let a planned ack settle messages for their subscription, and keep them in the topic."""

    def make(_: Any) -> Any:
        return lambda state, plan, subscription, first, stop: subscription.readers[0].settle_run(first, stop)

    return patched(planned, "ack", make)


ROW_PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "trust the page cache": (trust_the_page_cache, 0, ("ledger", "replay_equals_live", "BootRefused")),
    "lease a run twice": (lease_a_run_twice, 0, ("one_lease_at_a_time", "Corrupt")),
    "journal half a payload": (journal_half_a_payload, 0, ("ledger", "late")),
    "settle one too few": (settle_one_too_few, 0, ("acked_stays_acked", "replay_equals_live", "Corrupt")),
    "pack settled messages as new": (pack_settled_messages_as_new, 0, ("replay_equals_live", "audit", "BootRefused")),
    "keep what is settled": (keep_what_is_settled, 0, ("replay_equals_live", "bounds_held", "audit")),
    "lease few twice": (lease_few_twice, 0, ("one_lease_at_a_time", "Corrupt")),
    "settle a set without one": (settle_a_set_without_one, 0, ("acked_stays_acked", "replay_equals_live", "Corrupt")),
    "keep a set that is settled": (keep_a_set_that_is_settled, 0, ("replay_equals_live", "bounds_held", "audit")),
    "read the next row": (read_the_next_row, 0, ("ledger",)),
    "take a part for the whole": (take_a_part_for_the_whole, 5, ("Corrupt",)),
    "keep the neighbours": (keep_the_neighbours, 5, ("ledger",)),
    "keep an old plan": (keep_an_old_plan, 0, ("ledger", "late", "replay_equals_live", "audit")),
    "ack for the reader alone": (ack_for_the_reader_alone, 0, ("replay_equals_live", "bounds_held", "audit")),
    "lose the place in merged": (lose_the_place_in_merged, 0, ("ledger",)),
}
