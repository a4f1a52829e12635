"""What a peer consists of, from its start to its end.

    registry ──► log of lost calls ──► provider ──► caller        opened in this order, closed in reverse

The end takes 10 s at most, whatever does not end by itself: a method, a caller that reads nothing, a registry that does
not answer. A part that fails to start closes those before it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from wherry.mesh.opening import open_registry
from wherry.mesh.registry import Registry, Roster
from wherry.service.balancing.kinds import check_kinds
from wherry.service.calling.caller import ServiceCaller
from wherry.service.calling.targets import Kinds
from wherry.service.losses import Losses
from wherry.service.providing.host import Host
from wherry.service.providing.provider import ENDING_S, ListenAt, Provider
from wherry.service.service import Service
from wherry.service.trust import Trust, authorizing

if TYPE_CHECKING:
    from wherry.service.lost.keeping import Keeping
    from wherry.service.outcomes import CallOutcome
    from wherry.service.providing.endings import OnLost
    from wherry.service.providing.running import ProvidedCall

DRAIN_S: Final = 10.0
"""How long the close of a peer takes at most; calls under way have 8 s of it."""

LAST_S: Final = 0.5
"""For what comes last in a close, also if nothing is left of its time."""

SETTLES_S: Final = 5.0
"""How long after the start a call waits for the first instance of a service: a registry learns of all within that."""

READ_ONLY: Final = ("static://", "dns://")
"""Registries that nothing is announced to."""


class PeerTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer is to be; see `peer`."""

    registry: str | Registry | None
    provides: tuple[Service, ...]
    listen: ListenAt
    instance_id: str
    balancer: Kinds
    trust: Trust
    losses: Losses
    labels: dict[str, str]


class PeerParts:
    """The parts of one peer."""

    def __init__(self, terms: PeerTerms) -> None:
        check_kinds(terms.balancer)
        self.terms = terms
        self.caller: ServiceCaller | None = None
        """The calling side, while the peer is open."""
        self.provider: Provider | None = None
        """The providing side, if it provides something."""
        self.keeping: Keeping | None = None
        """What keeps lost calls, if they are kept."""
        self._stack = AsyncExitStack()
        self._registry: Registry | None = None
        self._close_by = 0.0
        """When the close has to be over; 0 before it began."""

    async def open(self) -> None:
        """Open all parts; if one fails, close those before it."""
        try:
            can_announce, is_new = await self._open_registry()
            self._open_log()
            await self._open_provider(can_announce=can_announce)
            self._open_caller(SETTLES_S if is_new and can_announce else 0.0)
        except BaseException:
            await self._stack.aclose()
            raise

    async def _open_registry(self) -> tuple[bool, bool]:
        """Open the registry; return whether instances can be announced to it, and whether it has just been opened."""
        terms = self.terms
        own = next((each.registry for each in terms.provides if each.registry is not None), None)
        given = terms.registry if terms.registry is not None else own
        if not isinstance(given, str):
            self._registry = given
            return given is not None, False
        opened = open_registry(given)
        self._stack.push_async_callback(self._close_registry, opened)
        await opened.start()
        self._registry = opened
        return not given.startswith(READ_ONLY), True

    def _open_log(self) -> None:
        terms = self.terms
        kept = next((each.lost for each in terms.provides if each.lost is not None), None)
        where = terms.losses.log if terms.losses.log is not None else kept
        if where is not None:
            from wherry.service.lost.keeping import Keeping  # noqa: PLC0415  it brings the broker along

            self.keeping = Keeping(where, terms.instance_id, terms.losses.on_resent)
            self._stack.push_async_callback(self.keeping.close)

    async def _open_provider(self, *, can_announce: bool) -> None:
        terms = self.terms
        if terms.provides:
            authorize = await self._stack.enter_async_context(authorizing(terms.trust))
            host = Host(terms.instance_id, authorize=authorize, on_lost=self._on_provided_lost())
            announced = self._registry if can_announce else None
            self.provider = provider = Provider(host, terms.provides, announced, terms.labels)
            self._stack.push_async_callback(self._close_provider, provider)
            await provider.start(terms.listen)

    def _open_caller(self, settles_s: float) -> None:
        terms, keeping = self.terms, self.keeping
        self.caller = caller = ServiceCaller(
            self._registry.roster if self._registry is not None else self._own_roster(),
            balancer=terms.balancer,
            tls=terms.trust.tls,
            token=terms.trust.token,
            on_lost=terms.losses.on_call,
            keep=keeping.of_caller if keeping is not None else None,
            settles_s=settles_s,
        )
        self._stack.push_async_callback(caller.close)
        if keeping is not None:
            keeping.start(caller)

    def _on_provided_lost(self) -> OnLost | None:
        """Return what is called with a call that is lost at the providing side."""
        keeping, also = self.keeping, self.terms.losses.on_provided
        if keeping is None or also is None:
            return keeping.of_provider if keeping is not None else also

        def both(call: ProvidedCall, outcome: CallOutcome) -> None:
            keeping.of_provider(call, outcome)
            also(call, outcome)

        return both

    def _own_roster(self) -> Roster:
        """Return the instances of this process alone, where there is no registry."""
        roster = Roster()
        if self.provider is not None:
            for service in self.terms.provides:
                roster.replace(service.name, [self.provider.instance(service.name)])
        return roster

    async def drain(self) -> None:
        """Begin the close: send no kept call again, accept no new ones, and wait for those under way."""
        self._close_by = self._close_by or time.monotonic() + DRAIN_S
        if self.keeping is not None:
            await self.keeping.stop()
        if self.provider is not None:
            await self.provider.drain(max(0.0, self._left_s - ENDING_S))
        if self.caller is not None:
            self.caller.is_closing = True

    async def close(self) -> None:
        """Close all parts, in what is left of the time."""
        await self._stack.aclose()
        self.caller = None

    @property
    def _left_s(self) -> float:
        return max(0.0, self._close_by - time.monotonic()) if self._close_by else DRAIN_S

    async def _close_registry(self, registry: Registry) -> None:
        """Close the registry that this peer opened; one that does not answer gets the rest of the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(LAST_S, self._left_s)):
                await registry.close()

    async def _close_provider(self, provider: Provider) -> None:
        await provider.close(self._left_s)
