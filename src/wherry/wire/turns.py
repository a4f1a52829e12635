"""How much of the event loop a connection gets: what is read and handled of it, turn by turn.

    socket ── a chunk ──► data_received: parse and carry out ── the turn is used up ──► not read for now
                               ▲                                                             │
                               └── one of those that wait, each turn of the loop ◄───────────┘

A turn is processor time. The size of a chunk follows from what a byte of this connection has cost so far, so that one
chunk is about a turn at most, whether its bytes are one body or ten thousand heart-beats. What is not read stays with
the kernel, and then with the sender. While nobody else is read from, a turn is longer: work in large batches is
cheaper, and there is nobody to wait for it.

However many they are, those who are not let in yet share one part of the loop (`Turns.strangers`): when it is used up
none of them is read from, and those of them that wait go on as it comes back, or while the loop is idle. Those who are
let in share what may be used without waiting in line (`Turns.unasked`): when it is used up, silence gives nobody a turn
back, and whoever has used up theirs waits in line.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from time import perf_counter, thread_time
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

TURN_S, ALONE_S, STRANGER_S, BRIEF_S = 0.001, 0.02, 0.00025, 0.00025
"""A turn beside others, alone, of a client that is not let in yet, and while a light client is served.

What a client asks for goes through the loop several times, and every time it may find somebody else's turn begun.
"""

LIGHT_SHARE, LIGHT_WINDOW_S = 0.04, 0.1
"""A connection is light that uses at most this part of the loop, looked at over this time."""

LIGHT_S = 0.002
"""Where nobody counts what a connection uses: it is light if it was silent for so long."""

SERVED_S = 0.01
"""How long a light client is taken to be served after something was read from it."""

COMPANY_S = 0.5
"""How long ago somebody else was read from, that a connection is not alone."""

IDLE_S = 0.00005
"""Processor time of a turn of the loop in which nobody had anything to do."""

PATIENCE_S = 0.005
"""How long those whose turn is used up stand back behind all others; then one of them has a turn all the same."""

CHUNK_BYTES, CHUNK_ALONE_BYTES, CHUNK_BYTES_MIN = 16 << 10, 256 << 10, 512
"""Read at once beside others, alone, and at least. What is in a chunk is handled whole, whatever it costs."""

TELLING_BYTES = 256
"""From so many on a chunk tells what a byte costs; of fewer it is mostly the call."""

BYTE_S = 1e-7
"""What a byte is taken to cost before one was read."""

SHARE = 0.5
"""The part of the loop that a connection may use without ever waiting for its turn."""

STRANGERS_SHARE, STRANGERS_S = 0.1, 0.005
"""The part of the loop that all who are not let in have together beside others, and how much of it they can save up."""

TAKEN_IN_S = 0.0002
"""What it counts against that to take a connection in, and to let it go."""

STRANGERS_AT_ONCE = 16
"""Go on in one turn of the loop, at most; most of them have nothing to say."""

UNASKED_SHARE, UNASKED_S = 0.5, 0.005
"""The same of all who are let in, for what they use without having waited for it."""

STRANGER_BYTES_MAX = 128 << 10
"""What a client may send before it is let in, in all. A login is some hundred bytes; a certificate or token some KB."""

UNSTORED_BYTES, UNSTORED_ALONE_BYTES, UNSTORED_BRIEF_BYTES = 512 << 10, 8 << 20, 64 << 10
"""Published by one connection and not on disk yet, beside others, alone, and while a light client is served; beyond it
nothing is read from it.

