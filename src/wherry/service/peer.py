"""A process that calls services, provides them, or both: what its program calls.

It decides what a program gives and gets: the terms with their defaults, calls that are waited for and calls that are
started. How its parts are opened and closed is in `parts`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from wherry.mesh.instance import NAME_CHARS_MAX
from wherry.mesh.registry import Registry, Roster
from wherry.model import check
from wherry.model.errors import Closed, LimitReached
from wherry.service.calling.caller import TIMEOUT_S, ServiceCaller
from wherry.service.calling.targets import Kinds
from wherry.service.current import within_current
from wherry.service.losses import Losses
from wherry.service.parts import DRAIN_S, PeerParts, PeerTerms
from wherry.service.providing.provider import ListenAt, Provider
from wherry.service.service import Service
from wherry.service.trust import Trust
from wherry.wire.native.codec.invokes import CallContext

if TYPE_CHECKING:
    from types import TracebackType

    from wherry.service.losses import LostWhere
    from wherry.service.lost.log import LostLog

STARTED_MAX: Final = 65_536
"""Calls that were started and have not ended; one more is refused."""

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
    terms = PeerTerms(
        registry=registry,
        provides=tuple(provides),
        listen=ListenAt(port=listen) if isinstance(listen, int) else listen,
        instance_id=check.graphic("instance_id", instance_id or secrets.token_hex(8), NAME_CHARS_MAX),
        balancer=balancer,
        trust=trust or Trust(),
        losses=lost if isinstance(lost, Losses) else Losses(log=lost),
        labels=labels or {},
    )
    return Peer(terms)


class Peer:
    """See `peer`."""

    def __init__(self, terms: PeerTerms) -> None:
        self._parts = PeerParts(terms)
        self._started: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Peer:
        await self._parts.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

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
        timeout_s, context = within_current(timeout_s, context)
        return self.caller.call(
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
    def instance_id(self) -> str:
        """Return the name of this process among the instances."""
        return self._parts.terms.instance_id

    @property
    def url(self) -> str:
        """Return where the services of this process are reached; empty if there are none."""
        provider = self._parts.provider
        return provider.url if provider is not None else ""

    @property
    def roster(self) -> Roster:
        """Return the instances that are known."""
        return self.caller.roster

    @property
    def provider(self) -> Provider | None:
        """Return the providing side; None without services."""
        return self._parts.provider

    @property
    def caller(self) -> ServiceCaller:
        """Return the calling side, with its statistics by method and by instance."""
        caller = self._parts.caller
        if caller is None:
            raise Closed("the peer is not open: use it with `async with`")
        return caller

    @property
    def lost(self) -> LostLog | None:
        """Return the log of the calls without a result; None without one."""
        keeping = self._parts.keeping
        return keeping.log if keeping is not None else None

    # ------------------------------------------------------------------------------------------------------------ end

    async def drain(self, within_s: float = DRAIN_S) -> None:
        """Withdraw the services of this process, refuse new calls, and wait for those under way."""
        if self._parts.provider is not None:
            await self._parts.provider.drain(within_s)

    async def close(self) -> None:
        """Drain, end all calls, and close all connections, within 10 s; once closed, it does nothing."""
        await self._parts.drain()
        for task in list(self._started):
            task.cancel()
        await asyncio.gather(*self._started, return_exceptions=True)
        await self._parts.close()


def _call_back(done: asyncio.Task[Any], callback: Callback) -> None:
    if done.cancelled():
        callback(None, asyncio.CancelledError())  # type: ignore[arg-type]
    elif (fault := done.exception()) is not None:
        callback(None, fault)  # type: ignore[arg-type]
    else:
        callback(done.result(), None)
