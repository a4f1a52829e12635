"""The background duties of a shard: time, memory, checkpoints, and the journal's length.

memory over budget ──► flush to segments ──► checkpoint ──► trim the journal, remove garbage
journal long ─────────────────────────────►─┤
segment mostly dead ──► write it again ─────►─┘ after a while
"""

from __future__ import annotations

import asyncio
from functools import partial

from wherry.broker.shard import Shard
from wherry.core import snapshot, upkeep
from wherry.core.snapshot import StateImage
from wherry.journal import checkpoint as checkpoints
from wherry.journal.checkpoint import Checkpoint, StagedAt
from wherry.journal.files import Bytes
from wherry.journal.store import Held
from wherry.model.errors import Fenced, StorageError, WherryError, WriterFailed

TICK_MS = 1_000
ROOM_BYTES = 4_096
LONELY_MS = 60_000
GARBAGE_MS = 10_000
"""Since the last checkpoint before one is written for the sake of files that nothing needs any more."""
CHECKPOINT_BYTES = 256 << 20
"""Journal written since the last checkpoint before the next one: what recovery reads at most, more or less."""


class Housekeeper:
    """Runs until cancelled. A disk that is full or failing is no reason to stop here: it tries again later."""

    def __init__(self, shard: Shard, checkpoint_bytes: int = CHECKPOINT_BYTES) -> None:
        self._shard = shard
        self._checkpoint_bytes = checkpoint_bytes
        self._written = 0
        self._checkpointed = shard.writer.last
        self._last_slow_ms = 0
        self._last_checkpoint_ms = shard.clock.steady_ms()
        self._lonely: dict[int, int] = {}
        self.lock = asyncio.Lock()

    async def run(self) -> None:
        """Wake for time and for pressure, for ever."""
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
        wait_ms = upkeep.due_in_ms(shard.state, shard.now())
        if wait_ms == 0 and not shard.admits_settle(1):
            wait_ms = None  # it is due, and a full disk does not take it
        wait_ms = TICK_MS if wait_ms is None else min(max(wait_ms, 1), TICK_MS)
        shard.wake_at_ms = shard.clock.steady_ms() + wait_ms
        if shard.trouble is not None:
            await asyncio.sleep(TICK_MS / 1000)  # a disk that said no is not asked again at once
            return
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await shard.pressure.wait()
        except TimeoutError:
            pass
        shard.pressure.clear()

    def _do_time(self) -> bool:
        """What time calls for; whether a tick has passed, for duties that are rarer."""
        shard = self._shard
        now = shard.now()
        shard.upkeep(now)
        if now.steady_ms - self._last_slow_ms < TICK_MS:
            return False
        self._last_slow_ms = now.steady_ms
        for entry in upkeep.housekeeping(shard.state, now.wall_us):
            shard.commit([entry])
        self._remove_lonely(now.steady_ms)
        return True

    def _remove_lonely(self, steady_ms: int) -> None:
        """An ephemeral subscription that no consumer has joined for a while would hold bodies for ever."""
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
        long = shard.writer.stored_bytes() - self._written > self._checkpoint_bytes
        if long or shard.store.is_over():
            before = self._checkpointed if long else 0
            for group in shard.store.overflow(shard.committer.durable, before):
                await shard.store.seal(group, shard.wanted)
                shard.relieve()
            await self.checkpoint()

    async def _do_files(self) -> None:
        """One message that waits must not keep a whole segment: at most one is written again in a tick."""
        shard = self._shard
        if shard.files is None or await shard.store.rewrite(shard.wanted, shard.wants) or not shard.store.garbage:
            return
        if shard.clock.steady_ms() - self._last_checkpoint_ms >= GARBAGE_MS:
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write down the state, then let go of the journal and the files that it makes superfluous.

        It runs to its end, whoever waits for it: a write that was begun cannot be stopped, and the next checkpoint must
        not begin beside it.
        """
        task = self._shard.keep(self._checkpoint())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_look_away)
            raise

    async def _checkpoint(self) -> None:
        shard = self._shard
        if shard.files is None or (shard.committer.submitted == self._checkpointed and not shard.store.garbage):
            return
        async with self.lock:
            self._last_checkpoint_ms = shard.clock.steady_ms()
            shard.store.sweep(shard.wants)
            garbage, shard.store.garbage = shard.store.garbage, []
            position = shard.committer.submitted
            state, held, staged = snapshot.dump(shard.state), shard.store.held(), shard.staged_rows()
            try:
                floor, parts = await shard.files.compute(partial(_drawn_up, position, state, held, staged))
                await shard.committer.wait(position)
                await checkpoints.write(shard.files, position, parts)
                self._checkpointed = position
                if shard.metrics is not None:
                    shard.metrics.checkpoints += 1
                await shard.writer.trim(floor)
                self._written = shard.writer.stored_bytes()
                if garbage:
                    await shard.files.remove(garbage)
            except BaseException:
                shard.store.garbage += garbage  # removing a file twice does no harm
                raise

    async def last_checkpoint(self) -> None:
        """At a clean close: recovery then has nothing to replay. A disk that is full or broken does not matter."""
        try:
            await self.checkpoint()
        except (WherryError, OSError):
            return


def _look_away(task: asyncio.Task[None]) -> None:
    """Nobody waits for it any more; if it failed, the next one will too, and somebody waits for that."""
    if not task.cancelled():
        task.exception()


def _drawn_up(position: int, state: StateImage, held: Held, staged: list[StagedAt]) -> tuple[int, list[Bytes]]:
    """The lowest journal position that a checkpoint still needs, and its bytes. A thread runs this."""
    floor = min([position + 1, held.floor() or position + 1, *(row[2] for row in staged)])
    return floor, checkpoints.encode(Checkpoint(position, floor, state, held.image(), staged))