What is queued for the disk delays the sync that everybody else waits for.
"""


T = TypeVar("T")


class Purse:
    """Processor time that many connections share: a part of the time that goes by, saved up to a bound.

    It may be overdrawn, since what a chunk costs is known when it is handled, and only as far as it can be filled:
    what was used while nobody else wanted it is forgotten.
    """

    def __init__(self, share: float, most_s: float) -> None:
        self._share, self._most_s = share, most_s
        self._left_s, self._at = most_s, float("-inf")

    def is_empty(self, now: float) -> bool:
        """Whether nothing is left of it."""
        if now > self._at:
            self._left_s = min(self._most_s, self._left_s + self._share * (now - self._at))
            self._at = now
        return self._left_s <= 0

    def spend(self, spent_s: float) -> None:
        """So much was used."""
        self._left_s = max(-self._most_s, self._left_s - spent_s)


class Turns:
    """Of one event loop: who was read from, and who waits for a turn."""

    def __init__(self, clock: Callable[[], float] | None = None, used: Callable[[], float] | None = None) -> None:
        self.clock, self.used = clock or perf_counter, used or thread_time
        """Seconds that pass, and seconds of the processor that this loop has used."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._strange: deque[Callable[[], None]] = deque()
        """Those who wait, and those of them who are not let in."""
        self.strangers = Purse(STRANGERS_SHARE, STRANGERS_S)
        self.unasked = Purse(UNASKED_SHARE, UNASKED_S)
        self.read_strangers: dict[TurnProtocol, None] = {}
        """Not let in, and not stopped; in the order in which they came."""
        self._is_scheduled = False
        self._last: object = None
        """The last connection that was read from; kept, since the id of one that is gone may be another's."""
        self._lap_began = self._waits_since = 0.0
        self._serves_until = 0.0
        """When the last light client that was read from is taken to have its answer."""
        self._last_at = self._other_at = float("-inf")
        """When the last connection was read from, and when any other than that one."""
        self.buffer = memoryview(bytearray(CHUNK_ALONE_BYTES))
        """Where all sockets of the loop are read into: what is read is taken out before the next one is."""
        self.count = 0
        """Turns given to those who waited, since the start."""

    def seen(self, who: object, now: float, *, is_light: bool = False) -> None:
        """Something was read from a connection."""
        if is_light:
            self._serves_until = now + SERVED_S
        if who is not self._last:
            self._last, self._other_at = who, self._last_at
        self._last_at = now

    def is_alone(self, who: object, now: float) -> bool:
        """Whether nobody else was read from for a while."""
        return now - (self._other_at if who is self._last else self._last_at) > COMPANY_S

    def turn_s(self, who: object, now: float, *, is_light: bool) -> float:
        """How long a turn of a connection is, of one that is let in."""
        if self.is_alone(who, now):
            return ALONE_S
        return BRIEF_S if now < self._serves_until and not is_light else TURN_S

    def unstored_max(self, who: object) -> int:
        """Bytes that a connection may have published without their being on disk."""
        now = self.clock()
        if self.is_alone(who, now):
            return UNSTORED_ALONE_BYTES
        return UNSTORED_BRIEF_BYTES if now < self._serves_until else UNSTORED_BYTES

    def wait(self, call: Callable[[], None], *, is_stranger: bool = False) -> None:
        """Call back when it is its turn: one a turn of the loop, in the order in which they came."""
        if is_stranger:
            self._strange.append(call)
        else:
            if not self._waiting:
                self._waits_since = self.clock()
            self._waiting.append(call)
        if not self._is_scheduled:
            self._yield()

    async def turn(self, *, is_stranger: bool = False) -> None:
        """Wait for a turn."""
        given = asyncio.get_running_loop().create_future()
        self.wait(lambda: None if given.done() else given.set_result(None), is_stranger=is_stranger)
        await given

    def stop_strangers(self) -> None:
        """Read from none of them for now: each goes on in its turn.

        What many of them send at the same moment would all be handled in one turn of the loop otherwise.
        """
        stopped, self.read_strangers = self.read_strangers, {}
        for each in stopped:
            if each.is_stranger:
                each.stand_back()

    def _yield(self) -> None:
        self._is_scheduled = True
        self._lap_began = self.used()
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """After a turn of the loop: give one of those who wait a turn, unless others had something to do meanwhile.

        Strangers have their own part of the loop, and more of it only if nobody else wants it.
        """
        now = self.clock()
        is_idle = self.used() - self._lap_began <= IDLE_S
        calls: list[Callable[[], None]] = []
        if self._waiting and (is_idle or not self._stands_back(now)):
            calls.append(self._waiting.popleft())
            self._waits_since = now
        if self._strange and not self.strangers.is_empty(now):
            calls += (self._strange.popleft() for _ in range(min(len(self._strange), STRANGERS_AT_ONCE)))
        elif self._strange and is_idle and not calls:
            calls.append(self._strange.popleft())
        self.count += len(calls)
        self._is_scheduled = False
        if self._waiting or self._strange:
            self._yield()
        for call in calls:
            call()

    def _stands_back(self, now: float) -> bool:
        """Whether whoever waits lets others go first, and has not waited too long yet."""
        return now - self._other_at < COMPANY_S and now - self._waits_since < PATIENCE_S


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns() -> Turns:
    """Those of the running loop, which all its servers share."""
    loop = asyncio.get_running_loop()
    found = _TURNS.get(loop)
    if found is None:
        found = _TURNS[loop] = Turns()
    return found


