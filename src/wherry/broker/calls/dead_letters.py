"""Dead letters: list, count, redrive at a rate, discard, forward, and audit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pyarrow as pa

from wherry.broker.calls import browse
from wherry.broker.calls.calls import BrokerCalls
from wherry.core.decide import dead_letters, leasing, publishing
from wherry.core.decide.volatile import joined
from wherry.core.inspect import dead_kinds
from wherry.core.inspect.dead_kinds import DeadGroup
from wherry.core.state.reader import DEAD
from wherry.model import check
from wherry.model.calls.dead import COPIED, AuditRecord, DeadFilter, DeadKinds, DeadRow
from wherry.model.calls.listing import Page
from wherry.model.calls.publish import PublishOptions
from wherry.model.errors import NotFound
from wherry.model.ops import Entry
from wherry.model.schema import Publishable, compact

REDRIVES_A_SECOND = 10
"""Steps a second of a redrive with a rate."""

_OFFSET_REASON_TIME = [0, 1 + DEAD.index("reason"), 1 + DEAD.index("dead_ms")]
"""Rows of `DeadGroup.rows`."""


class DeadLetterCalls(BrokerCalls):
    """The calls about dead letters."""

    async def dead_letters(self, topic: str, wanted: DeadFilter | None = None) -> pa.RecordBatch:
        """Return dead letters with the whole message, the reason, the last error, attempts and times."""
        return await browse.dead_letters(self.shard, self.shard.state.topic(topic), wanted or DeadFilter())

    async def dead_page(
        self, topic: str, wanted: DeadFilter, *, after: str | None = None, bytes_max: int | None = None
    ) -> Page:
        """Return one page of the dead letters that match a filter."""
        known = self.shard.state.topic(topic)
        return await browse.dead_page(self.shard, known, wanted, after=after, bytes_max=bytes_max)

    def dead_rows(self, topic: str, wanted: DeadFilter, bytes_max: int) -> list[DeadRow] | None:
        """Return the first dead letters that match a filter as values, up to a size; None if the disk has to be read.

        Cheap for a few. Waits for nothing, so what it returns may not be durable yet: a caller may decide by it, since
        what it decides is written behind it, but must not show it to a client.
        """
        state, store = self.shard.state, self.shard.store
        known, texts, found = state.topic(topic), state.texts.texts, list[DeadRow]()
        for group in dead_letters.select(state, known, wanted):
            for offset, reason, died_ms in group.rows[_OFFSET_REASON_TIME].T.tolist():
                values = store.values(known.number, group.partition, offset, COPIED)
                if values is None:
                    return None
                payload, envelope, headers, identity = values
                bytes_max -= len(payload) + len(envelope or b"")
                if bytes_max < 0 and found:
                    return found
                found.append(DeadRow(offset, payload, envelope, headers, identity, texts[reason], died_ms))
        return found

    async def dead_kinds(self, topic: str, wanted: DeadFilter) -> DeadKinds:
        """Count dead letters by subscription and reason, and how many of them a redrive would have room for.

        A thread sorts them, since there may be a million. The answer does not wait until the state is durable.
        """
        shard = self.shard
        known = shard.state.topic(topic)
        shard.upkeep(shard.now(), (topic,))
        groups = dead_letters.select(shard.state, known, wanted)
        count, room = _total(groups), dead_kinds.room(known)
        return DeadKinds(count, room, await asyncio.to_thread(dead_kinds.kinds, groups, list(shard.state.texts.texts)))

    def each_dead(self, topic: str, wanted: DeadFilter | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Yield dead letters in batches, however many there are."""
        return browse.dead_blocks(self.shard, self.shard.state.topic(topic), wanted or DeadFilter())

    async def redrive(
        self, topic: str, wanted: DeadFilter | None = None, *, by: str = "", rate: int | None = None
    ) -> int:
        """Send dead letters back to wait again; return how many. Messages that are no dead letters now are skipped.

        With a `rate`, send back at most so many a second: what made the messages fail may not bear all of them at once.
        `by` is the name that `audit` shows.
        """
        chosen = wanted or DeadFilter()
        if rate is None:
            return await self._redrive(topic, chosen, by)
        check.integer("rate", rate, 1, 1 << 40)
        # Only dead letters of before this call: one that fails again meanwhile must not be sent back a second time.
        now_ms = self.shard.now().wall_ms + 1
        chosen = replace(chosen, to_ms=now_ms if chosen.to_ms is None else min(chosen.to_ms, now_ms))
        done = 0
        while done < chosen.limit:
            step = min(chosen.limit - done, max(1, rate // REDRIVES_A_SECOND))
            count = await self._redrive(topic, replace(chosen, limit=step), by)
            done += count
            if count < step:
                break
            await asyncio.sleep(step / rate)
        return done

    async def _redrive(self, topic: str, wanted: DeadFilter, by: str) -> int:
        state = self.shard.state

        def choose(now: leasing.Now) -> tuple[list[Entry], int]:
            known = state.topic(topic)
            groups = dead_letters.select(state, known, wanted)
            return dead_letters.redrive(state, known, groups, by, now.wall_us), _total(groups)

        return await self._durable(choose, topic)

    async def forward(
        self,
        sources: Sequence[tuple[str, DeadFilter]],
        to: Sequence[tuple[str, Publishable, bool]],
        *,
        by: str = "",
    ) -> int:
        """Publish messages and remove the dead letters they replace, in one step; return how many were removed.

        `sources` has topics and which dead letters of each are removed; no dead letter is named twice. `to` has topics,
        the messages for each, and whether these are persistent; where a topic is named twice, its messages are
        persistent if any of them is. If a filter names offsets, all of those dead letters are removed: raise `NotFound`
        if another caller removed some of them first; return 0, with nothing published, if it removed all of them.
        """
        state = self.shard.state
        parts: dict[str, list[pa.RecordBatch]] = {}
        for name, messages, _ in to:
            parts.setdefault(name, []).append(compact(messages, state.topic(name).config.payload_bytes_max))
        lasting_to = {name for name, _, persistent in to if persistent}
        # One publish for each topic: two that are decided in one step would get the same offsets.
        batches = [(name, _together(given), name in lasting_to) for name, given in parts.items()]

        def choose(now: leasing.Now) -> tuple[list[Entry], int]:
            removed = [dead_letters.select(state, state.topic(name), wanted) for name, wanted in sources]
            if not any(removed):  # another caller was first
                return [], 0
            entries: list[Entry] = []
            for (name, wanted), groups in zip(sources, removed, strict=True):
                _check_all(name, wanted, groups)
                entries += dead_letters.forward(state, state.topic(name), groups, by, now.wall_us)
            for name, batch, persistent in batches:
                options = PublishOptions(persistent=persistent)
                entries += publishing.decide(state, state.topic(name), batch, options, now.wall_us)[0]
            lasting = [entry for entry in entries if not entry.volatile]
            return joined([*lasting, *(entry for entry in entries if entry.volatile)]), sum(map(_total, removed))

        return await self._durable(choose, *(name for name, _ in sources), *parts)

    def audit(self, topic: str) -> list[AuditRecord]:
        """Return who redrove or discarded dead letters of a topic, when and how many; the last actions, newest last."""
        return list(self.shard.state.topic(topic).audit_records)

    async def discard(self, topic: str, wanted: DeadFilter, *, by: str = "") -> int:
        """Discard dead letters; return how many."""
        state = self.shard.state

        def choose(now: leasing.Now) -> tuple[list[Entry], int]:
            known = state.topic(topic)
            groups = dead_letters.select(state, known, wanted)
            return dead_letters.discard(state, known, groups, by, now.wall_us), _total(groups)

        return await self._durable(choose, topic)


def _check_all(topic: str, wanted: DeadFilter, groups: list[DeadGroup]) -> None:
    """Raise `NotFound` for the first offset that a filter names and that is no dead letter."""
    found = {offset for group in groups for offset in group.offsets.tolist()}
    for offset in wanted.offsets or ():
        if offset not in found:
            raise NotFound("dead letter", f"{topic}/{offset}")


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return compact(pa.concat_tables([pa.Table.from_batches([each]) for each in batches], promote_options="default"))


def _total(groups: list[DeadGroup]) -> int:
    return sum(len(group.offsets) for group in groups)
