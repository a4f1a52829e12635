"""Those who wait for messages, and whose turn it is to look: as many are let through as there is something for.

The core notes in `SubscriptionState.calls` what may let somebody who waits go on: a partition was stirred, a consumer
has room. Each call goes to one waiter, first come, first served, which looks for itself. It ends the call by finding
the partition empty. Else (it left something there, had no room for it, was cancelled) the call goes to the next, and to
nobody twice. So no call is lost, and a thousand who wait cost a publish no more than one.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from wherry.broker.clock import Clock
from wherry.core.decide import leasing
from wherry.core.state import assignment
from wherry.core.state.state import Consumer, State, SubscriptionState

DUE_LOOK_MS = 1_000
"""A due time is by the wall clock, which may be set forward meanwhile: look again after a second."""


class WakeUp(NamedTuple):
    """What somebody is to look for: a partition, or the room that a consumer got; and which event it was."""

    cause: int | str
    event: int


@dataclass(eq=False, slots=True)
class Waiter:
    """One pull that waits. Its future has the call, or None: look for another reason, or the time is over."""

    consumer: Consumer
    missed: dict[int | str, int]
    """Calls that it could do nothing about, by event."""
    future: asyncio.Future[WakeUp | None]


WaiterSet: TypeAlias = dict[Waiter, None]


@dataclass(slots=True)
class WaitLine:
    """Those who wait on one subscription."""

    queue: WaiterSet = field(default_factory=dict)
    """First come, first served; without those that were seen to have no room."""
    of: dict[str, WaiterSet] = field(default_factory=dict)
    """All of them, by consumer."""
    at: dict[str, WaiterSet] = field(default_factory=dict)
    """Those whose consumer shares a seat, by that."""
    timer: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiter) -> None:
        """At the end of the queue."""
        self.queue[waiter] = None
        self.of.setdefault(waiter.consumer.id, {})[waiter] = None
        if waiter.consumer.seat != waiter.consumer.id:
            self.at.setdefault(waiter.consumer.seat, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """It goes, if it is still here."""
        self.queue.pop(waiter, None)
        for places, name in ((self.of, waiter.consumer.id), (self.at, waiter.consumer.seat)):
            own = places.get(name)
            if own is not None:
                own.pop(waiter, None)
                if not own:
                    del places[name]

    def whose(self, seat: str) -> WaiterSet:
        """Those who pull from the partitions of a seat, which may be a consumer's own."""
        return self.at.get(seat) or self.of.get(seat) or {}

    def wake(self, waiter: Waiter, call: WakeUp | None) -> None:
        """Its turn to look."""
        self.remove(waiter)
        if not waiter.future.done():
            waiter.future.set_result(call)


