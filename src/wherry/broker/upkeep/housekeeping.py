"""The background work of a shard: time, memory, checkpoints, and the length of the journal.

memory over budget ──► flush to segments ──► checkpoint ──► trim the journal, remove garbage
journal long ─────────────────────────────►─┤
disk full, a journal file dead ───────────►─┤ at once
segment dead ─────────────────────────────►─┤ after a while, sooner the more there is to win
segment mostly dead ──► write it again ───►─┘
"""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from typing import Any

from wherry.broker.commit.shard import Shard
from wherry.core.decide import upkeep
from wherry.core.state import snapshot
from wherry.core.state.snapshot import StateImage
from wherry.journal import checkpoint as checkpoints
from wherry.journal.bodies.image import StoreSnapshot
from wherry.journal.checkpoint import Checkpoint, StagedAt
from wherry.journal.disk.files import Bytes
from wherry.journal.disk.reserve import SpaceReserve
from wherry.model.errors import Fenced, StorageError, WherryError, WriterFailed

TICK_MS = 1_000
ROOM_BYTES = 4_096
LONELY_MS = 60_000
GARBAGE_MS = 10_000
"""Time since the last checkpoint before one is written only to remove files that are not needed."""
GARBAGE_BYTES = 64 << 20
"""With so many bytes of such files, or a full disk, it is written as soon as `COST_FACTOR` allows."""
COST_FACTOR = 20
"""Such checkpoints take at most one part in so many of the time, however large the state is."""
RESERVE_FACTOR = 2
"""Space is set aside for a checkpoint so many times as large as the last one."""
GAIN_BYTES = 256 << 20
"""For each of these bytes that could be freed, one segment more is rewritten in a tick, in at most half of it."""
CHECKPOINT_BYTES = 256 << 20
"""Journal written since the last checkpoint before the next one: what recovery reads at most, more or less."""


