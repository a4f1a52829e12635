"""A network between clients and the servers of a simulated process, which delays, splits and loses bytes.

    write ──► outbox ── in pieces ──► line, delayed and in order ──► inbox ── data_received ──► protocol
                │                       │                              │
          pause_writing          lost with a cut                 pause_reading

Both ends are asyncio transports with a protocol object, as over a socket, so that the code of a server runs unchanged.
A piece takes time and never overtakes another. The line is bounded: a reader that stops reading makes the writer stop
writing. A cut loses the end of the bytes under way, in each direction as many as chance decides, and each side
notices at a time of its own. Bytes that a dead process had not put on the line are lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

LINE_BYTES = 16 << 10
"""Bytes under way in one direction at most, with those that the reader has not read."""

HIGH_BYTES, LOW_BYTES = 64 << 10, 16 << 10
"""Bytes in the outbox at which a writer must pause, and may continue, unless it sets other bounds."""

PIECES, TINY = (60, 400, 1_460, LINE_BYTES), (1, 7, 60, 400)
"""Sizes of the pieces that bytes are split into, usually and in a network with tiny pieces."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How a network behaves."""

    delay_s: float
    """Longest delay of a piece."""
    tiny: bool
    """Whether most pieces are tiny."""


@dataclass(slots=True)
class _Piece:
    data: bytes
    since: float
    """A time at or before which its first byte was written."""
    ends: Exception | bool | None = False
    """None: the writer closed its direction. An exception: the connection is broken. False: neither."""


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, name: str, peer: str, context: Context) -> None:
        super().__init__()
        self._network, self._names, self._context = network, {"sockname": (name, 0), "peername": (peer, 0)}, context
        self._protocol: asyncio.BaseProtocol
        self._other: SimTransport
        self._accept: Callable[[], asyncio.BaseProtocol] | None = None
        """Set at the end of a server until the server has accepted the connection."""
        self._outbox = bytearray()
        self._outbox_since = 0.0
        self._line: deque[_Piece] = deque()
        """Pieces under way from here to the other end."""
        self._line_bytes = 0
        self._arrives_at = 0.0
        self._inbox: deque[_Piece] = deque()
        self._eof_wanted = self._eof_sent = False
        self._is_reading, self._is_closing, self._is_over = True, False, False
        self._is_paused = False
        self._high, self._low = HIGH_BYTES, LOW_BYTES
        self.on_write: Callable[[], None] | None = None
        """Called after each write; it may kill the process or cut the power."""
        self.ended_at = float("inf")
        """When the connection began to end, by either side."""
        self.data_since = 0.0
        """A time at or before which the bytes that are handed over now were written at the other end."""

    # -------------------------------------------------------------------------------------------------- of asyncio

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._outbox)

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_over or self._eof_wanted or not len(data):
            return
        if not self._outbox:
            self._outbox_since = self._now()
        self._outbox += data
        self._fill_line()
        if len(self._outbox) > self._high and not self._is_paused:
            self._is_paused = True
            cast(asyncio.Protocol, self._protocol).pause_writing()
        if self.on_write is not None:
            self.on_write()

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self._eof_wanted = True
        self._ending()
        self._fill_line()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._soon(self._read)

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing, self._eof_wanted = True, True
        self._ending()
        self._inbox.clear()
        self._fill_line()

    def abort(self) -> None:
        if self._is_over:
            return
        self._is_closing = True
        self._outbox.clear()
        self._ending()
        self._break_line(ConnectionResetError("the other end has aborted"))
        self._lose(None)

    # ----------------------------------------------------------------------------------------------- on the way out

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        """Call a function in the process of this end, not in that of the caller."""
        asyncio.get_running_loop().call_soon(call, *args, context=self._context)

    def _ending(self) -> None:
        now = self._now()
        self.ended_at, self._other.ended_at = min(self.ended_at, now), min(self._other.ended_at, now)

    def _fill_line(self) -> None:
        """Put on the line what fits, and the end of the direction behind the last byte."""
        while self._outbox and self._line_bytes < LINE_BYTES:
            size = self._network.piece()
            data = bytes(self._outbox[:size])
            del self._outbox[:size]
            self._line_bytes += len(data)
            self._send(_Piece(data, self._outbox_since))
        if self._is_paused and len(self._outbox) <= self._low and not self._is_over:
            self._is_paused = False
            cast(asyncio.Protocol, self._protocol).resume_writing()
        if self._eof_wanted and not self._outbox and not self._eof_sent:
            self._eof_sent = True
            self._send(_Piece(b"", self._now(), ends=None))
        if self._is_closing and not self._outbox:
            self._lose(None)

    def _send(self, piece: _Piece) -> None:
        self._line.append(piece)
        self._arrives_at = max(self._arrives_at, self._now() + self._network.delay())
        loop = asyncio.get_running_loop()
        # Each of these calls delivers the piece that was sent first, whichever call is made first.
        loop.call_at(self._arrives_at, self._other._arrived, context=self._other._context)

    def _break_line(self, fault: Exception) -> None:
        """Lose the end of the bytes under way; the other end notices behind the rest."""
        kept = self._network.kept(len(self._line))
        while len(self._line) > kept:
            self._line.pop()
        self._eof_sent = self._eof_wanted = True
        self._send(_Piece(b"", self._now(), ends=fault))

    # ------------------------------------------------------------------------------------------------ on the way in

    def _accepted(self) -> None:
        """Let the server accept the connection, with its first byte at the latest."""
        if self._accept is not None:
            accept, self._accept = self._accept, None
            self._protocol = accept()
            self._protocol.connection_made(self)

    def _arrived(self) -> None:
        self._accepted()
        line = self._other._line
        if not line or self._is_over:
            return
        piece = line.popleft()
        if isinstance(piece.ends, Exception):
            self._is_closing = True
            self._lose(piece.ends)
            return
        if self._is_closing:  # this end does not read it any more
            self._taken(len(piece.data))
            return
        self._inbox.append(piece)
        self._read()

    def _read(self) -> None:
        while self._inbox and self._is_reading and not self._is_closing:
            piece = self._inbox.popleft()
            self.data_since = piece.since
            if piece.ends is None:
                if not self._protocol.eof_received():  # type: ignore[attr-defined]
                    self.close()
                return
            data = piece.data
            while self._inbox and self._inbox[0].data:  # pieces that arrived meanwhile are read together
                data += self._inbox.popleft().data
            self._taken(len(data))
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, self._protocol).data_received(data)
            return
        room = cast(memoryview, self._protocol.get_buffer(-1))
        size = min(len(room), len(data))
        room[:size] = data[:size]
        if size < len(data):
            self._inbox.appendleft(_Piece(data[size:], self.data_since))
            self._other._line_bytes += len(data) - size
        self._protocol.buffer_updated(size)

    def _taken(self, size: int) -> None:
        other = self._other
        other._line_bytes -= size
        if other._outbox:
            other._soon(other._fill_line)

    def _lose(self, fault: Exception | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._outbox.clear()
            self._inbox.clear()
            self._network.forget(self)
            if self._accept is None:
                self._soon(self._protocol.connection_lost, fault)


@dataclass
class Network:
    """All connections to one process."""

    random: Random
    weather: Weather
    on_write: Callable[[], None] | None = None
    """Called after each write of a server."""
    _open: dict[SimTransport, SimTransport] = field(default_factory=dict)
    """The end of a client, by that of its server."""
    _made: int = 0

    def connect(
        self,
        client: asyncio.BaseProtocol,
        accept: Callable[[], asyncio.BaseProtocol],
        inside: Context,
        outside: Context | None = None,
    ) -> SimTransport:
        """Connect a client to a server that runs in a context: `connection_made` is called at both ends.

        The client runs in the context `outside`, if it belongs to a process too; its end is returned.
        """
        self._made += 1
        outside = Context() if outside is None else outside
        near = SimTransport(self, f"client-{self._made}", "server", outside)
        far = SimTransport(self, "server", f"client-{self._made}", inside)
        near._other, far._other, near._protocol = far, near, client
        far.on_write, far._accept = self.on_write, accept
        self._open[far] = near
        asyncio.get_running_loop().call_later(self.delay(), far._accepted, context=inside)
        near._soon(client.connection_made, near)
        return near

    def cut(self, transport: SimTransport) -> None:
        """Break a connection with bytes under way; both ends notice later."""
        for end in (transport, transport._other):
            if not end._is_over:
                end._ending()
                end._outbox.clear()
                end._break_line(ConnectionResetError("the connection was cut"))

    def cut_one(self) -> None:
        """Break one of the connections, if there are any."""
        if self._open:
            self.cut(self.random.choice(list(self._open.values())))

    def servers_stop(self) -> None:
        """Note that the servers are about to close all connections."""
        for far in self._open:
            far._ending()

    def process_died(self) -> None:
        """Note that the servers are dead: bytes on the line may still arrive, and then the clients notice."""
        for far in list(self._open):
            self.end_died(far)
        self._open.clear()

    @staticmethod
    def end_died(end: SimTransport) -> None:
        """Note that the process of one end is dead: the other end notices later."""
        if not end._is_over:
            end._is_over = True
            end._outbox.clear()
            end._ending()
            end._break_line(ConnectionResetError("the other machine does not know of the connection"))

    def forget(self, end: SimTransport) -> None:
        """Forget an end that is closed; the other end may not have noticed."""
        self._open.pop(end, None)

    def delay(self) -> float:
        """Return the delay of a piece."""
        return self.random.random() * self.weather.delay_s

    def piece(self) -> int:
        """Return the size of the next piece."""
        return self.random.choice(TINY if self.weather.tiny else PIECES)

    def kept(self, under_way: int) -> int:
        """Return how many of the pieces under way still arrive after a cut."""
        return self.random.choice((0, under_way, self.random.randint(0, under_way)))
