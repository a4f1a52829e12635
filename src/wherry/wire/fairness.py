"""Gives each connection a fair part of the event loop: a budget of processor time, which limits how much of it is read.

    socket ── a chunk ──► data_received: parse and carry out ── the budget is used up ──► not read for now
                               ▲                                                               │
                               └── one waiting connection in each turn of the loop ◄───────────┘

The size of a chunk follows from what a byte of this connection has cost so far, so that one chunk takes about one
budget at most, whether its bytes are one body or ten thousand heart-beats. Bytes that are not read stay in the kernel,
and then with the client. While no other connection is read, a budget is larger: work in large batches is cheaper, and
no other client waits for it.

A *stranger* is a connection whose client has not logged in yet. All strangers share one budget (`FairLoop.strangers`).
When it is used up, none of them is read; waiting ones are read again as the budget refills, or while the loop is idle.
All other connections share a budget for the time that they use without waiting in line (`FairLoop.unqueued`). While
that is used up, time that passes refills no connection's own budget, so that a connection without one waits in line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from time import perf_counter, thread_time
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

BUDGET_S, ALONE_S, STRANGER_S, BRIEF_S = 0.001, 0.02, 0.00025, 0.00025
"""A budget beside other connections, alone, of a stranger, and while a light client is served.

A request passes through the loop several times, and may find the budget of another connection begun each time.
"""

LIGHT_SHARE, LIGHT_WINDOW_S = 0.04, 0.1
"""A connection is light if it uses at most this part of the loop, measured over this time."""

LIGHT_USED_S = LIGHT_SHARE * LIGHT_WINDOW_S

BULK_BYTE_S = 1.5e-9
"""What a byte of a large batch costs beside the measured steps: to check and store it, or to lease and send it."""

LIGHT_S = 0.002
"""A connection whose time is not measured is light if it was silent for so long."""

SERVED_S = 0.01
"""How long a light client counts as being served after it was read."""

COMPANY_S = 0.5
"""A connection is alone if no other one was read for so long."""

IDLE_S = 0.00005
"""Processor time of a turn of the loop that had nothing to do."""

PATIENCE_S = 0.005
"""How long waiting connections let all others go first; then one of them is read all the same."""

CHUNK_BYTES, CHUNK_ALONE_BYTES, CHUNK_BYTES_MIN = 16 << 10, 256 << 10, 512
"""Largest chunk beside other connections and alone, and the smallest. A chunk is handled whole, whatever it costs."""

MEASURED_BYTES = 256
"""The smallest chunk from which the cost of a byte is measured; a smaller one costs mostly the call itself."""

BYTE_S = 1e-7
"""The assumed cost of a byte before any was read."""

SHARE = 0.5
"""The part of the loop that a connection may use without ever waiting in line."""

STRANGERS_SHARE, STRANGERS_S = 0.1, 0.005
"""The part of the loop that all strangers share beside other connections, and how much of it they can save up."""

STRANGERS_AT_ONCE = 16
"""Strangers that are read again in one turn of the loop, at most; most of them have sent nothing."""

UNQUEUED_SHARE, UNQUEUED_S = 0.5, 0.005
"""The part of the loop that all other connections may use without waiting in line, and how much they can save up."""

STRANGER_BYTES_MAX = 128 << 10
"""Bytes that a client may send before login. A login has some hundred bytes; a certificate or token some KB."""

UNSTORED_BYTES, UNSTORED_ALONE_BYTES, UNSTORED_BRIEF_BYTES = 512 << 10, 8 << 20, 64 << 10
"""Bytes that one connection may have published that are not on disk yet, beside other connections, alone, and while a
light client is served; beyond it the connection is not read.

