"""Looks names up by the system's resolver. A lookup may take long and cannot be cancelled, so lookups are bounded.

Each lookup runs in a daemon thread, one for a name at a time, which all callers share. Names that were resolved before
have places of their own, so that names that are never resolved cannot keep them waiting. A late lookup releases its
place, as long as not too many are late.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

from wherry.node.webhooks.lanes import Lane

PLACES = 16
"""Lookups at a time of names that were resolved before; and as many of all others."""
LATE_S = 1.0
LATE_MAX = 64
WAIT_S = 5.0
"""How long a lookup waits for a place; from then on its caller's own timeout applies."""
NAMES_MAX = 1_024
"""Names that are looked up or wait for a place."""
KEEP_S = 5.0
"""How long an answer is reused."""
KNOWN_MAX = 4_096


class NotTried(Exception):
    """A call that could not be begun for a reason of this node: it is no failure of the called host."""


@dataclass(slots=True, eq=False)
class _Lookup:
    begun: asyncio.Event
    answer: asyncio.Future[list[str]]
    task: asyncio.Task[None] | None = None


def look_up(host: str) -> list[str]:
    """Look a name up, blocking."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Lookups:
    """All lookups of a node."""

    def __init__(self, resolve: Callable[[str], list[str]] = look_up) -> None:
        self._resolve = resolve
        self._running: dict[str, _Lookup] = {}
        self._known: OrderedDict[str, tuple[list[str], float]] = OrderedDict()
        """Resolved names: their addresses, and until when these are reused."""
        self._known_lane, self._other_lane = Lane(PLACES, 1), Lane(PLACES, 1)
        self._late = 0

    async def begin(self, host: str) -> asyncio.Future[list[str]]:
        """Begin a lookup and return an awaitable of its addresses; raise `NotTried` if too many are under way."""
        loop = asyncio.get_running_loop()
        held = [host] if _is_address(host) else self._held(host)
        if held is not None:
            answer = loop.create_future()
            answer.set_result(held)
            return answer
        lookup = self._running.get(host)
        if lookup is None:
            if len(self._running) >= NAMES_MAX:
                raise NotTried(f"{host} is not looked up: {NAMES_MAX} other names are")
            lookup = self._running[host] = _Lookup(asyncio.Event(), loop.create_future())
            lookup.task = asyncio.create_task(self._run(host, lookup), name="wherry name")
        try:
            async with asyncio.timeout(WAIT_S):
                await lookup.begun.wait()
        except TimeoutError:
            raise NotTried(f"{host} is not looked up yet: too many other names do not answer") from None
        return lookup.answer

    def _held(self, host: str) -> list[str] | None:
        found, until = self._known.get(host, ([], 0.0))
        return found if until > asyncio.get_running_loop().time() else None

    async def _run(self, host: str, lookup: _Lookup) -> None:
        is_late = False
        try:
            async with (self._known_lane if host in self._known else self._other_lane).place(host):
                lookup.begun.set()
                self._start(host, lookup)
                await asyncio.wait([lookup.answer], timeout=LATE_S)
                if not lookup.answer.done():
                    self._known.pop(host, None)
                    if self._late >= LATE_MAX:
                        await asyncio.wait([lookup.answer])
                    else:
                        self._late += 1
                        is_late = True
            if is_late:
                await asyncio.wait([lookup.answer])
        finally:
            self._late -= is_late
            del self._running[host]

    def _start(self, host: str, lookup: _Lookup) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            found: list[str] | Exception
            try:
                found = self._resolve(host)
            except Exception as fault:  # raised at the callers
                found = fault
            with suppress(RuntimeError):  # the loop is closed: no caller is left
                loop.call_soon_threadsafe(self._end, host, lookup, found)

        try:
            Thread(target=work, name="wherry name", daemon=True).start()
        except RuntimeError as fault:
            self._end(host, lookup, NotTried(f"{host} is not looked up: {fault}"))

    def _end(self, host: str, lookup: _Lookup, found: list[str] | Exception) -> None:
        self._known.pop(host, None)
        if isinstance(found, Exception):
            lookup.answer.set_exception(found)
            lookup.answer.exception()  # mark as seen: all callers may be gone
            return
        lookup.answer.set_result(found)
        self._known[host] = (found, asyncio.get_running_loop().time() + KEEP_S)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def close(self) -> None:
        """Stop waiting for lookups under way."""
        for lookup in self._running.values():
            if lookup.task is not None:
                lookup.task.cancel()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # the system resolves addresses with a zone
