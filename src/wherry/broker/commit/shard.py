"""Own one journal and its state: take decisions of the core, and write, apply and carry out the entries they return.

`_write` applies each entry to the state, queues its bytes for the journal and carries out its effects (bodies to the
store, consumers woken), without an await between these steps. Nothing of the entry is on disk yet at that moment:
callers get a position, and wait at the committer until it is durable before they answer (ADR 0003). Apply comes first,
so that an entry which cannot be applied never reaches the journal.

`decide` awaits before it writes: for memory, then for bodies that the decision needs and for room on the disk. The
state may change during a wait, so the decision is made again after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from wherry.broker.clock import Clock
from wherry.broker.commit.commit import Committer
from wherry.broker.commit.planned import PlannedWay
from wherry.broker.commit.room import JournalRoom
from wherry.broker.commit.turn import Turn
from wherry.broker.waiting.arrivals import Arrivals
from wherry.broker.waiting.pending_outcomes import PendingOutcomes
from wherry.broker.waiting.slices import Slices
from wherry.broker.waiting.waiters import Waiters
from wherry.broker.waiting.watches import Watches
from wherry.core.apply.apply import apply
from wherry.core.apply.runs import apply_plain
from wherry.core.apply.step import Effects
from wherry.core.decide import upkeep
from wherry.core.decide.forwarding import Forwarder
from wherry.core.decide.leasing import Now
from wherry.core.state.bodies import Cold, together
from wherry.core.state.lease import Lease
from wherry.core.state.state import State, SubscriptionState, TopicState
from wherry.journal.bodies.body import adopt
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.store import BodyStore
from wherry.journal.checkpoint import StagedAt
from wherry.journal.codec import Packed, encode
from wherry.journal.disk.files import Files
from wherry.journal.engine import Writer
from wherry.model import ops
from wherry.model.errors import CutOff, DiskFull, LimitReached, StorageError, TooLarge, WherryError, WriterFailed
from wherry.model.ipc import ByteChunks
from wherry.model.ops import Entry
from wherry.model.row_batch import RowBatch

if TYPE_CHECKING:
    from wherry.broker.metrics.metrics import Metrics
    from wherry.broker.metrics.tracing import Tracing

Int64: TypeAlias = npt.NDArray[np.int64]
T = TypeVar("T")
Choice: TypeAlias = Callable[[Now], tuple[list[Entry], T]]
"""A decision: entries and an answer. It may be made more than once before its entries are written."""

HARD_CACHE_FACTOR = 2
"""Producers wait when memory holds this many times its budget and the flush has not caught up."""

ROOM_TRIES = 64
"""How often a call that finds no room on the disk tries again, while others write."""

ROUND_MIN_MS, ROUND_MS = 2, 10
"""The least and the most time from one round to the next. Messages expire at most so late, unless a decision needs it
sooner: one entry for hundreds of queues, and not one for each queue and millisecond. The first message that expires
after a pause is not late at all."""

TOPICS_A_MS = 4
"""Topics of a round for each millisecond until the next: rounds take a part of the loop, however many topics there are,
and come the more seldom the later they are."""

REFUSED_MS = 100
"""When the next round comes after one that found no room in the journal for all that has expired."""

CUT_OFF_REASONS_MAX = 10_000


class _NoRoom(Exception):
    """The journal has no room for entries of `size` bytes: `left` bytes are free."""

    def __init__(self, size: int, entries: int, left: int) -> None:
        super().__init__()
        self.size, self.entries, self.left = size, entries, left


class Shard:
    """One journal, the state that its entries lead to, and the bodies."""

    def __init__(self, state: State, store: BodyStore, writer: Writer, files: Files | None, clock: Clock) -> None:
        self.state = state
        self.store = store
        self.writer = writer
        self.files = files
        self.clock = clock
        self.turn = Turn()
        self.committer = Committer(writer, self._failed, self.turn)
        self.room = JournalRoom(writer, self.committer, store)
        self.waiters = Waiters(state, clock, self.turn)
        self.planned = PlannedWay(self)
        self.watches = Watches(state)
        self.arrivals = Arrivals()
        self.slices = Slices()
        self.pending_outcomes = PendingOutcomes(state, self.committer, self.keep)
        self.staged: dict[tuple[str, int], tuple[int, int]] = {}
        self.cut_off_reasons: dict[int, str] = {}
        """Why subscriptions were cut off, the last of them."""
        self.housekeeping_due = asyncio.Event()
        """Set to have the housekeeper run at once: memory is over its budget, or a time comes before its next run."""
        self.checkpointed = 0
        """Position of the last durable checkpoint."""
        self.reclaim: Callable[[], Awaitable[bool]] = _nothing
        """Makes room in the journal on a full disk, where possible; returns whether to try again."""
        self.reserved_at = 0
        """Position of the last entry that reserved offsets for transient messages."""
        self.opened_at = 0
        """Position of the barrier that this owner began with."""
        self.wake_at_ms = 0
        """When the housekeeper will run again, by the monotonic clock."""
        self.expiry_refused = False
        """Whether the last round found no room in the journal for all that has expired."""
        self.trouble: Exception | None = None
        """Why the last flush or checkpoint failed; None once one has succeeded."""
        self.metrics: Metrics | None = None
        self.tracing: Tracing | None = None
        self.on_push: Callable[[int], None] | None = None
        """Called with the number of each subscription whose webhook was added or changed."""
        self.forwarder: Forwarder | None = None
        """Makes the copies of messages that expire, to be published at once where that is possible."""
        self.on_bury: Callable[[str], None] | None = None
        """Called with the name of each topic that has new dead letters."""
        self._relief: asyncio.Future[None] | None = None
        self._upkeep_room = upkeep.Room(self.room.admits_settle, self.room.admits_expiry)
        self._upkept: tuple[int, int] = (-1, -1)
        """When `upkeep` was last called, by both clocks in milliseconds."""
        self._round_at_ms = 0
        """When messages may next expire in all topics, by the monotonic clock; sooner before a decision about all."""
        self._compared: tuple[int | None, ...] = ()
        """What `_is_due_before_wake` compared last: nearly every publish finds the same times."""
        self._kept: set[asyncio.Task[Any]] = set()

    def now(self) -> Now:
        """Return both clocks, read once for a decision."""
        return Now(self.clock.wall_us(), self.clock.steady_ms())

    def upkeep(self, now: Now, about: Iterable[str] | None = None) -> None:
        """Do what is due by now; called before every decision.

        Leases that are over end. Messages expire in the topics that the decision is `about` (None: in all topics), so
        that no decision sees an expired message; in other topics at most every `ROUND_MS`, in one entry for all.
        """
        now_ms, expiry_times = now.wall_us // 1000, self.state.expiry_times
        expires = expiry_times.is_due(now_ms)
        if not expires:
            self.expiry_refused = False
            if not self.state.leases.may_end(now.steady_ms):
                return
        moment = (now_ms, now.steady_ms)
        if moment == self._upkept and not expires:
            return
        self._upkept = moment
        topics: list[int] | None = None
        if about is not None and now.steady_ms < self._round_at_ms:
            topics = self.state.catalog.found_topics(about)
        elif expires:
            pause_ms = min(ROUND_MS, max(ROUND_MIN_MS, expiry_times.due_topics() // TOPICS_A_MS))
            self._round_at_ms = now.steady_ms + pause_ms
        forwarder = self.forwarder if self.tracing is None else None  # a trace shows dead letters
        for entry in upkeep.due(self.state, now, self.clock.entropy, self._upkeep_room, topics, forwarder):
            self.commit([entry])
        if topics is None:
            self.expiry_refused = expiry_times.is_due(now_ms)
            if self.expiry_refused:
                self._round_at_ms = now.steady_ms + REFUSED_MS
        self.wake()  # leases that ended give room to waiting consumers

    def wake(self) -> None:
        """Wake waiting pulls that may get messages by now, and the housekeeper if held messages expire by now.

        To be called after leases have changed.
        """
        state = self.state
        if state.to_wake:
            self.waiters.wake()
        if state.expiry_times.may_be_due_now() and self._is_due_before_wake():
            self.housekeeping_due.set()

    def due_in_ms(self, now: Now) -> int | None:
        """Return the milliseconds until a lease ends or messages may expire in a round; None for never."""
        waits = [upkeep.lease_ends_in_ms(self.state, now), upkeep.expires_in_ms(self.state, now)]
        if waits[1] is not None:
            waits[1] = max(waits[1], self._round_at_ms - now.steady_ms)
        return min((wait_ms for wait_ms in waits if wait_ms is not None), default=None)

    def admits_settle(self, messages: int) -> bool:
        """Return whether an entry that settles so many messages fits."""
        return self.room.admits_settle(messages)

    def decide_at_once(self, choose: Choice[T], about: Iterable[str] | None = None) -> tuple[int, T] | None:
        """Make a decision that adds messages, as `decide` does; return None, with nothing written, if it must wait."""
        if not self.takes_messages():
            return None
        try:
            return self._decide(choose, about)
        except (Cold, _NoRoom):
            return None

    def takes_messages(self) -> bool:
        """Return whether messages may be added now, without a wait for the disk or for memory."""
        return not self.committer.is_full() and not self._is_memory_full()

    async def decide(self, choose: Choice[T], about: Iterable[str] | None = None) -> tuple[int, T]:
        """Make a decision that adds messages: load what it needs, find room, write, apply.

        Returns the position to wait for and the answer. `choose` may be called more than once; it changes nothing.
        `about` names the topics whose messages it depends on; None stands for all topics (`upkeep`).
        """
        if self.committer.is_full():
            await self.committer.wait_for_room()
        if self._is_memory_full():
            await self._wait_for_memory()
        colds: list[Cold] = []
        tries = 0
        while True:
            try:
                return self._decide(choose, about)
            except Cold as cold:
                colds = together(colds, cold)
                await self.store.load(*colds)
            except _NoRoom as full:
                # Other calls may use the room before this one continues: then room is made again.
                tries += 1
                if tries > ROOM_TRIES or not await self._make_room(full.size, full.entries):
                    raise DiskFull(full.size, full.left) from None

    def _decide(self, choose: Choice[T], about: Iterable[str] | None) -> tuple[int, T]:
        """Decide, write and apply; raise `Cold` or `_NoRoom`, with nothing written, if something is missing."""
        now = self.now()
        self.upkeep(now, about)
        entries, answer = choose(now)
        self._check_memory(entries)
        encoded = self._encoded(entries)
        size = encoded[0][1] if len(encoded) == 1 else sum(each[1] for each in encoded)
        left = self.room.left(size, len(encoded), essential=False) if size else None
        if left is not None:
            raise _NoRoom(size, len(encoded), left)
        return self._write(encoded), answer

    async def admit_settle(self, messages: int) -> None:
        """Make sure that settling so many messages can be journaled, before anything is taken out of a lease."""
        size = self.room.bytes_of_settle(messages)
        tries = 0
        while (left := self.room.left(size, 1, essential=True)) is not None:
            tries += 1
            made = tries <= ROOM_TRIES and await self._make_room(size, 1)
            if not made and self.room.left(size, 1, essential=True) is not None:
                raise DiskFull(size, left)

    async def _make_room(self, size: int, entries: int) -> bool:
        """Make room, and return whether to try again: room was made, or what others had queued is written by now."""
        committer = self.committer
        queued = committer.submitted - committer.durable
        wanted = size + committer.pending_bytes + self.room.kept_for_settles()
        if await self.writer.make_room(wanted, entries + queued) or await self.reclaim():
            return True
        if committer.submitted == committer.durable:
            return queued > 0
        await committer.wait(committer.submitted)
        return True

    def commit(self, entries: Sequence[Entry]) -> int:
        """Write and apply entries that add no messages; return the position to wait for (0: nothing to wait for).

        Raises `DiskFull`, with nothing changed, when not even the space kept back for them is left.
        """
        encoded = self._encoded(entries)
        size = encoded[0][1] if len(encoded) == 1 else sum(each[1] for each in encoded)
        left = self.room.left(size, len(encoded), essential=True) if size else None
        if left is not None:
            raise DiskFull(size, left)
        return self._write(encoded)

    def _encoded(self, entries: Sequence[Entry]) -> list[tuple[ByteChunks, int, Entry]]:
        encoded: list[tuple[ByteChunks, int, Entry]] = []
        for entry in entries:
            if entry.volatile:
                kept = [batch if isinstance(batch, RowBatch) else adopt(batch)[0] for batch in entry.batches]
                encoded.append(([], 0, Entry(entry.at_us, entry.ops, kept, volatile=True)))
                continue
            parts, size, own = encode(entry)
            if size > self.writer.entry_bytes_max:
                raise TooLarge("the call", size, self.writer.entry_bytes_max)
            encoded.append((parts, size, own))
        return encoded

    def _write(self, encoded: list[tuple[ByteChunks, int, Entry]]) -> int:
        position = 0
        awake: dict[int, None] = {}
        for parts, size, entry in encoded:
            self.committer.check()
            try:
                effects = apply(self.state, entry)
            except Exception as fault:
                self.give_up(fault)
                raise
            if not entry.volatile:
                position = self.committer.submit(parts, size)
                for op in entry.ops:
                    if type(op) is ops.Reserve:
                        self.reserved_at = position
            # Transient messages are in no entry, but they came with one, and their offsets depend on one.
            gate = max(position, self.reserved_at) if entry.volatile else position
            self._carry_out(effects, 0 if entry.volatile else position, gate)
            if self.tracing is not None:
                self.tracing.written(entry, position)
            awake |= effects.maybe_ready
        self.wake()
        for topic in awake:
            self._cut_off_laggards(topic)
        return position

    def give_up(self, fault: Exception) -> None:
        """Stop, since an entry could not be applied.

        It is not journaled, so replay never meets it; but the state may be half changed, and must not be used.
        """
        self.committer.fail(WriterFailed(f"an entry could not be applied: {fault!r}"))

    def replay(self, position: int, entry: Entry) -> None:
        """Apply an entry from the journal, on recovery. The next entry records which subscriptions this one cut off."""
        self._carry_out(apply(self.state, entry), position, position)

    def replay_plain(self, run: Sequence[tuple[int, int, ops.Publish, Packed]]) -> None:
        """Apply entries from the journal that each add one batch to a fifo: position, time, operation and batch."""
        apply_plain(self.state, [(at_us, op) for _, at_us, op, _ in run])
        put = self.store.put
        for position, at_us, op, packed in run:
            put(CachedBatch(op.topic, op.partition, op.base, packed, at_us, position, 0, position, op.count))

    def _carry_out(self, effects: Effects, position: int, gate: int) -> None:
        """Carry out the effects of an entry at a position (or 0); its messages are hidden until `gate` is durable."""
        for key, part, index in effects.staged:
            self.staged[key, part] = (position, index)
        for topic, number, base, batch, published_us, index, staged in effects.stored:
            kept_at = (position, index) if staged is None else self.staged.pop(staged)
            self.store.put(CachedBatch(topic, number, base, batch, published_us, *kept_at, gate))
            if self.arrivals:
                self.arrivals.came(topic)
        for key in effects.ended:
            for place in [place for place in self.staged if place[0] == key]:
                del self.staged[place]
        for (topic, number), partition in effects.touched.items():
            self.store.drop(topic, number, partition.droppable())
        for topic in effects.dropped_topics:
            self.store.drop_topic(topic)
            self.arrivals.came(topic)
            self.pending_outcomes.forget_topic(topic)
        self._report(effects, gate)
        if self.store.is_over() or (effects.stored and self.state.expiry_times and self._is_due_before_wake()):
            self.housekeeping_due.set()

    def _report(self, effects: Effects, position: int) -> None:
        """Report the effects: to callers that wait for a fate, to the outcomes for producers, to webhooks."""
        for number, why in effects.unsubscribed:
            self.cut_off_reasons[number] = why or "the subscription was deleted"
            while len(self.cut_off_reasons) > CUT_OFF_REASONS_MAX:
                del self.cut_off_reasons[next(iter(self.cut_off_reasons))]
        if self.watches:
            self.watches.update(effects)
        if effects.outcomes:
            self.pending_outcomes.add(position, effects.outcomes)
        if self.on_push is not None:
            for number in effects.webhooks_changed:
                self.on_push(number)
        if self.on_bury is not None:
            for number in effects.buried:
                if number in self.state.topics:
                    self.on_bury(self.state.topics[number].config.name)

    def _is_due_before_wake(self) -> bool:
        state = self.state
        known = (state.expiry_times.next_ms(), state.leases.next_deadline_ms(), self._round_at_ms, self.wake_at_ms)
        if known == self._compared:
            return False
        self._compared = known
        now = self.now()
        wait_ms = self.due_in_ms(now)
        return wait_ms is not None and now.steady_ms + wait_ms < self.wake_at_ms

    def wake_housekeeper_by(self, deadline_ms: int) -> None:
        """Have the housekeeper run when a lease ends, so that waiting consumers get its messages at once."""
        if deadline_ms < self.wake_at_ms:
            self.housekeeping_due.set()

    def handed(self, topic: TopicState, leases: list[Lease]) -> None:
        """Report that messages are handed over, to callers and producers that want to know."""
        for lease in leases if self.watches or len(topic.outbox.watched) else ():
            self.watches.handed(topic.number, lease.partition, lease.offset)
            self.pending_outcomes.handed(topic, lease.partition, lease.offset, self.now().wall_ms)

    def _cut_off_laggards(self, number: int) -> None:
        topic = self.state.topics.get(number)
        if topic is None:
            return
        for subscription in upkeep.overrun(self.state, topic):
            if subscription.number not in self.state.subscriptions:
                continue  # removed together with another one: each removal looks for laggards too
            if not self.admits_settle(1):
                return  # later: the entry that led here is written, and must not fail any more
            why = "it fell further behind than the buffer it declared"
            self.remove_subscription(subscription, why)

    def remove_subscription(self, subscription: SubscriptionState, why: str) -> int:
        """Delete a subscription; `why` is the reason its consumers get, empty when a client deleted it."""
        op = ops.DeleteSubscription(subscription.number, why, keep_dead=bool(why) and subscription.config.durable)
        entry = Entry(self.now().wall_us, [op], volatile=not subscription.config.durable)
        return self.commit([entry])

    def check_subscription(self, subscription: SubscriptionState) -> None:
        """Raise `CutOff` if the subscription is deleted."""
        if subscription.number not in self.state.subscriptions:
            name = f"subscription {subscription.config.topic}/{subscription.config.name}"
            raise CutOff(name, self.cut_off_reasons.get(subscription.number, "its topic was deleted"))

    def _check_memory(self, entries: Sequence[Entry]) -> None:
        """Refuse messages beyond the budget of memory that cannot leave it: transient ones, or all without a disk."""
        stays, new = self.files is None, 0
        for entry in entries:
            if entry.volatile or stays:
                for batch in entry.batches:
                    new += batch.nbytes
        total = new + (self.store.cached_bytes if stays else self.store.transient_bytes)
        if new and total > self.store.cache_bytes_max:
            what = "memory of the broker" if stays else "memory for transient messages"
            raise LimitReached(what, self.store.cache_bytes_max, total)

    def keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work to its end, even if its caller is cancelled."""
        task = asyncio.create_task(work)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task

    def _is_memory_full(self) -> bool:
        """Return whether a producer must wait until messages are moved from memory to the disk."""
        return self.store.is_over() and self.store.cached_bytes > HARD_CACHE_FACTOR * self.store.cache_bytes_max

    async def _wait_for_memory(self) -> None:
        while self._is_memory_full():
            self.committer.check()
            self.housekeeping_due.set()
            if self._relief is None:
                self._relief = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._relief)
            if self.trouble is not None and self.store.is_over():
                raise StorageError(f"memory is full, and its messages cannot be moved to the disk: {self.trouble}")

    def relieve(self) -> None:
        """Wake producers that wait for memory: a flush is done, or failed."""
        if self._relief is not None:
            self._relief.set_result(None)
            self._relief = None

    def _failed(self, fault: WherryError) -> None:
        self.waiters.wake_all()
        self.watches.wake_all()
        self.arrivals.wake_all()
        self.relieve()

    def wanted(self, topic: int, partition: int, offsets: Int64) -> npt.NDArray[np.bool_]:
        """Return which bodies a subscription still needs."""
        state = self.state.topics.get(topic)
        found = state.partitions.get(partition) if state is not None else None
        if found is None:
            return np.zeros(len(offsets), np.bool_)
        wanted = ~found.released.contains(offsets)
        for reader in found.ephemeral.values():
            wanted |= ~reader.settled.contains(offsets)
        return wanted

    def wants(self, topic: int, partition: int, start: int, stop: int) -> int:
        """Return how many bodies of `start..stop` are needed at most, by counts alone, however many there are."""
        state = self.state.topics.get(topic)
        found = state.partitions.get(partition) if state is not None else None
        if found is None:
            return 0
        done = [found.released, *(reader.settled for reader in found.ephemeral.values())]
        return sum(stop - start - each.count_below(stop) + each.count_below(start) for each in done)

    def staged_rows(self) -> list[StagedAt]:
        """Return where the bodies of open stages are, for a checkpoint."""
        return [(key, part, position, index) for (key, part), (position, index) in self.staged.items()]


async def _nothing() -> bool:
    return False
