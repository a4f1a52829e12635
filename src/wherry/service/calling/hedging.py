"""Sends a slow call to a second instance as well: the first answer wins, and the other attempt is cancelled.

    attempt ──────────── slow ──────────────► cancelled       what an attempt that is cancelled says of its instance:
         └─ after the p95 ─► hedge ──► answered, the result    nothing but that an answer takes at least so long

A call is hedged at most once, only if it may run twice and within the budget of its service. With `sticky`, the call
of a session belongs to one instance, and has no hedge. Only an answer wins, of which an error of the method is one: a
refusal or a broken connection waits for the other attempt, and is reported if that has no answer either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from random import random
from typing import Any, TypeAlias

from wherry.mesh.instance import Instance
from wherry.model.errors import InvalidInput
from wherry.service.calling.attempt import CallAttempt
from wherry.service.calling.link import CallResult
from wherry.service.outcomes import Failed

Send: TypeAlias = "Callable[[CallAttempt], Coroutine[Any, Any, CallResult]]"
"""Sends a call to one instance."""

HEDGE_S_MAX = 86_400.0


async def hedged(call: CallAttempt, send: Send) -> CallResult:
    """Send a call, and a hedge if it takes too long; return the first answer."""
    hedges, began = call.target.hedges, time.monotonic()
    first = asyncio.create_task(send(call))
    running = [first]
    try:
        await asyncio.wait(running, timeout=hedges.after_s(call.hedge, call.left_s))
        if not first.done() and (second := _second(call)) is not None:
            hedges.sent += 1
            call.is_hedged = True
            running.append(asyncio.create_task(send(call.as_hedge(second))))
        while not any(_has_answer(each) for each in running):
            waiting = [each for each in running if not each.done()]
            if not waiting:
                break
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        winner = next((each for each in running if _has_answer(each)), first)
        if winner is not first:
            hedges.won += 1
        if winner is not first or _has_answer(first):
            hedges.note(time.monotonic() - began)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)  # each reports its end to the balancer
    return winner.result()


def _second(call: CallAttempt) -> Instance | None:
    """Return the instance for a hedge, taken from the budget; None if there must be none."""
    target, now = call.target, time.monotonic()
    if call.is_hedged or (target.balancer.sticky and call.session is not None):
        return None
    found = target.balancer.choose_second(target.left_out(call.tried, now), chance=random(), now=now)
    return found if found is not None and target.retries.hedge(idempotent=call.may_repeat) else None


def _has_answer(task: asyncio.Task[CallResult]) -> bool:
    """Return whether an instance answered: with a result, or an error of the method."""
    return task.done() and not task.cancelled() and (task.exception() is None or isinstance(task.exception(), Failed))


def checked_hedge(hedge: object) -> bool | float:
    """Return when a call is hedged: never, after the measured time, or after so many seconds."""
    if isinstance(hedge, bool):
        return hedge
    if not isinstance(hedge, int | float) or not 0 < hedge <= HEDGE_S_MAX:
        raise InvalidInput("hedge", hedge, f"True, False, or seconds: more than 0, at most {HEDGE_S_MAX:g}")
    return float(hedge)
