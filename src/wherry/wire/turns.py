"""How much of the event loop a connection gets: what is read and handled of it, turn by turn.

    socket ── a chunk ──► data_received: parse and carry out ── the turn is used up ──► not read for now
                               ▲                                                             │
                               └── one of those that wait, each turn of the loop ◄───────────┘

A turn is processor time. The size of a chunk follows from what a byte of this connection has cost so far, so that one
chunk is about a turn at most, whether its bytes are one body or ten thousand heart-beats. What is not read stays with
the kernel, and then with the sender. While nobody else is read from, a turn is longer: work in large batches is
cheaper, and there is nobody to wait for it.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from time import perf_counter, thread_time
from weakref import WeakKeyDictionary

TURN_S, ALONE_S, STRANGER_S = 0.001, 0.02, 0.00025
"""A turn beside others, alone, and of a client that is not let in yet."""

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

STRANGER_BYTES_MAX = 128 << 10
"""What a client may send before it is let in, in all. A login is some hundred bytes; a certificate or token some KB."""

UNSTORED_BYTES, UNSTORED_ALONE_BYTES = 512 << 10, 8 << 20
"""Published by one connection and not on disk yet, beside others and alone; beyond it nothing is read from it.

What is queued for the disk delays the sync that everybody else waits for.
"""


class Turns:
    """Of one event loop: who was read from, and who waits for a turn."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._last = 0
        self._lap_began = self._waits_since = 0.0
        self._last_at = self._other_at = float("-inf")
        """When the last connection was read from, and when any other than that one."""
        self.buffer = memoryview(bytearray(CHUNK_ALONE_BYTES))
        """Where all sockets of the loop are read into: what is read is taken out before the next one is."""
        self.count = 0
        """Turns given to those who waited, since the start."""

    def seen(self, who: object, now: float) -> None:
        """Something was read from a connection."""
        if id(who) != self._last:
            self._last, self._other_at = id(who), self._last_at
        self._last_at = now

    def is_alone(self, who: object, now: float) -> bool:
        """Whether nobody else was read from for a while."""
        return now - (self._other_at if id(who) == self._last else self._last_at) > COMPANY_S

    def unstored_max(self, who: object) -> int:
        """Bytes that a connection may have published without their being on disk."""
        return UNSTORED_ALONE_BYTES if self.is_alone(who, perf_counter()) else UNSTORED_BYTES

    def wait(self, call: Callable[[], None]) -> None:
        """Call back when it is its turn: one a turn of the loop, in the order in which they came."""
        self._waiting.append(call)
        self._schedule()

    async def turn(self) -> None:
        """Wait for a turn."""
        given = asyncio.get_running_loop().create_future()
        self.wait(lambda: None if given.done() else given.set_result(None))
        await given

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._waits_since = perf_counter()
            self._yield()

    def _yield(self) -> None:
        self._lap_began = thread_time()
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """After a turn of the loop: give one of those who wait a turn, unless others had something to do meanwhile."""
        if self._others_are_busy():
            self._yield()
            return
        self._is_scheduled = False
        self.count += 1
        call = self._waiting.popleft()
        if self._waiting:
            self._schedule()
        call()

    def _others_are_busy(self) -> bool:
        """Whether the loop was not idle, and whoever waits has not waited too long yet."""
        now = perf_counter()
        has_company = now - self._other_at < COMPANY_S
        return has_company and thread_time() - self._lap_began > IDLE_S and now - self._waits_since < PATIENCE_S


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns() -> Turns:
    """Those of the running loop, which all its servers share."""
    loop = asyncio.get_running_loop()
    found = _TURNS.get(loop)
    if found is None:
        found = _TURNS[loop] = Turns()
    return found


class Turn:
    """What one connection has left of its turn."""

    def __init__(self, shared: Turns, who: object) -> None:
        self.shared, self._who = shared, who
        self._byte_s = BYTE_S
        self._left_s = self._whole_s = TURN_S
        self._began = self._ended = 0.0

    def begin(self, *, is_stranger: bool = False) -> None:
        """Something is about to be done; the time since the last that was done gives some of the turn back."""
        now = perf_counter()
        if is_stranger:
            self._whole_s = STRANGER_S
        else:
            self._whole_s = ALONE_S if self.shared.is_alone(self._who, now) else TURN_S
        self._left_s = min(self._whole_s, self._left_s + SHARE * (now - self._ended))
        self._began = thread_time()

    def end(self, size: int = 0) -> bool:
        """It is done, for so many bytes; whether the turn is over."""
        spent = thread_time() - self._began
        self._left_s -= spent
        self._ended = perf_counter()
        if size >= TELLING_BYTES:
            self._byte_s = max(spent / size, self._byte_s / 2)
        return self._left_s <= 0

    def again(self) -> bool:
        """A new turn; whether it can be used, or pays for what was too much in those before."""
        self._left_s = min(self._whole_s, self._left_s + self._whole_s)
        return self._left_s > 0

    async def next(self) -> None:
        """Between two calls of a connection that follow each other: wait for a new turn if this one is used up."""
        if self.end():
            await self.shared.turn()
            while not self.again():
                await self.shared.turn()
        self.begin()

    def chunk_bytes(self) -> int:
        """How much to read, by what is left."""
        most = CHUNK_ALONE_BYTES if self._whole_s == ALONE_S else CHUNK_BYTES
        return max(CHUNK_BYTES_MIN, min(most, int(self._left_s / self._byte_s)))


class TurnProtocol(asyncio.BufferedProtocol):
    """A connection that is read by turns. Whoever inherits calls `begin_turns` first, and `stop` and `go_on`.

    Reading stops for reasons, each of which ends by itself: it goes on when there is none left.
    """

    def begin_turns(self, transport: asyncio.Transport) -> None:
        """Of a transport that is being read."""
        self._socket = transport
        self.shared_turns = turns()
        self._turn = Turn(self.shared_turns, self)
        self._stops: set[str] = set()
        self._strange_bytes = 0
        self._rest = b""

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
        self._push()

    def _push(self) -> None:
        if self._socket.is_closing():
            return
        self._turn.begin(is_stranger=self.is_stranger)
        size = self._turn.chunk_bytes()
        piece, self._rest = self._rest[:size], self._rest[size:]
        if self._rest:
            self.shared_turns.wait(self._push)
        self._came(piece)
        if not self._rest:
            self.go_on("rest")

    def _came(self, data: bytes) -> None:
        """A chunk, for which the turn has begun."""
        self.data_received(data)
        if self.is_stranger:
            self._strange_bytes += len(data)
            if self._strange_bytes > STRANGER_BYTES_MAX:
                self.refuse_stranger(f"{self._strange_bytes} bytes without a login; allowed: {STRANGER_BYTES_MAX}")
        self.shared_turns.seen(self, perf_counter())
        if self._turn.end(len(data)) and "turn" not in self._stops:
            self.stop("turn")
            self.shared_turns.wait(self._on_turn)

    def _on_turn(self) -> None:
        if self._turn.again():
            self.go_on("turn")
        else:
            self.shared_turns.wait(self._on_turn)

    def stop(self, why: str) -> None:
        """Read no more for now."""
        if not self._stops and not self._socket.is_closing():
            self._socket.pause_reading()
        self._stops.add(why)

    def go_on(self, why: str) -> None:
        """One reason less."""
        if why in self._stops:
            self._stops.discard(why)
            if not self._stops and not self._socket.is_closing():
                self._socket.resume_reading()
