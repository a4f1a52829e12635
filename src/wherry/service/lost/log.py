"""The log of lost calls: one topic of a broker in this process, on a folder of its own.

It is opened when the first call is lost, so a peer without failures has no folder and no broker. On return of `keep`
the call is on disk. Bounded by number, bytes and age, the oldest dropped and counted. It never lets a failure of the
log become a failure of the call: what could not be kept is counted, and written to the log of the program.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from wherry.broker.broker import Broker
from wherry.broker.clock import Clock, SystemClock
from wherry.broker.opening import open as open_broker
from wherry.model.calls.amendment import Amendment
from wherry.model.catalog.topic import Topic
from wherry.model.errors import Closed, DuplicateId, InvalidInput, NotFound, NotWaiting, WherryError
from wherry.service.lost.bounds import LostBounds, LostStatistics
from wherry.service.lost.lost_call import SIDES, LostCall, of_row

LOGGER = logging.getLogger("wherry.service.lost")

TOPIC = "lost"

CACHE_BYTES = 1 << 20
"""Memory of the broker for recent messages: the least that it takes."""

PAGE_CALLS, PAGE_BYTES = 256, 4 << 20

KEEPING_MAX = 1_000
"""Calls that are being written at a time: in a flood of failures, further ones are counted and not kept."""

KEEPING_BYTES_MAX = 16 << 20


class LostLog:
    """The lost calls of one peer.

    Parameters
    ----------
    directory
        A folder of its own; made when it is needed. One process at a time may have it open.
    bounds
        What it holds at most.
    clock
        Time and entropy; the machine's by default.

    Examples
    --------
    >>> async def main(call):
    ...     async with LostLog("lost") as log:
    ...         await log.keep(call)
    ...         return [each.id async for each in log.calls()]
    """

    def __init__(
        self, directory: str | os.PathLike[str], bounds: LostBounds | None = None, *, clock: Clock | None = None
    ) -> None:
        self.directory = Path(directory)
        self.bounds = (bounds or LostBounds()).checked()
        self._clock = clock or SystemClock()
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._broker: Broker | None = None
        self._is_closed = False
        self._keeping = self._keeping_bytes = 0
        self._resent = self._not_kept = 0
        self._watching: list[Callable[[LostCall], None]] = []

    async def __aenter__(self) -> LostLog:
        return self

    async def __aexit__(self, *fault: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the folder, if it was opened."""
        async with self._opening:
            self._is_closed, self._broker = True, None
            await self._stack.aclose()

    @property
    def is_there(self) -> bool:
        """Whether the folder is there: some call was lost, now or before."""
        return (self.directory / "journal").is_dir()

    def watch(self, kept: Callable[[LostCall], None]) -> None:
        """Call with each call that is kept and to be sent again. `kept` must not raise."""
        self._watching.append(kept)

    async def keep(self, call: LostCall) -> bool:
        """Keep a call that failed; return whether it is on disk. The same call again counts as one more attempt."""
        try:
            record = call.checked(self.bounds.body_bytes)
        except InvalidInput as fault:  # such as an id that another process made up
            return self._unkept(call, str(fault))
        size = len(record.body)
        if self._keeping >= KEEPING_MAX or self._keeping_bytes + size > KEEPING_BYTES_MAX:
            return self._unkept(record, f"{self._keeping} calls are being kept at this moment")
        self._keeping += 1
        self._keeping_bytes += size
        try:
            await self._write(record)
        except (WherryError, OSError) as fault:
            return self._unkept(record, str(fault))
        finally:
            self._keeping -= 1
            self._keeping_bytes -= size
        if record.resend:
            for kept in self._watching:
                kept(record)
        return True

    async def calls(self, *, service: str | None = None) -> AsyncIterator[LostCall]:
        """Yield the calls in the log, in the order in which they were kept or last tried."""
        broker = await self._open(create=False)
        after: str | None = None
        while broker is not None:
            page = await broker.browse_page(TOPIC, 0, 0, PAGE_CALLS, after=after, bytes_max=PAGE_BYTES)
            for row in page.batch.to_pylist():
                if service is None or row["key"] == service:
                    yield of_row(row)
            after = page.next
            if after is None:
                return

    async def get(self, call_id: str) -> list[LostCall]:
        """Return what is kept of a call: at most once for each side. Empty if nothing is."""
        broker = await self._open(create=False)
        if broker is None:
            return []
        found = [await self._row(broker, f"{side}:{call_id}") for side in SIDES]
        return [each for each in found if each is not None]

    async def drop(self, calls: Iterable[LostCall]) -> int:
        """Drop calls; return how many were still there."""
        broker = await self._open(create=False)
        dropped = 0
        for each in calls if broker is not None else ():
            try:
                await broker.cancel(TOPIC, each.name)  # type: ignore[union-attr]
                dropped += 1
            except (NotFound, NotWaiting):
                continue
        return dropped

    async def ask_for_resend(self, call: LostCall) -> None:
        """Have a call sent again by the process that keeps this log: now, or when it starts."""
        broker = await self._open(create=False)
        if call.is_cut:
            allowed = "a call whose whole body is kept"
            raise InvalidInput(
                "id", f"{call.id}, of which {len(call.body)} of {call.body_bytes} bytes are kept", allowed
            )
        if broker is None:
            raise NotFound("lost call", call.id)
        asked = msgspec.structs.replace(call, resend=True)
        await broker.amend(TOPIC, call.name, Amendment(headers=asked.headers()))
        for kept in self._watching:
            kept(asked)

    async def resend(self, name: str, send: Callable[[LostCall], Awaitable[None]]) -> bool:
        """Send a kept call again; return whether it is done with: answered, or not in the log any more.

        It is dropped when `send` returns, and kept with one more attempt if `send` raises. A crash in between means
        that it is sent once more, with the same id.
        """
        broker = await self._open(create=False)
        call = None if broker is None else await self._row(broker, name)
        if call is None or broker is None:
            return True
        try:
            await send(call)
        except Exception as fault:  # of any kind: what `send` calls is not ours
            again = call.failed_again(type(fault).__name__, str(fault))
            try:
                await broker.amend(TOPIC, name, Amendment(headers=again.headers()))
            except (NotFound, NotWaiting):
                return True
            return False
        self._resent += 1
        await self.drop([call])
        return True

    async def statistics(self) -> LostStatistics:
        """Return the counts."""
        broker = await self._open(create=False)
        here = {"resent": self._resent, "not_kept": self._not_kept}
        if broker is None:
            return LostStatistics(**here)
        stats = broker.stats(TOPIC)
        counted = stats.counters
        return LostStatistics(
            calls=stats.messages,
            bytes=stats.bytes,
            kept=counted.get("published", 0),
            removed=counted.get("cancelled", 0),
            pushed_out=counted.get("dropped", 0),
            expired=counted.get("expired", 0),
            **here,
        )

    async def _open(self, *, create: bool) -> Broker | None:
        """Return the broker, opened if need be; None if there is no folder and `create` does not ask for one."""
        if self._broker is not None:
            return self._broker
        async with self._opening:
            if self._is_closed:
                raise Closed("the log of lost calls is closed")
            if self._broker is None and (create or self.is_there):
                self._broker = await self._opened(create=create)
            return self._broker

    async def _opened(self, *, create: bool) -> Broker:
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(
                open_broker(self.directory, clock=self._clock, cache_bytes=CACHE_BYTES)
            )
            names = [each.name for each in broker.topics()]
            if names and TOPIC not in names:
                raise InvalidInput("directory", str(self.directory), "a folder of its own for lost calls")
            if create or not names:
                await broker.create_topic(self._topic())
            self._stack = stack.pop_all()
            return broker

    def _topic(self) -> Topic:
        return Topic(
            name=TOPIC,
            payload_bytes_max=self.bounds.body_bytes,
            messages_max=self.bounds.calls,
            bytes_max=self.bounds.bytes,
            overflow="drop-oldest",
        )

    async def _write(self, call: LostCall) -> None:
        broker = await self._open(create=True)
        assert broker is not None
        expires_ms = self._clock.wall_us() // 1_000 + int(self.bounds.keep_s * 1_000)
        try:
            await broker.publish(TOPIC, [call.message(expires_ms)])
        except DuplicateId:
            known = await self._row(broker, call.name)
            if known is not None:
                again = known.failed_again(call.error, call.text)
                await broker.amend(TOPIC, call.name, Amendment(headers=again.headers()))

    async def _row(self, broker: Broker, name: str) -> LostCall | None:
        try:
            rows = (await broker.get(TOPIC, name)).to_pylist()
        except NotFound:
            return None
        return of_row(rows[0]) if rows else None

    def _unkept(self, call: LostCall, why: str) -> bool:
        self._not_kept += 1
        if self._not_kept & (self._not_kept - 1) == 0:  # the 1st, 2nd, 4th, 8th …: a flood of failures is no flood here
            what = f"{call.service}.{call.method} {call.outcome}"
            LOGGER.error("%d lost calls could not be kept; the last is %s (%s): %s", self._not_kept, call.id, what, why)
        return False
