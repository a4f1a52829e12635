"""Runs methods, each to its end, and gives their places to those that wait.

    start ──► task, or one step ──► returned, raised, wrong argument ──► `Endings`
                                └──► its place: the next call that waits

A method holds its place until it has really ended, also after its caller has gone: so no limit is ever exceeded. It
never decides whether a call may run.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from functools import partial

from wherry.model.errors import InvalidInput
from wherry.service.current import CURRENT
from wherry.service.providing.endings import Endings
from wherry.service.providing.repeating import Repeating
from wherry.service.providing.running import ProvidedCall, ProvidedMethod, ProvidedService


class MethodRunner:
    """The methods that run in this process."""

    def __init__(self, endings: Endings, repeating: Repeating, ended: Callable[[], None]) -> None:
        self._endings, self._repeating, self._note_idle = endings, repeating, ended
        self.calls: dict[ProvidedCall, None] = {}
        """Those whose method has not ended, also if their caller has gone."""
        self._loop = asyncio.get_running_loop()
        self._make_task = _eager_tasks(self._loop)

    def start(self, call: ProvidedCall, method: ProvidedMethod) -> None:
        """Run the method of a call that has a place."""
        self.calls[call] = None
        if method.method.is_async:
            call.task = self._make_task(self._run(call, method))
        else:
            self._run_plain(call, method)

    async def _run(self, call: ProvidedCall, method: ProvidedMethod) -> None:
        """Run a method to its end, whatever that is. A call that ended before its task began is not run."""
        try:
            if call.outcome is not None:
                return
            call.ran_from = time.perf_counter()
            CURRENT.set(call)
            arguments = self._arguments(call, method)
            if arguments is not None:
                self._endings.returned(call, method, await method.method.function(*arguments))
        except GeneratorExit:  # the loop has ended
            raise
        except asyncio.CancelledError:
            if call.outcome is None:  # the method cancelled itself, or the process ends
                self._endings.failed(call, "CancelledError", "the method was cancelled")
        except BaseException as fault:
            self._endings.raised(call, fault)
            if isinstance(fault, SystemExit | KeyboardInterrupt):
                raise
        finally:
            self._ran(call, method)

    def _run_plain(self, call: ProvidedCall, method: ProvidedMethod) -> None:
        """Run a method that is no coroutine function: it ends in this step."""
        token = CURRENT.set(call)
        try:
            if call.outcome is not None:
                return
            call.ran_from = time.perf_counter()
            arguments = self._arguments(call, method)
            if arguments is not None:
                self._endings.returned(call, method, method.method.function(*arguments))
        except BaseException as fault:
            self._endings.raised(call, fault)
            if isinstance(fault, SystemExit | KeyboardInterrupt):
                raise
        finally:
            CURRENT.reset(token)
            self._ran(call, method)

    def _arguments(self, call: ProvidedCall, method: ProvidedMethod) -> tuple[object, ...] | None:
        """Return the arguments of the function; None if they are wrong, and the call is refused."""
        declared = method.method
        try:
            if declared.has_argument:
                return (declared.argument.decode(call.asked.argument, call.flags),)
            if call.asked.argument:
                raise InvalidInput("argument", f"{len(call.asked.argument)} bytes", "no argument")
        except InvalidInput as fault:
            self._endings.invalid(call, fault)
            return None
        return ()

    def _ran(self, call: ProvidedCall, method: ProvidedMethod) -> None:
        """Give the place of a call that ended to those that wait."""
        call.task = None
        del self.calls[call]
        if call.repeat_key is not None:
            self._repeating.ended(call)
        throttle = method.service.throttle
        throttle.leave(method.room)
        if throttle.waiting:
            self.start_waiting(method.service)
        self._note_idle()

    def start_waiting(self, service: ProvidedService) -> None:
        """Run calls that wait and have room by now."""
        for _, call in service.throttle.next_calls(service.rooms):
            assert call.method is not None
            # Through the loop: a chain of plain methods would be a recursion.
            self._loop.call_soon(self.start, call, call.method)


def _eager_tasks(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Task[None]]:
    """Return what makes a task: one that begins at once where Python has it (3.12), so that most end in one step."""
    if "eager_start" in inspect.signature(asyncio.Task).parameters:
        return partial(asyncio.Task, loop=loop, eager_start=True)  # type: ignore[call-arg]  # mypy checks for 3.11
    return loop.create_task