Bytes that are queued for the disk delay the sync that all other clients wait for.
"""


T = TypeVar("T")


class SharedBudget:
    """Processor time that many connections share: a part of the time that passes, saved up to a bound.

    It may be overdrawn, since the cost of a chunk is known only after it was handled. It is overdrawn by its bound at
    most: time that was used while no other connection wanted it is forgotten.
    """

    def __init__(self, share: float, most_s: float) -> None:
        self._share, self._most_s = share, most_s
        self._left_s, self._at = most_s, float("-inf")

    def is_empty(self, now: float) -> bool:
        """Refill the budget by the time that has passed, and return whether nothing is left of it."""
        if now > self._at:
            self._left_s = min(self._most_s, self._left_s + self._share * (now - self._at))
            self._at = now
        return self._left_s <= 0

    def spend(self, spent_s: float) -> None:
        """Take used time from the budget."""
        self._left_s = max(-self._most_s, self._left_s - spent_s)


class Stranger(Protocol):
    """A connection that is being read before its client has logged in."""

    @property
    def is_stranger(self) -> bool:
        """Whether that is still so."""

    def give_way(self) -> None:
        """Stop reading, and wait in line."""


class FairLoop:
    """What the connections of one event loop share: their budgets, and the line in which they wait."""

    def __init__(self, clock: Callable[[], float] | None = None, used: Callable[[], float] | None = None) -> None:
        self.clock, self.used = clock or perf_counter, used or thread_time
        """Seconds that pass, and seconds of the processor that this loop has used."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._strange: deque[Callable[[], None]] = deque()
        """Callbacks of waiting connections after login, and of waiting strangers."""
        self.strangers = SharedBudget(STRANGERS_SHARE, STRANGERS_S)
        self.unqueued = SharedBudget(UNQUEUED_SHARE, UNQUEUED_S)
        self.read_strangers: dict[Stranger, None] = {}
        """Strangers that are being read; in the order in which they connected."""
        self._is_scheduled = False
        self._last: object = None
        """The last connection that was read. An object instead of its id, since Python may use the id again."""
        self._turn_began = self._waits_since = 0.0
        self._serves_until = 0.0
        """When the last light client that was read is assumed to have its answer."""
        self._last_at = self._other_at = float("-inf")
        """When the last connection was read, and when any other one was."""
        self.buffer = memoryview(bytearray(CHUNK_ALONE_BYTES))
        """All sockets of the loop are read into this buffer: each chunk is copied out before the next read."""
        self.count = 0
        """How many waiting connections were read again since the start."""

    def note_read(self, who: object, now: float, *, is_light: bool = False) -> None:
        """Note that a connection was read."""
        if is_light:
            self._serves_until = now + SERVED_S
        if who is not self._last:
            self._last, self._other_at = who, self._last_at
        self._last_at = now

    def is_alone(self, who: object, now: float) -> bool:
        """Return whether no other connection was read for a while."""
        return now - (self._other_at if who is self._last else self._last_at) > COMPANY_S

    def budget_s(self, who: object, now: float, *, is_light: bool) -> float:
        """Return the size of the budget of a connection after login."""
        if self.is_alone(who, now):
            return ALONE_S
        return BRIEF_S if now < self._serves_until and not is_light else BUDGET_S

    def unstored_max(self, who: object) -> int:
        """Return how many bytes a connection may have published that are not on disk yet."""
        now = self.clock()
        if self.is_alone(who, now):
            return UNSTORED_ALONE_BYTES
        return UNSTORED_BRIEF_BYTES if now < self._serves_until else UNSTORED_BYTES

    def wait(self, call: Callable[[], None], *, is_stranger: bool = False) -> None:
        """Put a callback in line: one is called in each turn of the loop, in order."""
        if is_stranger:
            self._strange.append(call)
        else:
            if not self._waiting:
                self._waits_since = self.clock()
            self._waiting.append(call)
        if not self._is_scheduled:
            self._schedule()

    async def wait_in_line(self, *, is_stranger: bool = False) -> None:
        """Wait in line until this caller is the first."""
        given = asyncio.get_running_loop().create_future()
        self.wait(lambda: None if given.done() else given.set_result(None), is_stranger=is_stranger)
        await given

    def stop_strangers(self) -> None:
        """Read no stranger for now: put each of them in line.

        Otherwise all that many of them send at the same moment would be handled in one turn of the loop.
        """
        stopped, self.read_strangers = self.read_strangers, {}
        for each in stopped:
            if each.is_stranger:
                each.give_way()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._turn_began = self.used()
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Call the next callback in line, unless other connections used the turn of the loop that has just ended.

        Strangers are called from their own budget, and beyond it only if no other connection wants the loop.
        """
        now = self.clock()
        is_idle = self.used() - self._turn_began <= IDLE_S
        calls: list[Callable[[], None]] = []
        if self._waiting and (is_idle or not self._others_first(now)):
            calls.append(self._waiting.popleft())
            self._waits_since = now
        if self._strange and not self.strangers.is_empty(now):
            calls += (self._strange.popleft() for _ in range(min(len(self._strange), STRANGERS_AT_ONCE)))
        elif self._strange and is_idle and not calls:
            calls.append(self._strange.popleft())
        self.count += len(calls)
        self._is_scheduled = False
        if self._waiting or self._strange:
            self._schedule()
        for call in calls:
            call()

    def _others_first(self, now: float) -> bool:
        """Return whether other connections are active, and the first in line has not waited too long yet."""
        return now - self._other_at < COMPANY_S and now - self._waits_since < PATIENCE_S


_FAIR_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, FairLoop] = WeakKeyDictionary()


def fair_loop() -> FairLoop:
    """Return the `FairLoop` of the running loop, which all its servers share."""
    loop = asyncio.get_running_loop()
    found = _FAIR_LOOPS.get(loop)
    if found is None:
        found = _FAIR_LOOPS[loop] = FairLoop()
    return found


def set_fair_loop(shared: FairLoop) -> None:
    """Set the `FairLoop` of the running loop, for servers that start after this; the simulator's has other clocks."""
    _FAIR_LOOPS[asyncio.get_running_loop()] = shared


