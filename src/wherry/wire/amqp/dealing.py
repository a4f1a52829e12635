"""Messages on their way to consumers: a delivery of the broker in lists, and the settling of its rows, turn by turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, Literal

from wherry.broker.consumer import Delivery
from wherry.model.errors import StaleLease, WherryError
from wherry.wire.amqp.codec.properties import replaced, skim
from wherry.wire.amqp.codec.table import Int64, with_entries
from wherry.wire.amqp.envelope import MARK, from_elsewhere, opened

Said = Literal["ack", "requeue", "reject"]
"""Done with; comes back at once; a dead letter."""

Row = tuple[bool, str, str, bytes, bytes]
"""Redelivered, exchange, routing key, raw properties, body."""

_log = logging.getLogger("wherry.amqp")


class Dealt:
    """One delivery of the broker, opened. Its rows go to consumers, and are settled by number."""

    __slots__ = ("_delivery", "_said", "count", "rows")

    def __init__(self, delivery: Delivery, queue: str, old_below: int, *, counted: bool = False) -> None:
        self._delivery = delivery
        present = delivery.present
        names = present.schema.names
        bodies = present.column("payload").to_pylist()
        self.count = len(bodies)
        offsets: list[int] = present.column("offset").to_pylist()
        attempts: list[int] = present.column("attempt").to_pylist()
        envelopes = present.column("envelope").to_pylist() if "envelope" in names else [None] * self.count
        foreign = _Foreign(delivery, queue)
        self.rows: list[Row] = []
        last, exchange, key, at = b"\0", "", "", 0
        for number, (envelope, body) in enumerate(zip(envelopes, bodies, strict=True)):
            again = attempts[number] > 1 or offsets[number] < old_below
            try:
                if envelope is None or envelope[:1] != MARK:
                    raise ValueError  # as if it were no envelope of ours
                if not envelope.startswith(last) or len(envelope) < at + 2:
                    exchange, key, at = opened(envelope)
                    last = envelope[:at]
            except ValueError:
                self.rows.append((again, "", queue, foreign.properties(number), body))
                continue
            raw = envelope[at:]
            if counted and attempts[number] > 1:
                raw = _with_count(raw, attempts[number] - 1)
            self.rows.append((again, exchange, key, raw, body))
        self._said: dict[Said, list[int]] = {}

    def say(self, what: Said, rows: Iterable[int]) -> bool:
        """What becomes of rows; whether these are the first that something is said of since the last `settle`."""
        first = not self._said
        self._said.setdefault(what, []).extend(rows)
        return first

    async def settle(self) -> None:
        """Do what was said since this was last done."""
        said, self._said = self._said, {}
        for what, rows in said.items():
            try:
                await self._settle(what, None if len(rows) == self.count else rows)
            except StaleLease:  # some were settled elsewhere, expired or purged: the others are still ours
                for row in rows:
                    with suppress(StaleLease):
                        await self._settle(what, [row])

    async def _settle(self, what: Said, rows: list[int] | None) -> None:
        if what == "ack":
            await self._delivery.ack(rows)
        elif what == "requeue":
            await self._delivery.nack(rows, delay_ms=0, error="requeued")
        else:
            await self._delivery.dead_letter(rows, reason="rejected")

    async def release(self, rows: list[int]) -> None:
        """These were not handed over after all."""
        await self._delivery.release(rows)

    async def renew(self) -> None:
        """More time for those that are out."""
        await self._delivery.renew()


def _with_count(raw: bytes, count: int) -> bytes:
    """The properties with how often a message came back, as quorum queues tell it."""
    return replaced(raw, "headers", with_entries(skim(raw).headers, {"x-delivery-count": Int64(count)}))


class _Foreign:
    """Messages that came over another wire, as this one would have them."""

    def __init__(self, delivery: Delivery, queue: str) -> None:
        self._delivery, self._queue = delivery, queue
        self._columns: tuple[list[Any], list[Any]] | None = None

    def properties(self, row: int) -> bytes:
        """Raw properties made of headers."""
        if self._columns is None:
            batch = self._delivery.batch
            self._columns = batch.column("headers").to_pylist(), batch.column("id").to_pylist()
        return from_elsewhere(self._columns[0][row], self._columns[1][row])


class Settling:
    """Settles at the end of each turn of the loop, all rows of a delivery that were spoken of together."""

    def __init__(self) -> None:
        self._spoken_of: dict[Dealt, None] = {}
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()

    def say(self, dealt: Dealt, what: Said, rows: Iterable[int]) -> None:
        """What becomes of rows of a delivery."""
        if dealt.say(what, rows):
            self._spoken_of[dealt] = None
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._scheduled = False
        if self._spoken_of:
            spoken_of, self._spoken_of = self._spoken_of, {}
            self.run(_settle(list(spoken_of)))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done, whoever asked for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Until everything that was said so far is done."""
        self._end_of_turn()
        if self._tasks:
            await asyncio.wait(set(self._tasks))


async def _settle(spoken_of: list[Dealt]) -> None:
    """All of them are in the journal before the first is waited for."""
    for answer in await asyncio.gather(*(dealt.settle() for dealt in spoken_of), return_exceptions=True):
        if isinstance(answer, StaleLease):
            continue  # the queue was purged, deleted, or its messages expired
        if isinstance(answer, WherryError):
            _log.warning("messages were not settled, and will come again", extra={"why": str(answer)})
        elif isinstance(answer, BaseException):
            raise answer
