"""A process that calls services, provides them, or both: a registry, the calling and the providing side, joined."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from wherry.mesh.instance import NAME_CHARS_MAX
from wherry.mesh.opening import open_registry
from wherry.mesh.registry import Registry, Roster
from wherry.model import check
from wherry.model.errors import Closed, LimitReached
from wherry.service.balancing.kinds import check_kinds
from wherry.service.calling.caller import TIMEOUT_S, ServiceCaller
from wherry.service.calling.targets import Kinds
from wherry.service.current import within_current
from wherry.service.losses import Losses
from wherry.service.providing.host import Host
from wherry.service.providing.provider import ENDING_S, ListenAt, Provider
from wherry.service.service import Service
from wherry.service.trust import Trust, authorizing
from wherry.wire.native.codec.invokes import CallContext

if TYPE_CHECKING:
    from types import TracebackType

    from wherry.service.losses import LostWhere
    from wherry.service.lost.keeping import Keeping
    from wherry.service.lost.log import LostLog
    from wherry.service.outcomes import CallOutcome
    from wherry.service.providing.endings import OnLost
    from wherry.service.providing.running import ProvidedCall

DRAIN_S: Final = 10.0
"""How long the close of a peer takes at most; calls under way have 8 s of it."""

LAST_S: Final = 0.5
"""For what comes last in a close, also if nothing is left of its time."""

STARTED_MAX: Final = 65_536
"""Calls that were started and have not ended; one more is refused."""

SETTLES_S: Final = 5.0
"""How long after the start a call waits for the first instance of a service: a registry learns of all within that."""

READ_ONLY: Final = ("static://", "dns://")
"""Registries that nothing is announced to."""

Callback = Callable[[Any, Exception | None], object]
"""Called with the result of a call and None, or with None and the error."""


def peer(
    *,
    registry: str | Registry | None = None,
    provides: Sequence[Service] = (),
    listen: ListenAt | int = 0,
    instance_id: str | None = None,
    balancer: Kinds = "round-robin",
    trust: Trust | None = None,
    lost: LostWhere | Losses | None = None,
    labels: dict[str, str] | None = None,
) -> Peer:
    """Return a peer, to be used with `async with`.

    Parameters
    ----------
    registry
        A URL (`gossip://seed:7073`, `zk://host/path`, `dns://name:port`, `static://host:port`), which the peer opens
        and closes; or a registry that runs already, and is not closed. By default that of the first service; None if
        the peer calls only what it provides.
    provides
        Services of this process. They are announced, unless the registry is one that is only read.
    listen
        Where the services listen: a port of 127.0.0.1, 0 for a free one, or a `ListenAt`. Without services none does.
    instance_id
        The name of this process among the instances; by default a random one.
    balancer
        `round-robin`, `fastest` or `sticky`, or one of them by service.
    trust
        The token that calls are made with, and what callers have to show; by default nothing.
    lost
        Where calls without a result are kept, and sent again from: a folder of its own, or a `LostLog` that runs
        already. By default that of the first service that names one; without one, nothing is kept. `Losses` has it
        beside functions that are called with each call without a result.
    labels
        Text of your own in the registry, beside each instance.
    """
    return Peer(
        registry=registry,
        provides=provides,
        listen=ListenAt(port=listen) if isinstance(listen, int) else listen,
        instance_id=instance_id,
        balancer=balancer,
        trust=trust or Trust(),
        losses=lost if isinstance(lost, Losses) else Losses(log=lost),
        labels=labels or {},
    )


class Peer:
    """See `peer`."""

    def __init__(
        self,
        *,
        registry: str | Registry | None,
        provides: Sequence[Service],
        listen: ListenAt,
        instance_id: str | None,
        balancer: Kinds,
        trust: Trust,
        losses: Losses,
        labels: dict[str, str],
    ) -> None:
        check_kinds(balancer)
        own = next((each.registry for each in provides if each.registry is not None), None)
        kept = next((each.lost for each in provides if each.lost is not None), None)
        self._lost = losses.log if losses.log is not None else kept
        self._given = registry if registry is not None else own
        self._provides, self._listen, self._labels = tuple(provides), listen, labels
        self._balancer, self._trust, self._losses = balancer, trust, losses
        self.instance_id = check.graphic("instance_id", instance_id or secrets.token_hex(8), NAME_CHARS_MAX)
        self._stack = AsyncExitStack()
        self._registry: Registry | None = None
        self._caller: ServiceCaller | None = None
        self._provider: Provider | None = None
        self._keeping: Keeping | None = None
        self._started: set[asyncio.Task[Any]] = set()
        self._close_by = 0.0
        """When the close has to be over; 0 before it began."""

    async def __aenter__(self) -> Peer:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _start(self) -> None:
        registry = self._given
        if isinstance(registry, str):
            can_announce = not registry.startswith(READ_ONLY)
            opened = open_registry(registry)
            self._stack.push_async_callback(self._close_registry, opened)
            await opened.start()
            self._registry = opened
        else:
            can_announce, self._registry = registry is not None, registry
        if self._lost is not None:
            from wherry.service.lost.keeping import Keeping  # noqa: PLC0415  it brings the broker along

            self._keeping = Keeping(self._lost, self.instance_id, self._losses.on_resent)
            self._stack.push_async_callback(self._keeping.close)
        if self._provides:
            authorize = await self._stack.enter_async_context(authorizing(self._trust))
            host = Host(self.instance_id, authorize=authorize, on_lost=self._on_provided_lost())
            announced = self._registry if can_announce else None
            self._provider = provider = Provider(host, self._provides, announced, self._labels)
            self._stack.push_async_callback(self._close_provider, provider)
            await provider.start(self._listen)
        self._caller = caller = ServiceCaller(
            self._registry.roster if self._registry is not None else self._own_roster(),
            balancer=self._balancer,
            tls=self._trust.tls,
            token=self._trust.token,
            on_lost=self._losses.on_call,
            keep=self._keeping.of_caller if self._keeping is not None else None,
            settles_s=SETTLES_S if isinstance(registry, str) and can_announce else 0.0,
        )
        self._stack.push_async_callback(caller.close)
        if self._keeping is not None:
            self._keeping.start(caller)

    def _on_provided_lost(self) -> OnLost | None:
        """Return what is called with a call that is lost at the providing side."""
        keeping, also = self._keeping, self._losses.on_provided
        if keeping is None or also is None:
            return keeping.of_provider if keeping is not None else also

        def both(call: ProvidedCall, outcome: CallOutcome) -> None:
            keeping.of_provider(call, outcome)
            also(call, outcome)

        return both

    def _own_roster(self) -> Roster:
        """Return the instances of this process alone, where there is no registry."""
        roster = Roster()
        if self._provider is not None:
            for service in self._provides:
                roster.replace(service.name, [self._provider.instance(service.name)])
        return roster

    # ---------------------------------------------------------------------------------------------------------- calls

    def call(  # noqa: PLR0913  each is a choice of its own, and most calls make one or two of them
        self,
        method: str,
        argument: object = b"",
        *,
        timeout_s: float = TIMEOUT_S,
        session: str | None = None,
        returns: Any = None,
        idempotent: bool = False,
        hedge: bool | float = False,
        resend: bool = False,
        context: CallContext | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Call a method, and return its result; raise `Refused`, `Failed`, `TimedOut` or `ConnectionLost`.

        Parameters
        ----------
        method
            The service and the method: `billing.total`.
        argument
            Bytes, which are passed on as they are, or what msgspec can encode.
        timeout_s
            The deadline of the call, which travels with it. A call that a method makes ends with that method's own.
        session
            Calls of one session reach one instance, with the balancer `sticky`.
        returns
            The type of the result; without one it is bytes, or plain values.
        idempotent
            Whether the method may be run twice: then the call is sent again if a connection breaks before its answer.
            A method that its provider declares so needs it for the first call only.
        hedge
            Whether a call that may run twice is sent to a second instance when it takes longer than 95 of 100 calls of
            its method did lately, or than so many seconds; the first answer counts.
        resend
            Whether it is sent again, if it has no result, when its service is back: at least once, with the same id.
            It needs a log of lost calls (`peer(lost=…)`); `is_kept` of the error states whether it is in there.
        context
            A call id, or W3C trace context; within a method its trace goes on by itself.
        """
        caller = self._caller
        if caller is None:
            raise Closed("the peer is not open: use it with `async with`")
        timeout_s, context = within_current(timeout_s, context)
        return caller.call(
            method,
            argument,
            timeout_s=timeout_s,
            session=session,
            returns=returns,
            idempotent=idempotent,
            hedge=hedge,
            resend=resend,
            context=context,
        )

    def start_call(
        self, method: str, argument: object = b"", *, callback: Callback | None = None, **more: Any
    ) -> asyncio.Task[Any]:
        """Start a call, and return at once: await the task, cancel it, or give a callback.

        The callback is called once, with the result and None, or with None and the error; `more` is as in `call`.
        """
        if len(self._started) >= STARTED_MAX:
            raise LimitReached("calls that were started", STARTED_MAX, STARTED_MAX + 1)
        task = asyncio.get_running_loop().create_task(self.call(method, argument, **more))
        self._started.add(task)
        task.add_done_callback(self._started.discard)
        if callback is not None:
            task.add_done_callback(lambda done: _call_back(done, callback))
        return task

    # -------------------------------------------------------------------------------------------------------- inspect

    @property
    def url(self) -> str:
        """Return where the services of this process are reached; empty if there are none."""
        return self._provider.url if self._provider is not None else ""

    @property
    def roster(self) -> Roster:
        """Return the instances that are known."""
        assert self._caller is not None
        return self._caller.roster

    @property
    def provider(self) -> Provider | None:
        """Return the providing side; None without services."""
        return self._provider

    @property
    def caller(self) -> ServiceCaller:
        """Return the calling side, with its statistics by method and by instance."""
        if self._caller is None:
            raise Closed("the peer is not open: use it with `async with`")
        return self._caller

    @property
    def lost(self) -> LostLog | None:
        """Return the log of the calls without a result; None without one."""
        return self._keeping.log if self._keeping is not None else None

    # ------------------------------------------------------------------------------------------------------------ end

    async def drain(self, within_s: float = DRAIN_S) -> None:
        """Withdraw the services of this process, refuse new calls, and wait for those under way."""
        if self._provider is not None:
            await self._provider.drain(within_s)

    async def close(self) -> None:
        """Drain, end all calls, and close all connections, within 10 s; once closed, it does nothing."""
        self._close_by = self._close_by or time.monotonic() + DRAIN_S
        if self._keeping is not None:
            await self._keeping.stop()
        await self.drain(max(0.0, self._close_by - time.monotonic() - ENDING_S))
        if self._caller is not None:
            self._caller.is_closing = True
        for task in list(self._started):
            task.cancel()
        await asyncio.gather(*self._started, return_exceptions=True)
        await self._stack.aclose()
        self._caller = None

    async def _close_registry(self, registry: Registry) -> None:
        """Close the registry that this peer opened; one that does not answer gets the rest of the time."""
        left_s = self._close_by - time.monotonic() if self._close_by else DRAIN_S
        with suppress(TimeoutError):
            async with asyncio.timeout(max(LAST_S, left_s)):
                await registry.close()

    async def _close_provider(self, provider: Provider) -> None:
        left_s = self._close_by - time.monotonic() if self._close_by else DRAIN_S
        await provider.close(max(0.0, left_s))


def _call_back(done: asyncio.Task[Any], callback: Callback) -> None:
    if done.cancelled():
        callback(None, asyncio.CancelledError())  # type: ignore[arg-type]
    elif (fault := done.exception()) is not None:
        callback(None, fault)  # type: ignore[arg-type]
    else:
        callback(done.result(), None)
