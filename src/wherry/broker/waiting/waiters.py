"""Pulls that wait for messages, and which of them to wake: as many as there is something for.

The core notes in `SubscriptionState.wakeups` what may give a waiter messages: a partition got some, or a consumer got
room. Each such wake-up goes to one waiter, first come, first served, and that waiter tries to lease. A waiter that
finds the partition empty uses the wake-up up. Else (it left messages there, had no room for them, was cancelled) the
wake-up goes to the next waiter, and to no waiter twice. So none is lost, and a thousand waiters cost a publish no more
than one.

A waiter may take messages within the wake-up itself (`at_once`), and wait on: a task that is woken for each message
of a stream costs as much as the pull.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from wherry.broker.clock import Clock
from wherry.broker.commit.turn import Phase, Turn
from wherry.core.decide import leasing
from wherry.core.state import assignment
from wherry.core.state.state import ConsumerState, State, SubscriptionState

DUE_LOOK_MS = 1_000
"""Due times are by the wall clock, which may be set forward meanwhile: check again after a second."""


class WakeUp(NamedTuple):
    """Why a waiter is woken: a partition (int) that got messages, or a consumer (str) that got room; and the event."""

    cause: int | str
    event: int


@dataclass(eq=False, slots=True)
class Waiter:
    """One pull that waits. The result of its future is the wake-up, or None: try again, or the time is over."""

    consumer: ConsumerState
    missed: dict[int | str, int]
    """Wake-ups that gave this waiter nothing: their events, by cause."""
    future: asyncio.Future[WakeUp | None]
    at_once: Callable[[WakeUp], bool] | None = None
    """Uses a wake-up and returns True, so that the waiter waits on; or returns False, with nothing changed."""


WaiterSet: TypeAlias = dict[Waiter, None]


@dataclass(slots=True)
class WaitLine:
    """The waiters of one subscription."""

    queue: WaiterSet = field(default_factory=dict)
    """First come, first served; without waiters that were found to have no room."""
    of: dict[str, WaiterSet] = field(default_factory=dict)
    """All waiters, by consumer."""
    at: dict[str, WaiterSet] = field(default_factory=dict)
    """Waiters whose consumer shares a seat, by seat."""
    timer: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiter) -> None:
        """Add a waiter at the end of the queue."""
        self.queue[waiter] = None
        self.of.setdefault(waiter.consumer.id, {})[waiter] = None
        if waiter.consumer.seat != waiter.consumer.id:
            self.at.setdefault(waiter.consumer.seat, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter, if it is still here."""
        self.queue.pop(waiter, None)
        for places, name in ((self.of, waiter.consumer.id), (self.at, waiter.consumer.seat)):
            own = places.get(name)
            if own is not None:
                own.pop(waiter, None)
                if not own:
                    del places[name]

    def whose(self, seat: str) -> WaiterSet:
        """Return the waiters that pull from the partitions of a seat, which may be a consumer's own."""
        return self.at.get(seat) or self.of.get(seat) or {}

    def wake(self, waiter: Waiter, wake_up: WakeUp | None) -> None:
        """Let a waiter use a wake-up where it waits, the last in line from then on; else remove it, and let it try."""
        if wake_up is not None and waiter.at_once is not None and waiter.at_once(wake_up):
            _move_to_end(self.queue, waiter)
            if waiter.consumer.seat != waiter.consumer.id:
                _move_to_end(self.at.get(waiter.consumer.seat, {}), waiter)
            return
        self.remove(waiter)
        if not waiter.future.done():
            waiter.future.set_result(wake_up)


def _move_to_end(waiters: WaiterSet, waiter: Waiter) -> None:
    if waiter in waiters:
        del waiters[waiter]
        waiters[waiter] = None


