"""Bounds on the calls under way: one for all, one for each host; waiting hosts get places one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


class BrokenOff(Exception):
    """A call that lost its place to another host after its trial time."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """A call that has a place, or waits for one."""

    host: str
    granted: asyncio.Future[None]
    limit: asyncio.Timeout | None = None
    is_broken: bool = False


class Lane:
    """A bounded number of places, and a bound of places for one host.

    With a `trial_s`, a call that has had a place for longer loses it to another host that waits.
    """

    def __init__(self, places: int, a_host: int, *, trial_s: float | None = None) -> None:
        self._free, self._a_host, self._trial_s = places, a_host, trial_s
        self._busy: Counter[str] = Counter()
        self._waiting: dict[str, dict[_Waiter, None]] = {}
        self._ready: dict[str, None] = {}
        """Hosts that wait and may have another place, in the order in which they get one."""
        self._late: dict[_Waiter, None] = {}
        self._breaking = 0
        """Places of calls that were broken off and have not ended yet."""

    @asynccontextmanager
    async def place(
        self, host: str, *, beat_s: float | None = None, beat: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[None]:
        """Hold a place; call `beat` every `beat_s` while waiting. Raise `BrokenOff` when the place is taken away."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(host, loop.create_future())
        timer: asyncio.TimerHandle | None = None
        self._waiting.setdefault(host, {})[waiter] = None
        self._share_places(host)
        try:
            while not waiter.granted.done():
                await asyncio.wait([waiter.granted], timeout=beat_s)
                if beat is not None and not waiter.granted.done():
                    await beat()
            async with asyncio.timeout(None) as waiter.limit:
                if self._trial_s is not None:
                    timer = loop.call_later(self._trial_s, self._overdue, waiter)
                yield
        except TimeoutError:
            if not waiter.is_broken:
                raise
            raise BrokenOff("it took longer than its trial time, and other hosts waited") from None
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(waiter)

    def _overdue(self, waiter: _Waiter) -> None:
        self._late[waiter] = None
        self._share_places(waiter.host)

    def _leave(self, waiter: _Waiter) -> None:
        host = waiter.host
        if waiter.granted.done():
            self._late.pop(waiter, None)
            self._free += 1
            self._busy[host] -= 1
            self._breaking -= waiter.is_broken
            if not self._busy[host]:
                del self._busy[host]
        else:
            self._drop(waiter)
        self._share_places(host)

    def _drop(self, waiter: _Waiter) -> None:
        """Remove a call that no longer waits."""
        waiting = self._waiting[waiter.host]
        del waiting[waiter]
        if not waiting:
            del self._waiting[waiter.host]
            self._ready.pop(waiter.host, None)

    def _share_places(self, host: str) -> None:
        """Give free places to waiting hosts, then break off late calls for hosts that still wait."""
        self._line_up(host)
        while self._free and self._ready:
            host = next(iter(self._ready))
            del self._ready[host]
            waiter = next(iter(self._waiting[host]))
            self._drop(waiter)
            self._free -= 1
            self._busy[host] += 1
            waiter.granted.set_result(None)
            self._line_up(host)
        while self._late and len(self._ready) > self._breaking:
            waiter = next(iter(self._late))
            del self._late[waiter]
            assert waiter.limit is not None
            waiter.is_broken = True
            self._breaking += 1
            waiter.limit.reschedule(asyncio.get_running_loop().time())

    def _line_up(self, host: str) -> None:
        if host in self._waiting and self._busy[host] < self._a_host:
            self._ready.setdefault(host, None)