class Housekeeper:
    """Runs until cancelled. It does not stop for a full or failing disk, and tries again later."""

    def __init__(self, shard: Shard, checkpoint_bytes: int = CHECKPOINT_BYTES) -> None:
        self._shard = shard
        self._checkpoint_bytes = checkpoint_bytes
        self._written = 0
        self._last_slow_ms = 0
        self._last_checkpoint_ms = shard.clock.steady_ms()
        self._cost_ms = 0
        """The time that the last checkpoint took."""
        self._reserve = None if shard.files is None else SpaceReserve(shard.files, shard.writer.reserve_bytes)
        self._reclaiming: asyncio.Task[bool] | None = None
        self._vain_until_ms = 0
        """No attempt to free journal before this time, since the last one failed or freed nothing."""
        self._few_at_ms = 0
        """When a refused publish may have messages moved to segments again."""
        shard.reclaim = self.reclaim
        self._lonely: dict[int, int] = {}
        self.lock = asyncio.Lock()

    async def run(self) -> None:
        """Work for ever, each time that a deadline passes or memory is short."""
        if self._reserve is not None:
            await self._reserve.keep()
        while True:
            await self._sleep()
            try:
                is_tick = self._do_time()
                await self._do_space()
                if is_tick:
                    await self._do_files()
                self._shard.trouble = None
            except (WriterFailed, Fenced):
                raise
            except (StorageError, OSError) as fault:
                # Segments and checkpoints are written whole or not at all, so nothing is lost: try again later.
                self._shard.trouble = fault
                await self._shard.writer.make_room(ROOM_BYTES)
            finally:
                self._shard.relieve()

    async def _sleep(self) -> None:
        shard = self._shard
        wait_ms = shard.due_in_ms(shard.now())
        if wait_ms == 0 and not shard.admits_settle(1):
            wait_ms = None  # it is due, and a full disk does not take it
        wait_ms = TICK_MS if wait_ms is None else min(max(wait_ms, 1), TICK_MS)
        shard.wake_at_ms = shard.clock.steady_ms() + wait_ms
        if shard.trouble is not None:
            await asyncio.sleep(TICK_MS / 1000)  # do not try a failing disk again at once
            return
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await shard.housekeeping_due.wait()
        except TimeoutError:
            pass
        shard.housekeeping_due.clear()

    def _do_time(self) -> bool:
        """Do what is due; return whether a tick has passed, for work that is rarer."""
        shard = self._shard
        now = shard.now()
        shard.upkeep(now, about=())
        if now.steady_ms - self._last_slow_ms < TICK_MS:
            return False
        self._last_slow_ms = now.steady_ms
        for entry in upkeep.housekeeping(shard.state, now.wall_us):
            shard.commit([entry])
        self._remove_lonely(now.steady_ms)
        return True

    def _remove_lonely(self, steady_ms: int) -> None:
        """Remove ephemeral subscriptions without consumers, which would hold bodies for ever."""
        lonely = [each for each in self._shard.state.subscriptions.values() if each.number < 0 and not each.consumers]
        self._lonely = {each.number: self._lonely.get(each.number, steady_ms) for each in lonely}
        for each in lonely:
            if steady_ms - self._lonely[each.number] >= LONELY_MS:
                self._shard.remove_subscription(each, f"it is ephemeral, and had no consumer for {LONELY_MS} ms")

    async def _do_space(self) -> None:
        shard = self._shard
        if shard.files is None:
            await shard.writer.trim(shard.committer.durable + 1)
            return
        await self._do_full_disk()
        if shard.expiry_refused:  # the disk may have space for another file, which only a publish would ask for
            await shard.writer.make_room(shard.writer.entry_bytes_max + shard.room.kept_for_settles())
        long = shard.writer.stored_bytes() - self._written > self._checkpoint_bytes
        if long or shard.store.is_over():
            before = shard.checkpointed if long else 0
            for group in shard.store.overflow(shard.committer.durable, before):
                await shard.store.seal(group, shard.wanted)
                shard.relieve()
            await self.checkpoint()

    async def _do_full_disk(self) -> None:
        """Free journal before a publish has to be refused; before a flush too, which needs space itself."""
        shard = self._shard
        if shard.writer.is_short() and self._is_time(TICK_MS):
            await self.reclaim()

    async def _move_few(self) -> None:
        """Move waiting messages to segments where that frees more journal than it costs."""
        shard = self._shard
        assert shard.files is not None
        size_max = shard.files.free_bytes() // 2
        for group in shard.store.few_before(shard.writer.edges(), shard.committer.durable, size_max):
            await shard.store.seal(group, shard.wanted)

    def _gain(self) -> int:
        """Estimate how much journal a checkpoint would free now; takes microseconds."""
        shard = self._shard
        staged = [position for position, _ in shard.staged.values()]
        floor = min([shard.committer.submitted + 1, *staged, *filter(None, [shard.store.oldest()])])
        return shard.writer.reclaimable(floor)

    async def reclaim(self) -> bool:
        """Free journal by a checkpoint, if one would; return whether to check for room again.

        Calls that are short of room at the same time wait for the same checkpoint.
        """
        shard = self._shard
        if self._reclaiming is None or self._reclaiming.done():
            now_ms = shard.clock.steady_ms()
            if shard.files is None or shard.committer.closing or now_ms < self._vain_until_ms:
                return False
            if now_ms < self._few_at_ms and not self._gain():
                return False
            self._reclaiming = shard.keep(self._reclaim())
            self._reclaiming.add_done_callback(_look_away)
        return await asyncio.shield(self._reclaiming)

    async def _reclaim(self) -> bool:
        try:
            if not self._gain():
                self._few_at_ms = self._shard.clock.steady_ms() + TICK_MS
                await self._move_few()
                if not self._gain() and not await self._reserves_too_much():
                    return False
            await self.checkpoint()
            won = not self._gain()
        except (WriterFailed, Fenced):
            raise
        except (StorageError, OSError) as fault:
            self._shard.trouble, won = fault, False
        if not won:
            self._vain_until_ms = self._shard.clock.steady_ms() + TICK_MS
        return won

    async def _reserves_too_much(self) -> bool:
        """Return whether a checkpoint fits into the space set aside, so that a journal file can be reused."""
        shard = self._shard
        assert self._reserve is not None
        is_old = shard.committer.submitted != shard.checkpointed and self._is_time(TICK_MS)
        return is_old and await self._reserve.spare_bytes() >= shard.writer.file_bytes

    async def _do_files(self) -> None:
        """Rewrite mostly dead segments and remove dead ones, the faster the more bytes that frees."""
        shard = self._shard
        if shard.files is None or self._reserve is None:
            return
        gain = shard.store.find_sparse(shard.wants)
        until_ms = shard.clock.steady_ms() + TICK_MS // 2
        for _ in range(1 + gain // GAIN_BYTES):
            if not await shard.store.rewrite(shard.wanted, shard.wants):
                break
            if shard.clock.steady_ms() >= until_ms or shard.housekeeping_due.is_set():
                break
        much = shard.store.garbage_bytes >= GARBAGE_BYTES or shard.writer.is_short()
        if shard.store.garbage and self._is_time(TICK_MS if much else GARBAGE_MS):
            await self.checkpoint()
        await self._reserve.keep()

    def _is_time(self, least_ms: int) -> bool:
        """Return whether the last checkpoint is long enough ago for one that is useful, not necessary."""
        since_ms = self._shard.clock.steady_ms() - self._last_checkpoint_ms
        return since_ms >= max(least_ms, COST_FACTOR * self._cost_ms)

    async def checkpoint(self) -> None:
        """Write a checkpoint, then remove journal and files that it makes superfluous.

        A checkpoint runs to its end even if its caller is cancelled: a write that was begun cannot be stopped, and the
        next checkpoint must not begin beside it.
        """
        task = self._shard.keep(self._checkpoint())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_look_away)
            raise

    async def _checkpoint(self) -> None:
        shard = self._shard
        if shard.files is None or not self._has_changes():
            return
        async with self.lock:
            began_ms = shard.clock.steady_ms()
            shard.store.sweep(shard.wants)
            garbage, shard.store.garbage = shard.store.garbage, []
            garbage_bytes, shard.store.garbage_bytes = shard.store.garbage_bytes, 0
            position = shard.committer.submitted
            state, held, staged = snapshot.dump(shard.state), shard.store.snapshot(), shard.staged_rows()
            try:
                floor, parts = await shard.files.compute(partial(_drawn_up, position, state, held, staged))
                await shard.committer.wait(position)
                await self._put(position, parts)
                shard.checkpointed = position
                if shard.metrics is not None:
                    shard.metrics.checkpoints += 1
                await shard.writer.trim(floor)
                self._written = shard.writer.stored_bytes()
                if garbage:
                    await shard.files.remove(garbage)
            except BaseException:
                shard.store.garbage += garbage  # removing a file twice is harmless
                shard.store.garbage_bytes += garbage_bytes
                raise
            finally:
                self._last_checkpoint_ms = shard.clock.steady_ms()
                self._cost_ms = self._last_checkpoint_ms - began_ms

    def _has_changes(self) -> bool:
        """Return whether a checkpoint would differ from the last, or free files that the last one needs."""
        shard = self._shard
        return shard.committer.submitted != shard.checkpointed or bool(shard.store.garbage) or self._gain() > 0

    async def _put(self, position: int, parts: list[Bytes]) -> None:
        """Write a checkpoint, into the space set aside if the disk is full; then set space aside for the next."""
        assert self._shard.files is not None and self._reserve is not None
        try:
            await checkpoints.write(self._shard.files, position, parts)
        except OSError as fault:
            if fault.errno not in (errno.ENOSPC, errno.EDQUOT) or not await self._reserve.spend():
                raise
            await checkpoints.write(self._shard.files, position, parts)
        await self._reserve.keep(RESERVE_FACTOR * sum(map(len, parts)))

    async def last_checkpoint(self) -> None:
        """Write a checkpoint at a clean close, so that recovery has nothing to replay; ignore a full or broken disk.

        A flush that is under way ends first, since nothing may write to the directory once it is released.
        """
        if self._reclaiming is not None:
            await asyncio.wait([self._reclaiming])
        try:
            await self.checkpoint()
        except (WherryError, OSError):
            return


def _look_away(task: asyncio.Task[Any]) -> None:
    """Ignore the failure of a checkpoint whose caller is gone: the next one will fail too, and has a caller."""
    if not task.cancelled():
        task.exception()


def _drawn_up(position: int, state: StateImage, held: StoreSnapshot, staged: list[StagedAt]) -> tuple[int, list[Bytes]]:
    """Return the lowest journal position that a checkpoint still needs, and its bytes. A thread runs this."""
    floor = min([position + 1, held.floor() or position + 1, *(row[2] for row in staged)])
    return floor, checkpoints.encode(Checkpoint(position, floor, state, held.image(), staged))