def share_turns(shared: Turns) -> None:
    """Have all servers that start in the running loop from now on share these: with clocks of another kind."""
    _TURNS[asyncio.get_running_loop()] = shared


class Turn:
    """What one connection has left of its turn."""

    def __init__(self, shared: Turns, who: object) -> None:
        self.shared, self._who = shared, who
        self._byte_s = BYTE_S
        self._left_s = self._whole_s = TURN_S
        self._began = self._ended = 0.0
        self._granted_s = 0.0
        """Of what it was given because it waited, what it has not used."""
        self._used_s = 0.0
        """Used lately; what was used longer ago than `LIGHT_WINDOW_S` counts no more."""
        self.is_stranger = False

    def begin(self, *, is_stranger: bool = False) -> None:
        """Something is about to be done; the time since the last that was done gives some of the turn back.

        Between this and `end` nothing is awaited: it would count what others do meanwhile.
        """
        now = self.shared.clock()
        self.is_stranger = is_stranger
        self._used_s *= max(0.0, 1.0 - (now - self._ended) / LIGHT_WINDOW_S)
        self._whole_s = STRANGER_S if is_stranger else self.shared.turn_s(self._who, now, is_light=self.is_light)
        purse = self.shared.strangers if is_stranger else self.shared.unasked
        given_back = 0.0 if purse.is_empty(now) else SHARE * (now - self._ended)
        self._left_s = min(self._whole_s, self._left_s + given_back)
        self._ended = now  # it may begin again without having ended, where nothing was there to be read
        self._began = self.shared.used()

    def end(self, size: int = 0) -> bool:
        """It is done, for so many bytes; whether the turn is over."""
        spent = self.shared.used() - self._began
        self._left_s -= spent
        self._used_s += spent
        self._ended = self.shared.clock()
        if size >= TELLING_BYTES:
            self._byte_s = max(spent / size, self._byte_s / 2)
        if self.is_stranger:
            self.shared.strangers.spend(spent)
        elif self._granted_s >= spent:
            self._granted_s -= spent
        else:
            self.shared.unasked.spend(spent - self._granted_s)
            self._granted_s = 0.0
        return self._is_over()

    @property
    def is_light(self) -> bool:
        """Whether the connection uses little of the loop."""
        return not self.is_stranger and self._used_s <= LIGHT_SHARE * LIGHT_WINDOW_S

    def _is_over(self) -> bool:
        return self._left_s <= 0 or (self.is_stranger and self.shared.strangers.is_empty(self._ended))

    def again(self) -> bool:
        """A new turn; whether it can be used, or pays for what was too much in those before."""
        self._left_s = min(self._whole_s, self._left_s + self._whole_s)
        self._granted_s = self._whole_s
        return self._left_s > 0

    async def ready(self) -> None:
        """Between two calls of a connection that follow each other: wait for a new turn if this one is used up."""
        if self._is_over():
            await self.shared.turn(is_stranger=self.is_stranger)
            while not self.again():
                await self.shared.turn(is_stranger=self.is_stranger)

    def timed(self, work: Awaitable[T], *, is_stranger: bool = False) -> Timed[T]:
        """Something to be awaited, of which every step counts, and nothing of what others do in between."""
        return Timed(self, work, is_stranger=is_stranger)

    def chunk_bytes(self) -> int:
        """How much to read, by what is left."""
        most = CHUNK_ALONE_BYTES if self._whole_s == ALONE_S else CHUNK_BYTES
        return max(CHUNK_BYTES_MIN, min(most, int(self._left_s / self._byte_s)))


class Timed(Awaitable[T]):
    """Work whose steps are made one by one, each as a part of a turn."""

    def __init__(self, turn: Turn, work: Awaitable[T], *, is_stranger: bool) -> None:
        self._turn, self._work, self._is_stranger = turn, work, is_stranger

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            self._turn.begin(is_stranger=self._is_stranger)
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value
            finally:
                self._turn.end()
            try:
                yield waits_for
                step = partial(next, steps)
            except BaseException as fault:
                step = partial(steps.throw, fault)


