"""A connection that is read within its budget of the event loop.

socket ──► get_buffer ── a large body is arriving ──► its own memory ──► arrived
                └─────── anything else ──► the buffer of the loop ──► data_received
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from wherry.wire.fairness import CHUNK_BYTES, STRANGER_BYTES_MAX, Budget, fair_loop

SPACE_BYTES = 256 << 10
"""Most bytes that are read at once into a body that is arriving: they are only copied, whatever is in them."""

ACCEPT_S = 0.0002
"""What accepting and closing a connection costs of the budget of the strangers."""


class FairProtocol(asyncio.BufferedProtocol):
    """A connection that is read within its budget. A subclass calls `join_loop` first and `leave_loop` last.

    Reading stops for reasons that are given to `stop` and taken back by `go_on`; it continues when none is left.
    """

    def join_loop(self, transport: asyncio.Transport) -> None:
        """Take part in the fair loop, with a transport that is being read."""
        self._socket = transport
        self.fair_loop = shared = fair_loop()
        self._budget = Budget(shared, self)
        self._stops: set[str] = set()
        self._strange_bytes = 0
        self._unhandled = b""
        self._reads_space = False
        shared.strangers.spend(ACCEPT_S)
        shared.read_strangers[self] = None
        if shared.strangers.is_empty(shared.clock()):  # later, since uvloop ignores a pause made in `connection_made`
            asyncio.get_running_loop().call_soon(self.give_way)

    def leave_loop(self) -> None:
        """Leave the fair loop, since the connection is closed."""
        self.fair_loop.read_strangers.pop(self, None)

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""

    def space(self) -> memoryview | None:
        """Return where to read the next bytes to, if they belong to a large body; None: to the buffer of the loop."""
        return None

    @property
    def reads_large(self) -> bool:
        """Whether a large body probably comes next: then little is read, to learn where the rest belongs."""
        return False

    def arrived(self, count: int) -> None:
        """Handle bytes that were read to `space`."""
        raise NotImplementedError

    @property
    @abstractmethod
    def is_stranger(self) -> bool:
        """Whether the client has not logged in yet."""

    @abstractmethod
    def refuse_stranger(self, why: str) -> None:
        """Cut off a client that sent too much before login."""

    @property
    def is_stopped(self) -> bool:
        """Whether the connection is not read, for any reason: then a client cannot be late."""
        return bool(self._stops)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._budget.begin(is_stranger=self.is_stranger)
        space = self.space()
        self._reads_space = space is not None
        if space is not None:
            return space[:SPACE_BYTES]
        size = self._budget.chunk_bytes()
        return self.fair_loop.buffer[: min(size, CHUNK_BYTES) if self.reads_large else size]

    def buffer_updated(self, count: int) -> None:
        if self._reads_space:
            self.arrived(count)
            self._budget.note_bulk(count)
            self._end_step(0)  # the cost of these bytes says nothing about others
        else:
            self._handle_chunk(bytes(self.fair_loop.buffer[:count]))

    def handle_first(self, data: bytes) -> None:
        """Handle bytes that another protocol has read from the socket, before any that are read from now on."""
        self._unhandled = data
        self.stop("unhandled")
        self.fair_loop.wait(self._handle_unhandled, is_stranger=self.is_stranger)

    def _handle_unhandled(self) -> None:
        if self._socket.is_closing():
            return
        self._budget.begin(is_stranger=self.is_stranger)
        size = self._budget.chunk_bytes()
        chunk, self._unhandled = self._unhandled[:size], self._unhandled[size:]
        self._handle_chunk(chunk)
        if self._unhandled:
            self.fair_loop.wait(self._handle_unhandled, is_stranger=self.is_stranger)
        else:
            self.go_on("unhandled")

    def _handle_chunk(self, data: bytes) -> None:
        """Handle a chunk, for which the budget has begun a step; stop reading if the budget is used up."""
        self.data_received(data)
        if self._budget.is_stranger:
            self._count_stranger_bytes(len(data))
        self._end_step(len(data))

    def _end_step(self, size: int) -> None:
        budget = self._budget
        is_used_up = budget.end(size)
        self.fair_loop.note_read(self, budget.ended_at, is_light=budget.is_light)
        if is_used_up:
            self.give_way()
            if budget.is_stranger and self.fair_loop.strangers.is_empty(self.fair_loop.clock()):
                self.fair_loop.stop_strangers()

    def _count_stranger_bytes(self, size: int) -> None:
        if not self.is_stranger:
            self.fair_loop.read_strangers.pop(self, None)
            return
        self._strange_bytes += size
        if self._strange_bytes > STRANGER_BYTES_MAX:
            self.refuse_stranger(f"{self._strange_bytes} bytes without a login; allowed: {STRANGER_BYTES_MAX}")

    def give_way(self) -> None:
        """Stop reading, and wait in line for a new budget."""
        if "budget" not in self._stops and not self._socket.is_closing():
            self.stop("budget")
            self.fair_loop.wait(self._on_first_in_line, is_stranger=self.is_stranger)

    def _on_first_in_line(self) -> None:
        if self._socket.is_closing() or self._budget.refill():
            self.go_on("budget")
        else:
            self.fair_loop.wait(self._on_first_in_line, is_stranger=self.is_stranger)

    def stop(self, why: str) -> None:
        """Stop reading until `go_on` takes this reason back."""
        if not self._stops and not self._socket.is_closing():
            self._socket.pause_reading()
        self._stops.add(why)
        self.fair_loop.read_strangers.pop(self, None)

    def go_on(self, why: str) -> None:
        """Take back a reason to stop; read again if it was the last one."""
        if why not in self._stops:
            return
        if why != "budget" and self._stops == {why}:  # one sync may end the stops of many connections: line them up
            self.give_way()
        self._stops.discard(why)
        if not self._stops and not self._socket.is_closing():
            self._socket.resume_reading()
            if self.is_stranger:
                self.fair_loop.read_strangers[self] = None
