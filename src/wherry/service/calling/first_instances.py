"""Waits for the first instance of a service, while the registry is new and may not have learned of all yet.

It never waits once a registry has had its time: a service without an instance is refused at once.
"""

from __future__ import annotations

import asyncio
import time

from wherry.mesh.instance import Instance
from wherry.mesh.registry import Roster
from wherry.model.errors import Closed
from wherry.service.calling.attempt import CallAttempt
from wherry.service.outcomes import RefusalCode, Refused


class FirstInstances:
    """The first seconds of a registry that has just been opened."""

    def __init__(self, roster: Roster, settles_s: float) -> None:
        self._roster = roster
        self._settled_at = time.monotonic() + settles_s
        self._is_closed = False
        self._waiting: dict[asyncio.Event, None] = {}
        """Calls that wait for the first instance of their service."""

    async def of(self, call: CallAttempt) -> tuple[Instance, ...]:
        """Return the instances of a service of which none was known; refuse the call if none comes."""
        until = min(call.deadline, self._settled_at)
        if time.monotonic() < until:
            await self._wait(call.target.service, until)
            if found := self._roster.of(call.target.service):
                return found
        text = "the registry knows no instance of this service"
        raise Refused(call.target.name, "", RefusalCode.NO_INSTANCE, text)

    async def _wait(self, service: str, until: float) -> None:
        changed = asyncio.Event()
        stop = self._roster.watch(lambda _: changed.set())
        self._waiting[changed] = None
        try:
            while not self._roster.of(service):
                if self._is_closed:
                    raise Closed("the peer is closed")
                changed.clear()
                async with asyncio.timeout(until - time.monotonic()):
                    await changed.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(changed, None)
            stop()

    def close(self) -> None:
        """End the calls that wait."""
        self._is_closed = True
        for changed in self._waiting:
            changed.set()
