"""Sends kept calls again while the process runs: those that asked for it, when their service is back.

It never sends a call while the registry knows no instance of its service, and never more than eight at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from wherry.model.errors import WherryError
from wherry.service.lost.log import LOGGER, LostLog
from wherry.service.lost.lost_call import LostCall
from wherry.service.lost.schedule import Schedule

UNDER_WAY_MAX = 8

SEND_S_MAX = 60.0
"""An attempt that takes longer counts as failed."""

FAULT_PAUSE_S = 5.0
"""After an error of the log itself."""


class Resending:
    """The resends of one peer.

    Parameters
    ----------
    log
        The calls.
    send
        Sends a call again, with the id that it has, and raises if it was not answered.
    is_there
        Returns whether a service has an instance now.

    Examples
    --------
    >>> async def main(log, send, roster):
    ...     resending = Resending(log, send, lambda service: bool(roster.of(service)))
    ...     roster.watch(resending.changed)
    ...     await resending.run()
    """

    def __init__(
        self, log: LostLog, send: Callable[[LostCall], Awaitable[None]], is_there: Callable[[str], bool]
    ) -> None:
        self._log, self._send, self._is_there = log, send, is_there
        self._schedule = Schedule()
        self._woken = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        log.watch(self._kept)

    def changed(self, service: str) -> None:
        """Note that the instances of a service changed: its calls are tried soon."""
        if self._is_there(service):
            self._schedule.came(service, self._now(), random.random())
        self._woken.set()

    async def run(self) -> None:
        """Send calls again until this is cancelled; begin with those that an earlier process kept."""
        while not await self._safely(self._load):
            continue
        try:
            while True:
                self._woken.clear()
                self._begin()
                is_full = len(self._under_way) >= UNDER_WAY_MAX
                at = None if is_full else self._schedule.next_at(self._is_there)
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if at is None else max(0.0, at - self._now())):
                        await self._woken.wait()
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    def _begin(self) -> None:
        """Begin what is due; one that takes long holds up no other."""
        for name in self._schedule.due(self._now(), self._is_there, UNDER_WAY_MAX - len(self._under_way)):
            self._schedule.begin(name)
            task = asyncio.create_task(self._again(name))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._woken.set()

    async def _load(self) -> None:
        async for call in self._log.calls():
            if call.resend:
                self._schedule.add(call.name, call.service, self._now(), random.random())

    async def _again(self, name: str) -> None:
        await self._safely(self._send_again, name)
        self._schedule.failed(name, self._now(), random.random())

    async def _send_again(self, name: str) -> None:
        if await self._log.resend(name, self._in_time):
            self._schedule.remove(name)

    async def _in_time(self, call: LostCall) -> None:
        async with asyncio.timeout(SEND_S_MAX):
            await self._send(call)

    async def _safely(self, work: Callable[..., Awaitable[None]], *given: str) -> bool:
        """Return whether this went well; after an error of the log, only when some time has passed."""
        try:
            await work(*given)
        except (WherryError, OSError) as fault:
            LOGGER.error("lost calls cannot be sent again: %s", fault)
            await asyncio.sleep(FAULT_PAUSE_S)
            return False
        return True

    def _kept(self, call: LostCall) -> None:
        self._schedule.add(call.name, call.service, self._now(), random.random())
        self._woken.set()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