class Budget:
    """The processor time that one connection may use before it has to wait in line."""

    def __init__(self, shared: FairLoop, who: object) -> None:
        self.shared, self._who = shared, who
        self._byte_s = BYTE_S
        self._left_s = self._whole_s = BUDGET_S
        self._began = 0.0
        self.ended_at = 0.0
        """When the last step ended, or the one that is being measured began."""
        self._granted_s = 0.0
        """The unused rest of the time that the connection got by waiting in line."""
        self._used_s = 0.0
        """Time used lately; time used longer ago than `LIGHT_WINDOW_S` is not counted."""
        self.is_stranger = False

    def begin(self, *, is_stranger: bool = False) -> None:
        """Begin to measure a step of work; the time since the last step refills a part of the budget.

        Nothing may be awaited between this and `end`: the work of others would be counted.
        """
        shared = self.shared
        now = shared.clock()
        passed_s = now - self.ended_at
        self.is_stranger = is_stranger
        self._used_s *= 1.0 - passed_s / LIGHT_WINDOW_S if passed_s < LIGHT_WINDOW_S else 0.0
        if is_stranger:
            whole_s, together = STRANGER_S, shared.strangers
        else:
            whole_s, together = shared.budget_s(self._who, now, is_light=self._used_s <= LIGHT_USED_S), shared.unqueued
        self._whole_s = whole_s
        left_s = self._left_s if together.is_empty(now) else self._left_s + SHARE * passed_s
        self._left_s = left_s if left_s < whole_s else whole_s
        self.ended_at = now  # a read that finds nothing begins a step and does not end it: refill only once
        self._began = shared.used()

    def end(self, size: int = 0) -> bool:
        """End the step, which handled `size` bytes; return whether the budget is used up."""
        shared = self.shared
        spent = shared.used() - self._began
        self._left_s -= spent
        self._used_s += spent
        self.ended_at = shared.clock()
        if size >= MEASURED_BYTES:
            self._byte_s = max(spent / size, self._byte_s / 2)
        if self.is_stranger:
            shared.strangers.spend(spent)
        elif self._granted_s >= spent:
            self._granted_s -= spent
        else:
            shared.unqueued.spend(spent - self._granted_s)
            self._granted_s = 0.0
        return self.is_used_up()

    def note_bulk(self, size: int) -> None:
        """Note bytes of large batches, either way: their client is not light, however short its steps are."""
        self._used_s += size * BULK_BYTE_S

    @property
    def is_light(self) -> bool:
        """Whether the connection uses little of the loop."""
        return not self.is_stranger and self._used_s <= LIGHT_USED_S

    def is_used_up(self) -> bool:
        """Return whether the connection has to wait in line."""
        return self._left_s <= 0 or (self.is_stranger and self.shared.strangers.is_empty(self.ended_at))

    def refill(self) -> bool:
        """Add a whole budget; return False if it only pays for time that was used beyond earlier ones."""
        self._left_s = min(self._whole_s, self._left_s + self._whole_s)
        self._granted_s = self._whole_s
        return self._left_s > 0

    async def wait_if_used_up(self) -> None:
        """Wait in line between two calls of a connection if the budget is used up."""
        if self.is_used_up():
            await self.shared.wait_in_line(is_stranger=self.is_stranger)
            while not self.refill():
                await self.shared.wait_in_line(is_stranger=self.is_stranger)

    def timed(self, work: Awaitable[T], *, is_stranger: bool = False) -> TimedWork[T]:
        """Return an awaitable whose own steps are measured, without what others do between them."""
        return TimedWork(self, work, is_stranger=is_stranger)

    def chunk_bytes(self) -> int:
        """Return how many bytes to read, by what is left of the budget."""
        most = CHUNK_ALONE_BYTES if self._whole_s == ALONE_S else CHUNK_BYTES
        wished = self._left_s / self._byte_s
        return most if wished >= most else max(CHUNK_BYTES_MIN, int(wished))


class TimedWork(Awaitable[T]):
    """Work whose steps are made one by one, each measured by a budget."""

    def __init__(self, budget: Budget, work: Awaitable[T], *, is_stranger: bool) -> None:
        self._budget, self._work, self._is_stranger = budget, work, is_stranger

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            self._budget.begin(is_stranger=self._is_stranger)
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value
            finally:
                self._budget.end()
            try:
                yield waits_for
                step = partial(next, steps)
            except BaseException as fault:
                step = partial(steps.throw, fault)
