"""Planted bugs, at least one for each checker: a checker that never found anything has proved nothing.

Each plant patches one small part of the real broker while its context lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from wherry.broker.calls import log as broker_log
from wherry.broker.calls.consumer import Consumer
from wherry.core.apply import apply
from wherry.core.decide import (
    leasing,
    publishing,
    settling,
    span,
    staging,
    upkeep,
)
from wherry.core.index.keys import KeyGate
from wherry.core.index.runs import Pairs, SortedRuns
from wherry.core.index.waiting import Fifo, Ranked
from wherry.core.state import fates
from wherry.core.state import reader as readers
from wherry.core.state.lease import Lease, Leases
from wherry.core.state.outbox import Outbox
from wherry.core.state.producers import Producers
from wherry.core.state.stages import OpenStage
from wherry.journal.bodies.store import BodyStore
from wherry.journal.disk.writer import DiskWriter
from wherry.model import ops
from wherry.model.calls.fate import SETTLED
from wherry.sim import run
from wherry.sim.patch import patched
from wherry.sim.plants.aftermath import AFTERMATH_PLANTS
from wherry.sim.plants.expiry import EXPIRY_PLANTS
from wherry.sim.plants.mesh import promise_too_much
from wherry.sim.plants.routes import ROUTE_PLANTS
from wherry.sim.plants.rows import ROW_PLANTS
from wherry.sim.world import world
from wherry.sim.world.world import World


def skip_sync() -> Any:
    """Skip syncs from some moment on, but report them as done."""

    def make(set_up: Any) -> Any:
        async def then_lie(world: World) -> None:
            await set_up(world)
            world.disk.skip_sync = True

        return then_lie

    return patched(run, "_set_up", make)


def drop_an_ack() -> Any:
    """Confirm an ack without journaling it."""

    def make(ack: Any) -> Any:
        def forgetful(ending: Any, lease: Lease, rows: Any) -> Any:
            steps = ack(ending, lease, rows)
            return steps if lease.token % 3 else []

        return forgetful

    return patched(settling, "ack", make)


def deliver_early() -> Any:
    """Read a clock that is a second ahead to decide which messages are due."""

    def make(peek: Any) -> Any:
        return lambda self, n, now_ms: peek(self, n, now_ms + 1_000)

    return patched(Ranked, "peek", make)


@contextmanager
def ignore_the_fence() -> Iterator[None]:
    """Accept the token of a lease that has ended."""
    ended_leases: dict[int, Lease] = {}

    def remember(grant: Any) -> Any:
        def keep(self: Leases, *args: Any) -> Lease:
            lease: Lease = grant(self, *args)
            ended_leases[lease.token] = lease
            return lease

        return keep

    def held(_: Any) -> Any:
        return lambda state, token, consumer=None: state.leases.get(token) or ended_leases[token]

    with (
        patched(Leases, "grant", remember),
        patched(leasing, "held_lease", held),
    ):
        yield


def forget_a_dead_letter() -> Any:
    """Drop a message that should be buried."""

    def make(_: Any) -> Any:
        def lose(self: readers.Reader, offset: Any, *args: Any, **options: Any) -> None:
            self.settle(offset)

        return lose

    return patched(readers.Reader, "bury", make)


def break_key_order() -> Any:
    """Let messages of every key pass the gate."""
    return patched(KeyGate, "_free", lambda _: lambda self: np.arange(len(self._hash), dtype=np.int64))


def end_leases_early() -> Any:
    """End leases most of a second too early, and lease the messages to other consumers."""

    def make(grant: Any) -> Any:
        return lambda self, sub, who, partition, columns, at_ms: grant(self, sub, who, partition, columns, at_ms - 900)

    return patched(Leases, "grant", make)


def forget_a_failure() -> Any:
    """Return the messages of an expired lease without counting an attempt."""

    def make(_: Any) -> Any:
        def give_back(state: Any, ending: Any, lease: Lease, rows: Any, failure: Any) -> list[Any]:
            settling.release(state, lease, None)
            return []

        return give_back

    return patched(upkeep, "failed", make)


def _attempts_more(count: int) -> Any:
    """Change how many failed deliveries make a message a dead letter."""

    def make(used_up: Any) -> Any:
        return lambda policy, attempts: used_up(policy, attempts - count)

    return patched(settling, "used_up", make)


def die_too_soon() -> Any:
    """Bury a message one failed delivery before its policy says so."""
    return _attempts_more(-1)


def die_too_late() -> Any:
    """Deliver a message once more than its policy allows, and then bury it."""
    return _attempts_more(1)


def hand_out_again() -> Any:
    """Return some messages to a subscription without acks, though they were delivered."""

    def make(settle: Any) -> Any:
        def forgetful(self: Consumer, leases: list[Lease]) -> int:
            for lease in leases:
                if lease.token % 3 == 0:
                    settling.release(self._shard.state, lease, None)
            position: int = settle(self, [lease for lease in leases if lease.token % 3])
            return position

        return forgetful

    return patched(Consumer, "_settle_at_once", make)


def break_order() -> Any:
    """Deliver the messages of a pull in reverse order."""

    def make(first: Any) -> Any:
        def reverse(self: Fifo, n: int) -> Any:
            pairs, back = first(self, n)
            return Pairs(pairs.rank[::-1], pairs.offset[::-1]), back if back is None else back[::-1]

        return reverse

    return patched(Fifo, "_first", make)


def exceed_the_bound() -> Any:
    """Accept messages beyond the bound of a topic."""
    return patched(publishing, "make_room", lambda _: lambda topic, removals, messages, *rest, **more: messages)


def forget_a_repeat() -> Any:
    """Treat a repeated call as a new one."""
    return patched(Producers, "repeated", lambda _: lambda self, *call: None)


def commit_half() -> Any:
    """Make only the first part of a transaction visible."""

    def make(commit: Any) -> Any:
        def half(state: Any, key: str, now_us: int, stages: Any = None) -> Any:
            stage: OpenStage | None = state.stages.open.get(key)
            if stage is not None:
                del stage.parts[1:]
            return commit(state, key, now_us, stages)

        return half

    return patched(staging, "commit", make)


def lose_a_message() -> Any:
    """Lose messages when the index sorts."""

    def make(sorted_tail: Any) -> Any:
        def short(self: SortedRuns) -> Pairs:
            pairs = sorted_tail(self)
            return Pairs(pairs.rank[:3], pairs.offset[:3])

        return short

    return patched(SortedRuns, "_sorted_tail", make)


def replay_differently() -> Any:
    """Count one attempt too many on recovery."""

    def make(tries: Any) -> Any:
        def more(self: readers.Reader, offset: Any, now_ms: int) -> Any:
            attempts, first = tries(self, offset, now_ms)
            return (attempts if self.leased else attempts + 1), first

        return more

    return patched(readers.Reader, "_tries", make)


def confirm_too_soon() -> Any:
    """Confirm a group before it is written."""

    def make(append: Any) -> Any:
        async def hasty(self: DiskWriter, bodies: Any, expected: int) -> Any:
            from wherry.journal.engine import Appended  # noqa: PLC0415  a plant is no part of the tree

            if expected % 5 == 4:
                self.last += len(bodies)
                return Appended(self.last)
            return await append(self, bodies, expected)

        return hasty

    return patched(DiskWriter, "append", make)


@contextmanager
def hand_out_too_soon() -> Iterator[None]:
    """Deliver messages before they are durable, on a slow disk."""

    def make(deliver: Any) -> Any:
        return lambda self, *args: (deliver(self, *args)[0], 0)

    def as_rows(find: Any) -> Any:
        def ungated(self: BodyStore, *args: Any) -> Any:
            found = find(self, *args)
            return None if found is None else [each._replace(gate=0) for each in found]

        return ungated

    with (
        patched(BodyStore, "deliver", make),
        patched(BodyStore, "run", as_rows),
        patched(BodyStore, "few", as_rows),
        patched(world, "DiskFaults", _slow),
    ):
        yield


def forget_a_key() -> Any:
    """Journal and confirm an API key, but do nothing when it is applied."""
    return patched(apply, "_HANDLERS", lambda handlers: {**handlers, ops.PutKey: lambda step, op: None})


def forget_a_callback() -> Any:
    """Journal a callback, but do nothing when it is applied."""
    return patched(apply, "_HANDLERS", lambda handlers: {**handlers, ops.Watch: lambda step, op: None})


def lose_outcomes() -> Any:
    """Forget all outcomes of a topic when one was reported."""

    def make(told: Any) -> Any:
        def all_of_them(self: Outbox, places: Any, fates: Any) -> None:
            told(self, places, fates)
            self.outcomes.remove(self.outcomes.offsets())

        return all_of_them

    return patched(Outbox, "reported", make)


def flatter() -> Any:
    """Report every outcome as settled."""

    def make(ended: Any) -> Any:
        return lambda partition, offset: np.minimum(ended(partition, offset), SETTLED)

    return patched(fates, "ended", make)


def ignore_the_bytes() -> Any:
    """Ignore the bound of bytes of a log read."""

    def make(reach: Any) -> Any:
        return lambda bodies, ways, budget: reach(bodies, ways, budget._replace(bytes=1 << 40))

    return patched(span, "reach", make)


@contextmanager
def show_too_soon() -> Iterator[None]:
    """Show messages in the log before they are durable, on a slow disk."""

    def make(window: Any) -> Any:
        return lambda *args: window(*args)._replace(gate=0)

    with patched(broker_log, "window", make), patched(world, "DiskFaults", _slow):
        yield


def _slow(faults: Any) -> Any:
    return lambda **_: faults(delay_us_min=50_000, delay_us_max=400_000)


def skip_an_edge() -> Any:
    """Leave the last batch of a window out of a log read."""

    def make(between: Any) -> Any:
        def short(self: BodyStore, *args: Any) -> Any:
            cached, blocks = between(self, *args)
            return (cached[:-1] if len(cached) > 1 else cached), blocks

        return short

    return patched(BodyStore, "between", make)


def advance_too_far() -> Any:
    """Settle one message more than a log reader reports."""

    def make(advance: Any) -> Any:
        def further(state: Any, subscription: Any, positions: Any, now_us: int) -> Any:
            return advance(state, subscription, {number: at + 1 for number, at in positions.items()}, now_us)

        return further

    return patched(span, "advance", make)


def lose_an_advance() -> Any:
    """Confirm some advances without settling anything."""

    def make(advance: Any) -> Any:
        def once(state: Any, subscription: Any, positions: Any, now_us: int) -> Any:
            entries = advance(state, subscription, positions, now_us)
            return entries if now_us % 3 else []

        return once

    return patched(span, "advance", make)


def forget_a_stage() -> Any:
    """Leave the last stage out of a commit of several."""

    def make(commit: Any) -> Any:
        def fewer(state: Any, key: str, now_us: int, stages: Any = None) -> Any:
            return commit(state, key, now_us, stages[:-1] if stages is not None and len(stages) > 1 else stages)

        return fewer

    return patched(staging, "commit", make)


def commit_again() -> Any:
    """Treat a repeated commit with new stages as another one."""

    def make(commit: Any) -> Any:
        def anew(state: Any, key: str, now_us: int, stages: Any = None) -> Any:
            if stages is not None and all(each in state.stages.open for each in stages):
                state.stages.committed.pop(key, None)
            return commit(state, key, now_us, stages)

        return anew

    return patched(staging, "commit", make)


def stay_small() -> Any:
    """Confirm more partitions of a topic, but do not add them."""

    def make(handlers: Any) -> Any:
        def put(step: Any, op: ops.PutTopic) -> None:
            if op.number not in step.state.topics:
                handlers[ops.PutTopic](step, op)

        return {**handlers, ops.PutTopic: put}

    return patched(apply, "_HANDLERS", make)


PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "skip an fsync": (skip_sync, 0, ("ledger", "replay_equals_live", "acked_stays_acked", "BootRefused")),
    "confirm too soon": (confirm_too_soon, 0, ("ledger", "replay_equals_live", "acked_stays_acked", "BootRefused")),
    "hand out too soon": (hand_out_too_soon, 1, ("ledger",)),
    "drop an ack": (drop_an_ack, 1, ("acked_stays_acked",)),
    "deliver early": (deliver_early, 0, ("nothing_early",)),
    "ignore the fence": (ignore_the_fence, 3, ("fencing",)),
    "forget a dead letter": (forget_a_dead_letter, 1, ("ledger",)),
    "break key order": (break_key_order, 7, ("order_per_key",)),
    "end leases early": (end_leases_early, 1, ("one_lease_at_a_time",)),
    "forget a failure": (forget_a_failure, 0, ("failures_count",)),
    "die too soon": (die_too_soon, 27, ("dead_letters_tell_why",)),
    "die too late": (die_too_late, 0, ("attempts_end",)),
    "hand out again": (hand_out_again, 6, ("at_most_once",)),
    "break order": (break_order, 1, ("order_in_pull",)),
    "exceed the bound": (exceed_the_bound, 19, ("bounds_held",)),
    "forget a repeat": (forget_a_repeat, 0, ("dedup",)),
    "commit half": (commit_half, 4, ("all_or_nothing", "ledger")),
    "lose a message": (lose_a_message, 1, ("ledger",)),
    "replay differently": (replay_differently, 0, ("replay_equals_live",)),
    "forget a key": (forget_a_key, 0, ("keys_kept",)),
    "forget a callback": (forget_a_callback, 0, ("reported_at_last",)),
    "lose outcomes": (lose_outcomes, 0, ("reported_at_last",)),
    "flatter": (flatter, 0, ("fates_are_true",)),
    "ignore the bytes": (ignore_the_bytes, 3, ("log_within_bounds",)),
    "show too soon": (show_too_soon, 47, ("log_never_changes", "log_is_whole", "log_lag", "ledger")),
    "skip an edge": (skip_an_edge, 3, ("log_is_whole", "log_never_changes")),
    "advance too far": (advance_too_far, 27, ("log_lag", "log_is_lost_by_rule")),
    "lose an advance": (lose_an_advance, 3, ("log_lag", "leftover")),
    "forget a stage": (forget_a_stage, 3, ("all_or_nothing", "ledger", "log_is_whole")),
    "commit again": (commit_again, 3, ("dedup", "log_reads_once")),
    "stay small": (stay_small, 15, ("growth_stays",)),
    "promise too much": (promise_too_much, 0, ("guarantee",)),
    **ROUTE_PLANTS,
    **ROW_PLANTS,
    **AFTERMATH_PLANTS,
    **EXPIRY_PLANTS,
}
"""A name, the plant, a seed that is known to show it, and checkers of which one must find it."""
