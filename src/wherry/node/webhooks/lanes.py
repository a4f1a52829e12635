"""Places for what the node does at a time: a bound on all, a bound for each host, and hosts take turns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


class BrokenOff(Exception):
    """Work that had its trial, while another host waited for its place."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """Somebody who has a place, or waits for one."""

    host: str
    granted: asyncio.Future[None]
    limit: asyncio.Timeout | None = None
    is_broken: bool = False


class Lane:
    """So many places, so many of them for one host.

    Where there is a `trial_s`, whoever has had a place for longer loses it to another host that waits.
    """

    def __init__(self, places: int, a_host: int, *, trial_s: float | None = None) -> None:
        self._free, self._a_host, self._trial_s = places, a_host, trial_s
        self._busy: Counter[str] = Counter()
        self._waiting: dict[str, dict[_Ticket, None]] = {}
        self._ready: dict[str, None] = {}
        """Hosts that may have a place more and want it, in turn."""
        self._late: dict[_Ticket, None] = {}
        self._breaking = 0
        """Places that are about to be free."""

    @asynccontextmanager
    async def place(
        self, host: str, *, beat_s: float | None = None, beat: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[None]:
        """Have a place; `beat` is called every `beat_s` while there is none. `BrokenOff` when it is taken away."""
        loop = asyncio.get_running_loop()
        ticket = _Ticket(host, loop.create_future())
        timer: asyncio.TimerHandle | None = None
        self._waiting.setdefault(host, {})[ticket] = None
        self._turn(host)
        try:
            while not ticket.granted.done():
                await asyncio.wait([ticket.granted], timeout=beat_s)
                if beat is not None and not ticket.granted.done():
                    await beat()
            async with asyncio.timeout(None) as ticket.limit:
                if self._trial_s is not None:
                    timer = loop.call_later(self._trial_s, self._overdue, ticket)
                yield
        except TimeoutError:
            if not ticket.is_broken:
                raise
            raise BrokenOff("it lasted, and others waited") from None
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(ticket)

    def _overdue(self, ticket: _Ticket) -> None:
        self._late[ticket] = None
        self._turn(ticket.host)

    def _leave(self, ticket: _Ticket) -> None:
        host = ticket.host
        if ticket.granted.done():
            self._late.pop(ticket, None)
            self._free += 1
            self._busy[host] -= 1
            self._breaking -= ticket.is_broken
            if not self._busy[host]:
                del self._busy[host]
        else:
            self._drop(ticket)
        self._turn(host)

    def _drop(self, ticket: _Ticket) -> None:
        """It waits no more."""
        waiting = self._waiting[ticket.host]
        del waiting[ticket]
        if not waiting:
            del self._waiting[ticket.host]
            self._ready.pop(ticket.host, None)

    def _turn(self, host: str) -> None:
        """Something changed for a host: give away what is free, then take from those who are late what is wanted."""
        self._line_up(host)
        while self._free and self._ready:
            host = next(iter(self._ready))
            del self._ready[host]
            ticket = next(iter(self._waiting[host]))
            self._drop(ticket)
            self._free -= 1
            self._busy[host] += 1
            ticket.granted.set_result(None)
            self._line_up(host)
        while self._late and len(self._ready) > self._breaking:
            ticket = next(iter(self._late))
            del self._late[ticket]
            assert ticket.limit is not None
            ticket.is_broken = True
            self._breaking += 1
            ticket.limit.reschedule(asyncio.get_running_loop().time())

    def _line_up(self, host: str) -> None:
        if host in self._waiting and self._busy[host] < self._a_host:
            self._ready.setdefault(host, None)