class TurnProtocol(asyncio.BufferedProtocol):
    """A connection that is read by turns. Who inherits calls `begin_turns` first, `end_turns` last, `stop`, `go_on`.

    Reading stops for reasons, each of which ends by itself: it goes on when there is none left.
    """

    def begin_turns(self, transport: asyncio.Transport) -> None:
        """Of a transport that is being read."""
        self._socket = transport
        self.shared_turns = shared = turns()
        self._turn = Turn(shared, self)
        self._stops: set[str] = set()
        self._strange_bytes = 0
        self._rest = b""
        shared.strangers.spend(TAKEN_IN_S)
        shared.read_strangers[self] = None
        if shared.strangers.is_empty(shared.clock()):  # uvloop reads after `connection_made`, whatever is said in it
            asyncio.get_running_loop().call_soon(self.stand_back)

    def end_turns(self) -> None:
        """The connection is gone."""
        self.shared_turns.read_strangers.pop(self, None)

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""

    @property
    @abstractmethod
    def is_stranger(self) -> bool:
        """Whether the client is not let in yet."""

    @abstractmethod
    def refuse_stranger(self, why: str) -> None:
        """Cut off a client that sent too much before it was let in."""

    @property
    def is_stopped(self) -> bool:
        """Whether nothing is read, for whatever reason: then a client cannot be late."""
        return bool(self._stops)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._turn.begin(is_stranger=self.is_stranger)
        return self.shared_turns.buffer[: self._turn.chunk_bytes()]

    def buffer_updated(self, count: int) -> None:
        self._came(bytes(self.shared_turns.buffer[:count]))

    def push(self, data: bytes) -> None:
        """Bytes that somebody else has read from the socket, before anything that is read now."""
        self._rest = data
        self.stop("rest")
        self.shared_turns.wait(self._push, is_stranger=self.is_stranger)

    def _push(self) -> None:
        if self._socket.is_closing():
            return
        self._turn.begin(is_stranger=self.is_stranger)
        size = self._turn.chunk_bytes()
        piece, self._rest = self._rest[:size], self._rest[size:]
        self._came(piece)
        if self._rest:
            self.shared_turns.wait(self._push, is_stranger=self.is_stranger)
        else:
            self.go_on("rest")

    def _came(self, data: bytes) -> None:
        """A chunk, for which the turn has begun."""
        self.data_received(data)
        if self._turn.is_stranger:
            self._count_strange(len(data))
        is_over = self._turn.end(len(data))
        self.shared_turns.seen(self, self.shared_turns.clock(), is_light=self._turn.is_light)
        if is_over:
            self.stand_back()
            if self._turn.is_stranger and self.shared_turns.strangers.is_empty(self.shared_turns.clock()):
                self.shared_turns.stop_strangers()

    def _count_strange(self, size: int) -> None:
        if not self.is_stranger:
            self.shared_turns.read_strangers.pop(self, None)
            return
        self._strange_bytes += size
        if self._strange_bytes > STRANGER_BYTES_MAX:
            self.refuse_stranger(f"{self._strange_bytes} bytes without a login; allowed: {STRANGER_BYTES_MAX}")

    def stand_back(self) -> None:
        """Read no more until it has a turn."""
        if "turn" not in self._stops and not self._socket.is_closing():
            self.stop("turn")
            self.shared_turns.wait(self._on_turn, is_stranger=self.is_stranger)

    def _on_turn(self) -> None:
        if self._socket.is_closing() or self._turn.again():
            self.go_on("turn")
        else:
            self.shared_turns.wait(self._on_turn, is_stranger=self.is_stranger)

    def stop(self, why: str) -> None:
        """Read no more for now."""
        if not self._stops and not self._socket.is_closing():
            self._socket.pause_reading()
        self._stops.add(why)
        self.shared_turns.read_strangers.pop(self, None)

    def go_on(self, why: str) -> None:
        """One reason less."""
        if why not in self._stops:
            return
        if why != "turn" and self._stops == {why}:  # one sync may let many go on: they do so one after the other
            self.stand_back()
        self._stops.discard(why)
        if not self._stops and not self._socket.is_closing():
            self._socket.resume_reading()
            if self.is_stranger:
                self.shared_turns.read_strangers[self] = None