class Waiters:
    """All lines of a shard."""

    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._lines: dict[int, WaitLine] = {}
        self._waking = False
        self._context = copy_context()  # of the broker: whoever calls may be gone before the next turn of the loop

    def wake(self) -> None:
        """Something changed: when this step is over, and all of it is done, see whom it lets through."""
        if not self._state.called or self._waking:
            return
        if self._lines:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake, context=self._context)
        else:
            self._wake()  # nobody waits: forget the calls, since whoever comes looks first
            self._waking = False

    def wake_all(self) -> None:
        """Let everybody through."""
        for line in self._lines.values():
            self._wake_line(line)

    async def wait(
        self, subscription: SubscriptionState, consumer: Consumer, wait_ms: int | None, missed: dict[int | str, int]
    ) -> WakeUp | None:
        """Until it is this one's turn to look, or the time is over. Nothing may be awaited since it last looked."""
        loop = asyncio.get_running_loop()
        line = self._lines.setdefault(subscription.number, WaitLine())
        waiter = Waiter(consumer, missed, loop.create_future())
        line.add(waiter)
        self._watch(line, subscription)
        self.wake()
        timer = None if wait_ms is None else loop.call_later(wait_ms / 1000, line.wake, waiter, None)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled():
                call = waiter.future.result()
                if call is not None:
                    self.pass_on(subscription, call)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            line.remove(waiter)
            self._tidy(subscription.number, line)

    def missed(self, subscription: SubscriptionState, call: WakeUp) -> None:
        """Somebody looked and got nothing: if there is something in the partition, it is for somebody else."""
        now_ms = self._clock.wall_us() // 1000
        if isinstance(call.cause, int) and leasing.offers(subscription, call.cause, now_ms):
            self.pass_on(subscription, call)

    def pass_on(self, subscription: SubscriptionState, call: WakeUp) -> None:
        """There may be something left of a call: the next one's turn."""
        subscription.calls[call.cause] = max(call.event, subscription.calls.get(call.cause, call.event))
        self._state.called[subscription.number] = None
        self.wake()

    def _wake(self) -> None:
        self._waking = False
        called, self._state.called = self._state.called, {}
        for number in called:
            line, subscription = self._lines.get(number), self._state.subscriptions.get(number)
            if line is None and subscription is not None:
                subscription.calls = {}
            elif line is not None and subscription is None:
                self._wake_line(line)
            elif line is not None and subscription is not None:
                self._serve(line, subscription)

    def _serve(self, line: WaitLine, subscription: SubscriptionState) -> None:
        calls, subscription.calls = subscription.calls, {}
        for cause, event in calls.items():
            if isinstance(cause, str):
                waiter = self._with_room(line, subscription, cause)
            else:
                waiter = self._taker(line, subscription, cause, event)
            if waiter is not None:
                line.wake(waiter, WakeUp(cause, event))
        self._watch(line, subscription)

    def _taker(self, line: WaitLine, subscription: SubscriptionState, number: int, event: int) -> Waiter | None:
        """The first who may pull from a partition, has room, and has not missed this call before."""
        if number not in subscription.astir:
            return None
        strategy = subscription.assignment
        owner = assignment.owner(strategy, number)
        anyone = owner is not None or strategy.helps
        found, full = None, []
        for waiter in line.queue if owner is None else line.whose(owner):
            if not waiter.consumer.has_room():
                full.append(waiter)
            elif waiter.missed.get(number) == event or waiter.future.done():
                continue
            elif anyone or number in strategy.of(waiter.consumer.seat):
                found = waiter
                break
        for waiter in full:
            line.queue.pop(waiter, None)  # until its consumer gets room
        return found

    def _with_room(self, line: WaitLine, subscription: SubscriptionState, consumer: str) -> Waiter | None:
        """The first that waits for a consumer which has room now, if there is anything to look at."""
        known = subscription.consumers.get(consumer)
        found = None
        for waiter in list(line.of.get(consumer, ())):
            if waiter.consumer is not known:  # it left
                line.wake(waiter, None)
            elif known.has_room():
                line.queue.setdefault(waiter)
                found = found or (None if waiter.future.done() else waiter)
        return found if len(subscription.astir) else None

    def _watch(self, line: WaitLine, subscription: SubscriptionState) -> None:
        """One timer for all who wait: when the next message becomes due."""
        first = subscription.astir.times.first()
        if first is None or not line.of:
            return
        loop = asyncio.get_running_loop()
        wait_ms = min(max(1, first[0] - self._clock.wall_us() // 1000), DUE_LOOK_MS)
        at_s = loop.time() + wait_ms / 1000
        if line.timer is not None:
            if line.timer.when() <= at_s:
                return
            line.timer.cancel()
        line.timer = loop.call_at(at_s, self._due, line, subscription, context=self._context)

    def _due(self, line: WaitLine, subscription: SubscriptionState) -> None:
        line.timer = None
        if subscription.number not in self._state.subscriptions:
            return
        leasing.stir_due(self._state, subscription, self._clock.wall_us() // 1000)
        self._watch(line, subscription)
        self.wake()

    def _wake_line(self, line: WaitLine) -> None:
        for waiters in list(line.of.values()):
            for waiter in list(waiters):
                line.wake(waiter, None)

    def _tidy(self, number: int, line: WaitLine) -> None:
        if not line.of and self._lines.get(number) is line:
            del self._lines[number]
            if line.timer is not None:
                line.timer.cancel()
