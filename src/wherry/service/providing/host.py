"""Decides what becomes of each call that arrives: it runs, waits or is refused; and ends it when its time is over.

    call ──► known? ──► open? ──► right? ──► room? ──► `MethodRunner` ──► answer
               └─────────┴─────────┴───────────┴──► refused, at once

It never runs a method itself, and refuses nothing without a reason that its caller can tell from others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from wherry.model.errors import InvalidInput, Unauthorized, WherryError
from wherry.service.outcomes import CallOutcome, RefusalCode
from wherry.service.providing.endings import Endings, OnLost
from wherry.service.providing.holding import HeldBytes
from wherry.service.providing.repeating import Repeating
from wherry.service.providing.runner import MethodRunner
from wherry.service.providing.running import ProvidedCall, ProvidedMethod, ProvidedService, full_text
from wherry.service.providing.throttle import Admission
from wherry.service.rights import Authorize, Rights

SWEEP_S: Final = 0.02
"""How often deadlines are looked at while calls are under way."""

CANCEL_S: Final = 1.0
"""How long methods may take to end after they are cancelled, when the process closes."""

_log = logging.getLogger("wherry.service")


class Host:
    """The services that this process provides."""

    def __init__(
        self,
        instance_id: str,
        *,
        authorize: Authorize | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        self.instance_id = instance_id
        self.services: dict[str, ProvidedService] = {}
        self.holding = HeldBytes()
        self.connections = self.holding.connections
        self.cut_offs = self.holding.cut_offs
        self.unknown = 0
        """Calls of methods that do not exist."""
        self.repeating = Repeating(self._enter_again, self._answer_again, self._refuse_other)
        self.endings = Endings(on_lost, self.repeating.answered)
        self.is_draining = False
        self._rights = None if authorize is None else Rights(authorize)
        self._checking = 0
        """Calls whose right is being checked."""
        self._methods: dict[bytes, ProvidedMethod] = {}
        self._with_deadline = self.endings.with_deadline
        self._sweeping: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._for_idle: asyncio.Event | None = None
        self._loop = asyncio.get_running_loop()
        self.runner = MethodRunner(self.endings, self.repeating, self._note_idle)

    def add(self, provided: ProvidedService) -> None:
        """Provide a service as well."""
        self.services[provided.name] = provided
        for method in provided.methods.values():
            self._methods[method.full_name.encode()] = method

    def remove(self, name: str) -> None:
        """Provide a service no more; calls under way end as they do."""
        for method in self.services.pop(name).methods.values():
            del self._methods[method.full_name.encode()]

    @property
    def is_open_to_all(self) -> bool:
        """Return whether no token is asked for."""
        return self._rights is None

    async def check(self, token: str, service: str, method: str) -> None:
        """Raise unless the holder of a token may call a method; `*` is to inspect and control the service."""
        if self._rights is not None:
            found = self._rights.ask(token, service, method)
            if not isinstance(found, str):
                await found

    # ------------------------------------------------------------------------------------------------- a call arrives

    def begin(self, call: ProvidedCall) -> None:
        """Run a call, let it wait, or refuse it."""
        method = self._methods.get(call.asked.method)
        if method is None:
            self.unknown += 1
            self.refuse(call, RefusalCode.NO_METHOD, f"{self.instance_id} provides no method of this name")
            return
        call.method = method
        if call.asked.context:
            # A broken context ends the connection here, and not a task later.
            method.hedges += call.context().hedge
        if self._is_shut(call, method):
            return
        timeout_ms = call.asked.timeout_ms
        if timeout_ms:
            call.due = time.monotonic() + timeout_ms / 1000
            self._with_deadline[call] = None
            if self._sweeping is None:
                self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)
        if self._rights is None:
            self._enter(call, method)
        else:
            self._check(call, method, self._rights)

    def _is_shut(self, call: ProvidedCall, method: ProvidedMethod) -> bool:
        """Refuse a call of a method that accepts none now."""
        if not (method.is_paused or method.service.is_draining or self.is_draining):
            return False
        code = RefusalCode.PAUSED if method.is_paused else RefusalCode.DRAINING
        self.refuse(call, code, f"the {'method' if method.is_paused else 'instance'} is {code.value}")
        return True

    def _enter(self, call: ProvidedCall, method: ProvidedMethod) -> None:
        if call.asked.context and not self.repeating.admits(call):
            return
        entry = method.service.throttle.enter(method.room, call)
        if entry is Admission.RUN:
            self.runner.start(call, method)
        elif entry is Admission.FULL:
            self.refuse(call, RefusalCode.FULL, full_text(method))
            self.repeating.ended(call)

    def _enter_again(self, call: ProvidedCall) -> None:
        """Run a repeat that waited for the first call of its id, which had no result."""
        # Through the loop: a chain of repeats that fail would be a recursion.
        assert call.method is not None
        self._loop.call_soon(self._enter_if_open, call, call.method)

    def _enter_if_open(self, call: ProvidedCall, method: ProvidedMethod) -> None:
        if call.outcome is None:
            self._enter(call, method)

    def _answer_again(self, call: ProvidedCall, body: bytes, flags: int) -> None:
        """Answer a repeat with the result of the first call of its id."""
        self.endings.answered(call, body, flags)

    def _refuse_other(self, call: ProvidedCall, fault: InvalidInput) -> None:
        """Refuse a call with the id of another one."""
        self.endings.invalid(call, fault)

    def _check(self, call: ProvidedCall, method: ProvidedMethod, rights: Rights) -> None:
        """Ask whether the caller may call the method, which may take a while for a token that is new."""
        try:
            found = rights.ask(call.sink.token, method.service.name, method.method.name)
        except WherryError as fault:
            self._no_right(call, fault)
            return
        if isinstance(found, str):
            call.caller = found
            self._enter(call, method)
        else:
            self._checking += 1
            self._keep(self._loop.create_task(self._wait_for_right(call, method, found)))

    async def _wait_for_right(self, call: ProvidedCall, method: ProvidedMethod, checking: Awaitable[str]) -> None:
        try:
            call.caller = await checking
        except WherryError as fault:
            if call.outcome is None:
                self._no_right(call, fault)
        else:
            if call.outcome is None and not self._is_shut(call, method):
                self._enter(call, method)
        finally:
            self._checking -= 1
            self._note_idle()

    def _no_right(self, call: ProvidedCall, fault: WherryError) -> None:
        code = RefusalCode.UNAUTHORIZED if isinstance(fault, Unauthorized) else RefusalCode.FORBIDDEN
        self.refuse(call, code, str(fault))

    def _note_idle(self) -> None:
        if self._for_idle is not None and not self.running:
            self._for_idle.set()

    # ---------------------------------------------------------------------------------------------------- a call ends

    def refuse(self, call: ProvidedCall, code: RefusalCode, text: str) -> None:
        """Answer a call that is not run."""
        self.endings.refuse(call, code, text)

    def cancel(self, call: ProvidedCall, outcome: CallOutcome) -> None:
        """End a call without an answer: cancelled, timed out, or its caller disconnected."""
        if call.outcome is not None:
            return
        self.endings.done(call, outcome)
        call.sink.drop(call)
        if call.task is not None:
            if call.ran_from:  # else it looks at the outcome when it begins
                call.task.cancel()
        elif call.method is not None:
            call.method.service.throttle.forget(call.method.room, call)
            if call not in self.runner.calls:
                self.repeating.ended(call)
        self.endings.lost(call, outcome)

    # ----------------------------------------------------------------------------------------------------- time, end

    def _sweep(self) -> None:
        """End calls whose deadline has passed."""
        now = time.monotonic()
        for call in [call for call in self._with_deadline if call.due <= now]:
            self.cancel(call, CallOutcome.TIMED_OUT)
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep) if self._with_deadline else None

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drain(self) -> None:
        """Accept no new calls, and announce that on all connections."""
        self.is_draining = True
        for connection in list(self.connections):
            connection.say_goodbye("the instance is draining")

    async def close(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        tasks = [*self._tasks, *(call.task for call in self.runner.calls if call.task is not None)]
        for task in tasks:
            task.cancel()
        if tasks and (left := (await asyncio.wait(tasks, timeout=CANCEL_S))[1]):
            _log.warning("%d methods go on although they were cancelled", len(left))

    async def idle(self, within_s: float) -> None:
        """Wait until no call runs or waits."""
        if self.running:
            self._for_idle = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._for_idle.wait()

    @property
    def running(self) -> int:
        """Return how many calls run, wait, or are checked."""
        return self._checking + sum(each.throttle.running + each.throttle.waiting for each in self.services.values())