class Waiters:
    """All waiters of a shard, in one line for each subscription."""

    def __init__(self, state: State, clock: Clock, turn: Turn) -> None:
        self._state, self._turn = state, turn
        self._clock = clock
        self._lines: dict[int, WaitLine] = {}
        self._waking = False
        self._context = copy_context()  # of the broker: the task of the caller may end before the next turn of the loop

    def wake(self) -> None:
        """Wake waiters by what has changed, at the end of this turn of the loop."""
        if not self._state.to_wake or self._waking:
            return
        if self._lines:
            self._waking = True
            self._turn.at_end(Phase.WAKE, self._wake)
        else:
            self._wake()  # no waiters: forget the wake-ups, since a new pull tries before it waits
            self._waking = False

    def wake_all(self) -> None:
        """Wake every waiter."""
        for line in self._lines.values():
            self._wake_line(line)

    async def wait(
        self,
        subscription: SubscriptionState,
        consumer: ConsumerState,
        wait_ms: int | None,
        missed: dict[int | str, int],
        at_once: Callable[[WakeUp], bool] | None = None,
    ) -> WakeUp | None:
        """Wait for a wake-up, or until the time is over. Await nothing between the last try and this call.

        `at_once` is as in `Waiter`: this call goes on waiting while it returns True.
        """
        loop = asyncio.get_running_loop()
        line = self._lines.setdefault(subscription.number, WaitLine())
        waiter = Waiter(consumer, missed, loop.create_future(), at_once)
        line.add(waiter)
        self._watch(line, subscription)
        self.wake()
        timer = None if wait_ms is None else loop.call_later(wait_ms / 1000, line.wake, waiter, None)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled():
                wake_up = waiter.future.result()
                if wake_up is not None:
                    self.pass_on(subscription, wake_up)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            line.remove(waiter)
            self._tidy(subscription.number, line)

    def missed(self, subscription: SubscriptionState, wake_up: WakeUp) -> None:
        """Pass a wake-up on that gave its waiter nothing, if there is something in the partition for another one."""
        now_ms = self._clock.wall_us() // 1000
        if isinstance(wake_up.cause, int) and leasing.offers(subscription, wake_up.cause, now_ms):
            self.pass_on(subscription, wake_up)

    def pass_on(self, subscription: SubscriptionState, wake_up: WakeUp) -> None:
        """Give a wake-up to the next waiter, since there may be messages left, now or at a time that was just noted."""
        cause, event = wake_up
        subscription.wakeups[cause] = max(event, subscription.wakeups.get(cause, event))
        self._state.to_wake[subscription.number] = None
        self.wake()

    def _wake(self) -> None:
        self._waking = False
        to_wake, self._state.to_wake = self._state.to_wake, {}
        for number in to_wake:
            line, subscription = self._lines.get(number), self._state.subscriptions.get(number)
            if line is None and subscription is not None:
                subscription.wakeups = {}
            elif line is not None and subscription is None:
                self._wake_line(line)
            elif line is not None and subscription is not None:
                self._serve(line, subscription)

    def _serve(self, line: WaitLine, subscription: SubscriptionState) -> None:
        wakeups, subscription.wakeups = subscription.wakeups, {}
        woken: WaiterSet = {}
        is_more = False
        for cause, event in wakeups.items():
            if isinstance(cause, str):
                waiter = self._with_room(line, subscription, cause)
            else:
                waiter = self._waiter_for(line, subscription, cause, event)
            if waiter is None:
                continue
            if waiter in woken:  # what it took is not sent yet: whether its client reads is known in the next turn
                is_more = True
                continue
            woken[waiter] = None
            line.wake(waiter, WakeUp(cause, event))
        for waiter in woken if is_more else ():  # all with room had their turn: each looks again, not each partition
            self.pass_on(subscription, WakeUp(waiter.consumer.id, subscription.events))
        self._watch(line, subscription)

    def _waiter_for(self, line: WaitLine, subscription: SubscriptionState, number: int, event: int) -> Waiter | None:
        """Return the first waiter that may pull from a partition, has room, and has not had this wake-up before."""
        if number not in subscription.nonempty:
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
        """Return the first waiter of a consumer that has room now, if any partition has messages."""
        known = subscription.consumers.get(consumer)
        found = None
        for waiter in list(line.of.get(consumer, ())):
            if waiter.consumer is not known:  # it left
                line.wake(waiter, None)
            elif known.has_room():
                line.queue.setdefault(waiter)
                found = found or (None if waiter.future.done() else waiter)
        return found if len(subscription.nonempty) else None

    def _watch(self, line: WaitLine, subscription: SubscriptionState) -> None:
        """Set one timer for all waiters: when the next message becomes due."""
        first = subscription.nonempty.times.first()
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
        leasing.mark_due(self._state, subscription, self._clock.wall_us() // 1000)
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
