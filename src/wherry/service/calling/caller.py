"""Calls methods of services: chooses an instance, sends the call, and reports how it ended.

    choose ──► connection ──► INVOKE ──► answered, failed, refused (full, no right …) ──► the caller
       ▲            │                            │
       └─ another ◄─┴── not reached ◄── draining, paused, no such method: it was not run

A call goes to another instance only if it certainly was not run, or if the caller declared it idempotent.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from random import random
from typing import Any, Final

from wherry.client.link.credential import KeyOrSource
from wherry.mesh.instance import Instance
from wherry.mesh.registry import Roster
from wherry.model.errors import Closed, InvalidInput, Unavailable, WherryError
from wherry.service import values
from wherry.service.balancing.set_aside import SetAside
from wherry.service.calling.attempt import CallAttempt
from wherry.service.calling.call_ids import CallIds
from wherry.service.calling.first_instances import FirstInstances
from wherry.service.calling.hedging import checked_hedge, hedged
from wherry.service.calling.link import CallerLink
from wherry.service.calling.own_token import OwnToken
from wherry.service.calling.pool import LinkPool
from wherry.service.calling.targets import CalledMethods, Kinds
from wherry.service.calling.verdict import fault_of, verdict_of
from wherry.service.outcomes import (
    ELSEWHERE,
    CallError,
    CallOutcome,
    ConnectionLost,
    RefusalCode,
    Refused,
    TimedOut,
)
from wherry.wire.native.codec.frames import FRAME_BYTES_MAX, Flag
from wherry.wire.native.codec.invokes import CONTENT, OUTCOME, CallContext

TIMEOUT_S: Final = 30.0
"""Of a call that names no other."""

TIMEOUT_S_MAX: Final = 86_400.0

ARGUMENT_BYTES_MAX: Final = FRAME_BYTES_MAX - (64 << 10)
"""Of an argument: with its method and its context it fits a frame."""

FAILED: Final[bool | None] = False

DIAL_PART: Final = 0.25
"""The part of the time left in which a connection has to be there, where there are other instances."""

DIAL_S_MAX: Final = 3.0

OnLost = Callable[[CallAttempt, CallError], None]
"""Called with a call that had no result. Must not raise."""

Keep = Callable[[CallAttempt, CallError], Awaitable[None]]
"""Keeps a call that had no result on disk. Must not raise."""


class ServiceCaller:
    """The calling side of a peer."""

    def __init__(
        self,
        roster: Roster,
        *,
        balancer: Kinds = "round-robin",
        tls: ssl.SSLContext | None = None,
        token: KeyOrSource = None,
        on_lost: OnLost | None = None,
        keep: Keep | None = None,
        settles_s: float = 0.0,
    ) -> None:
        self._first = FirstInstances(roster, settles_s)
        self.roster, self._on_lost = roster, on_lost
        self._keep, self._ids = keep, CallIds()
        self.is_closing = False
        self._token = None if token is None else OwnToken(token)
        self.pool = LinkPool(tls=tls, token=(lambda: self._token.last if self._token is not None else ""))
        self.targets = CalledMethods(roster, balancer)
        self._is_closed = False

    @property
    def balancers(self) -> dict[str, SetAside]:
        """Return the balancers, by service."""
        return self.targets.balancers

    # ---------------------------------------------------------------------------------------------------------- call

    async def call(  # noqa: PLR0913  as `Peer.call`
        self,
        name: str,
        argument: object = b"",
        *,
        timeout_s: float = TIMEOUT_S,
        session: str | None = None,
        returns: Any = None,
        idempotent: bool = False,
        hedge: bool | float = False,
        resend: bool | None = False,
        context: CallContext | None = None,
    ) -> Any:
        """Call a method, and return its result; see `Peer.call`. `resend` is None for a call that is kept already."""
        target = self.targets.get(name) or self.targets.add(name)
        codec = None if returns is None else values.codec_of(returns)
        if not 0 < timeout_s <= TIMEOUT_S_MAX:
            raise InvalidInput("timeout_s", timeout_s, f"more than 0, at most {TIMEOUT_S_MAX:g}")
        flags, body = (0, argument) if type(argument) is bytes else values.encode(argument)
        if len(body) > ARGUMENT_BYTES_MAX:
            raise InvalidInput("argument", f"{len(body)} bytes", f"at most {ARGUMENT_BYTES_MAX} bytes")
        if resend and self._keep is None:
            raise InvalidInput("resend", resend, "False, or a peer with a log of lost calls: peer(lost=…)")
        if session is not None or context is not None or self._keep is not None:
            context = self._ids.context(session, context, always=self._keep is not None)
        call = CallAttempt(target, body, flags, timeout_s, session, context, idempotent=idempotent, resend=resend)
        if hedge is not False:
            call.hedge = checked_hedge(hedge)
        target.retries.began()
        while True:
            try:
                flags, result = await (hedged(call, self._attempt) if call.hedge else self._attempt(call))
                break
            except asyncio.CancelledError:
                target.statistics.note(CallOutcome.CANCELLED, None)
                if self.is_closing:  # so its caller has not given it up
                    text = "the peer was closed before the answer; whether it was run is unknown"
                    await self._lost(call, ConnectionLost(name, call.tried[-1] if call.tried else "", text))
                raise
            except WherryError as fault:
                await self._look_again(call, fault)
        target.answered += 1
        if codec is not None:
            return codec.decode(result, flags, "result")
        return result if not flags else values.decode_plain(result, flags)

    async def _look_again(self, call: CallAttempt, fault: WherryError) -> None:
        """Return if the call may be sent to another instance, or again; else raise the error that its caller gets."""
        try:
            if isinstance(fault, ConnectionLost):
                await self._pause_or_raise(call, fault)
            elif isinstance(fault, Refused):
                if fault.reason is RefusalCode.UNAUTHORIZED and self._has_other_token(call):
                    return
                if fault.reason not in ELSEWHERE or not self._has_others(call):
                    raise fault
            elif isinstance(fault, CallError) or not isinstance(fault, Unavailable):
                raise fault
            elif not self._has_others(call):
                text = f"none of its instances can be reached; the last one: {fault}"
                raise Refused(call.target.name, call.tried[-1], RefusalCode.NO_INSTANCE, text) from None
        except CallError as final:
            call.target.statistics.note(final.outcome, None)
            await self._lost(call, final)
            raise

    def _has_other_token(self, call: CallAttempt) -> bool:
        """Return whether a call whose token was refused is sent once more: it was not run."""
        if self._token is None or call.has_new_token or not call.token or not self._token.reject(call.token):
            return False
        call.has_new_token = True
        return time.monotonic() < call.deadline

    async def _lost(self, call: CallAttempt, fault: CallError) -> None:
        if self._on_lost is not None:
            self._on_lost(call, fault)
        if self._keep is not None and call.resend is not None:
            await self._keep(call, fault)

    async def _attempt(self, call: CallAttempt) -> tuple[int, bytes]:
        if self._is_closed:
            raise Closed("the peer is closed")
        if self._token is not None:
            call.token = self._token.at_once() or await self._token.get(call.target.name, call.left_s)
        target, now = call.target, time.monotonic()
        instances = self.roster.of(target.service)
        if not instances:
            instances = await self._first.of(call)
            now = time.monotonic()
        instance = self._choose(call, instances, now)
        name, is_fine = instance.id, FAILED
        link: CallerLink | None = self.pool.open.get(instance.url)
        number = 0
        try:
            if link is None or not link.is_open or (link.instance != name and instance.version):
                link = await self._connect(call, instance, now, len(instances) > 1)
            if self._token is not None:
                link.note_token(call.token)
            timeout_s = max(0.001, call.deadline - time.monotonic())
            number, future = link.invoke(target.name, target.method, call.argument, call.flags, timeout_s, call.encoded)
            flags, body = await future
            if flags & OUTCOME:
                fault = fault_of(target.name, link, name, flags, body)
                is_fine = verdict_of(target, name, fault)
                raise fault
            is_fine, target.is_idempotent = True, flags & Flag.IDEMPOTENT != 0
        except asyncio.CancelledError:
            is_fine = None  # the caller gave up: that says nothing of the instance
            if link is not None and number:
                link.cancel(number)
            raise
        finally:
            ended = time.monotonic()
            target.balancer.ended(name, ended, ended - now, is_fine)
        return flags & CONTENT, body

    def _choose(self, call: CallAttempt, instances: tuple[Instance, ...], now: float) -> Instance:
        """Return the instance for an attempt, one that the call was not sent to if there is one; report the begin."""
        target, session = call.target, call.session
        balancer, turns = target.balancer, target.turns
        found = call.second or balancer.choose(instances, session=session, chance=random(), now=now, turns=turns)
        if call.second is None and (call.tried or target.refusing):
            left_out = target.left_out(call.tried, now)
            if found.id in left_out:
                other = balancer.choose_other(left_out, session=session, chance=random(), now=now, turns=turns)
                found = other or self._not_tried(call, instances) or found
        call.tried.append(found.id)
        balancer.began(found.id, now)
        return found

    def _not_tried(self, call: CallAttempt, instances: tuple[Instance, ...]) -> Instance | None:
        """Return an instance that the call was not sent to, although all of them refuse its method, or None."""
        return next((each for each in instances if each.id not in call.tried), None)

    async def _connect(self, call: CallAttempt, instance: Instance, now: float, has_others: bool) -> CallerLink:
        left_s = call.deadline - now
        within_s = min(left_s * DIAL_PART, DIAL_S_MAX) if has_others else left_s
        try:
            async with asyncio.timeout(within_s):
                link = await self.pool.link(instance.url, within_s)
                if instance.version:
                    await _check_name(link, instance)
            return link
        except TimeoutError:
            if time.monotonic() < call.deadline and self._has_others(call):
                raise Unavailable(f"no connection to the instance at {instance.url} within {within_s:g} s") from None
            fault = TimedOut(call.target.name, instance.id, "no connection before the deadline; it was not sent")
            fault.is_unknown = False
            raise fault from None

    def _has_others(self, call: CallAttempt) -> bool:
        """Return whether there is an instance that the call was not sent to, and time for it."""
        others = any(each.id not in call.tried for each in self.roster.of(call.target.service))
        return others and time.monotonic() < call.deadline

    async def _pause_or_raise(self, call: CallAttempt, fault: CallError) -> None:
        """Wait before a call whose outcome is unknown is sent again; raise if it may not be."""
        pause_s = call.target.retries.pause(
            len(call.tried),
            idempotent=call.may_repeat,
            untaken=False,
            now=time.monotonic(),
            deadline=call.deadline,
            chance=random(),
        )
        if pause_s is None:
            raise fault
        await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Close the connections, and end all calls."""
        self.is_closing = True
        self._is_closed = True
        self._first.close()
        await self.pool.close()


async def _check_name(link: CallerLink, instance: Instance) -> None:
    """Raise `Unavailable` if another process has the address of an instance that announced itself, or if it leaves.

    The record of an instance that was killed stays in the registry for a while, and its port may be given to another
    process, even to one that provides a service of the same name.
    """
    await link.introduced()
    if link.is_closed:
        raise Unavailable(f"the instance at {instance.url} closed the connection: {link.why}")
    if link.is_leaving:  # what is sent behind its GOODBYE is not read
        raise Unavailable(f"the instance at {instance.url} is closing")
    if link.instance not in ("", instance.id):
        raise Unavailable(f"at {instance.url} is {link.instance!r} by now, not {instance.id!r}")
