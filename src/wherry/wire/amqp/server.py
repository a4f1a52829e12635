"""The AMQP server and its connections: sockets, heart-beats, and the bounds that end a connection."""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from wherry.broker.port.port import BrokerPort
from wherry.model.limits import PAYLOAD_BYTES_MAX
from wherry.queueing.login import Login
from wherry.queueing.names import ROOT
from wherry.queueing.queueing import Queueing
from wherry.security.access import Access
from wherry.wire.amqp.channel import Channel
from wherry.wire.amqp.codec.faults import NO_METHOD, ReplyCode
from wherry.wire.amqp.codec.frames import FRAME_MIN
from wherry.wire.amqp.codec.methods import ConnectionBlocked, ConnectionClose, ConnectionUnblocked
from wherry.wire.amqp.codec.reader import Event, FrameReader
from wherry.wire.amqp.codec.writer import HEARTBEAT_FRAME, Piece
from wherry.wire.amqp.session import Session, SessionState, Work
from wherry.wire.fair_protocol import FairProtocol
from wherry.wire.fairness import Budget
from wherry.wire.listener import Clock, Connected, Listener, ticking
from wherry.wire.peer import certified, host_of, place
from wherry.wire.unstored import Unstored

TICK_S = 0.5

WRITE_HIGH_BYTES = 1 << 20
"""Bytes that a client has not read; beyond it no deliveries are sent to it, and it is not read."""

WAITING_MAX = 10_000
"""Events that wait behind a call that takes time; beyond it the client is not read. Publishes that are alike are
one."""

WAITING_BYTES_MAX = 1 << 20
"""The same in bytes, since messages may be among the events."""

CALLS_MAX = 100
"""Calls of one client that run in one turn of the loop, if none of them has to wait."""

PARTING_S = 5.0
"""How long a connection that either side has closed may take to end: the other side has to answer, and to read the
rest."""

LOGIN = frozenset({SessionState.STARTING, SessionState.TUNING, SessionState.OPENING})
"""The states before the end of the login."""

_log = logging.getLogger("wherry.amqp")

LOGIN_FRAME_MAX = FRAME_MIN + (16 << 10)
"""Bytes of a frame before the sizes are agreed upon: the least that a peer must accept, and an access token."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may use.

    `login_s` until login, `write_s` until it reads what it was sent; for all clients together, `held_bytes` of
    incomplete messages.
    """

    connections: int = 10_000
    login_s: float = 10.0
    write_s: float = 60.0
    held_bytes: int = 256 << 20


class Connection(FairProtocol):
    """One socket: passes bytes to the reader, and events to the session, one after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = FrameReader(
            frame_max=LOGIN_FRAME_MAX, channel_max=0, body_max=PAYLOAD_BYTES_MAX
        )  # no messages before login
        self._waiting: deque[Event] = deque()
        self._behind = 0
        """Bytes that arrived while a call was running."""
        self._task: asyncio.Task[None] | None = None
        self._began = self._read_at = self._written_at = self._server.clock()
        self._heartbeat_s = 0
        self._write_paused_since: float | None = None
        self._parting_since: float | None = None
        self._has_hung_up = False
        self._paused = False
        self._blocked = False
        self._waits_for_relief = False
        self._drained: asyncio.Future[None] | None = None
        self.is_write_paused = False

    # ---------------------------------------------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self.join_loop(self._transport)
        self._unstored = Unstored(self._server.queueing.intake, self.fair_loop, self, self._resume)
        self.peer, ours = (transport.get_extra_info(name) for name in ("peername", "sockname"))
        login = Login(
            self._server.access, certified(transport), any_user=self._server.any_user, peer=host_of(self.peer)
        )
        self.session = Session(
            self._server.queueing,
            self,
            login,
            f"{place(self.peer)} -> {place(ours)}",
            self._server.replies,
            self._server.clock,
        )
        if not self._server.connected.admit(self):
            self._transport.abort()

    def connection_lost(self, fault: Exception | None) -> None:
        self.leave_loop()
        self._server.connected.discard(self)
        self._server.partial_bytes -= self._reader.partial_bytes
        self._waiting.clear()
        self.is_write_paused = False
        self._let_go_on()
        self._unstored.let_go_on()
        self.session.lost()

    def _let_go_on(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._has_hung_up:
            return
        self._read_at = self._server.clock()
        before = self._reader.partial_bytes
        events = self._reader.feed(data)
        self._server.partial_bytes += self._reader.partial_bytes - before
        if self._task is not None or self._paused:
            self._waiting.extend(events)
            self._behind += len(data)
        else:
            self._handle(events)
        if self._server.partial_bytes > self._server.bounds.held_bytes:
            self._server.cut_off_largest()
        elif self._is_behind() or self._unstored.is_too_much or self._server.queueing.intake.is_full:
            self._pause()

    @property
    def is_stranger(self) -> bool:
        """Whether the client has not logged in yet."""
        return not hasattr(self.session, "host")

    def refuse_stranger(self, why: str) -> None:
        """Send the reason to a client that sent too much before login, and close."""
        if not self.is_closing:
            _log.warning("cut off", extra={"peer": str(self.peer), "why": why})
            self._server.strangers_cut_off += 1
            self.session.send(0, ConnectionClose(int(ReplyCode.RESOURCE_ERROR), why, *NO_METHOD))
            self.hang_up()

    def _is_behind(self) -> bool:
        """Return whether too much waits to be carried out."""
        return len(self._waiting) > WAITING_MAX or self._behind > WAITING_BYTES_MAX

    def _handle(self, events: Iterable[Event]) -> None:
        """Handle events one after the other; wait for a call that takes time before the next one."""
        rest = iter(events)
        for event in rest:
            work = self._handle_one(event)
            if work is not None:
                self._waiting.extendleft(reversed(list(rest)))
                self._task = asyncio.get_running_loop().create_task(self._run_calls(work))
                return

    def _handle_one(self, event: Event) -> Work | None:
        intake = self._server.queueing.intake
        before = intake.unstored_bytes
        try:
            return self.session.handle(event)
        except Exception:
            _log.exception("a fault of the broker")
            return self.session.failed()
        finally:
            self._unstored.count(before)

    async def _run_calls(self, work: Work) -> None:
        budget = Budget(self.fair_loop, self)
        for count in itertools.count(1):
            try:
                await budget.timed(work, is_stranger=self.is_stranger)
            except Exception:
                _log.exception("a fault of the broker")
                await self.session.failed()
            if count % CALLS_MAX == 0:
                await asyncio.sleep(0)
            following: Work | None = None
            while self._waiting and following is None:
                if self.is_write_paused:  # otherwise answers to its calls would pile up
                    await self._relieved()
                    continue
                await self._unstored.wait_for_room()
                await budget.wait_if_used_up()
                if self._waiting:  # the connection may have closed meanwhile
                    budget.begin(is_stranger=self.is_stranger)
                    following = self._handle_one(self._waiting.popleft())
                    budget.end()
            if following is None:
                break
            work = following
        self._task = None
        self._behind = 0
        self._resume()

    async def _relieved(self) -> None:
        """Wait until the client has read what it was sent, or is gone."""
        self._drained = asyncio.get_running_loop().create_future()
        await self._drained

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._write_paused_since = self._server.clock()
        self._pause()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._write_paused_since = None
        self._let_go_on()
        self._resume()
        self.session.wake()

    def _pause(self) -> None:
        """Stop reading for now."""
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self.stop("full")
            if self._server.queueing.intake.is_full:
                self._wait_for_relief()
                self._send_blocked("the disk does not keep up")

    def _wait_for_relief(self) -> None:
        if not self._waits_for_relief:
            self._waits_for_relief = True
            self._server.queueing.intake.when_relieved(self._on_relief)

    def _on_relief(self) -> None:
        self._waits_for_relief = False
        self._resume()

    def _resume(self) -> None:
        if not self._paused or self.is_write_paused or self._transport.is_closing():
            return
        if self._server.queueing.intake.is_full:
            self._wait_for_relief()
            return
        if self._unstored.is_too_much or (self._task is not None and self._is_behind()):
            return
        self._paused = False
        if self._blocked:
            self._blocked = False
            self.session.send(0, ConnectionUnblocked())
        self.go_on("full")
        if self._task is None and self._waiting:
            waiting = list(self._waiting)
            self._waiting.clear()
            self._behind = 0
            self._handle(waiting)

    def _send_blocked(self, why: str) -> None:
        if self.session.wants_blocked and self.session.state is SessionState.OPEN and not self._blocked:
            self._blocked = True
            self.session.send(0, ConnectionBlocked(reason=why))

    # ----------------------------------------------------------------------------------------------- for the session

    @property
    def waiting(self) -> int:
        """How many events arrived and are not handled yet."""
        return len(self._waiting)

    @property
    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._has_hung_up or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        self._written_at = self._server.clock()
        if not self.is_closing:
            self._transport.write(data)

    def write_all(self, pieces: list[Piece]) -> None:
        """Send pieces of bytes to the client."""
        self._written_at = self._server.clock()
        if pieces and not self.is_closing:
            self._transport.writelines(pieces)

    def hang_up(self) -> None:
        """Close the sending side once everything is written; drop what the client still sends, until it closes too.

        If the socket were closed at once, the kernel would answer bytes of the client with a reset, and a client
        that has not read the last frames yet would lose them.
        """
        if self.is_closing:
            return
        self._has_hung_up = True
        self._parting_since = self._server.clock()
        if not self._transport.can_write_eof():  # TLS has its own farewell
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client is gone already
            self._transport.abort()
            return
        self.go_on("full")

    def drop(self) -> None:
        """Close at once, whether the client has read what it was sent or not."""
        self._transport.abort()

    def tuned(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        """Set the bounds that were negotiated."""
        self._reader.frame_max, self._reader.channel_max = frame_max, channel_max
        self._heartbeat_s = heartbeat_s

    def mute(self, channel: int) -> None:
        """Ignore everything on a channel except its close."""
        before = self._reader.partial_bytes
        self._reader.mute(channel)
        self._server.partial_bytes += self._reader.partial_bytes - before

    @property
    def partial_bytes(self) -> int:
        """Bytes of incomplete frames and messages."""
        return self._reader.partial_bytes

    def cut_off(self, why: str) -> None:
        """Close at once, and log the reason."""
        _log.info("cut off", extra={"peer": str(self.peer), "why": why})
        self._transport.abort()

    # ------------------------------------------------------------------------------------------------------- the time

    def tick(self, now: float) -> None:
        """Send a heart-beat if one is due, and cut off a client that is too slow."""
        if self.is_stopped:  # while it is not read it cannot be late, nor right afterwards
            self._read_at = now
        why = self._overdue(now)
        if why is not None:
            self.cut_off(why)
            return
        self.session.renew_rights()
        if self._heartbeat_s and now - self._written_at >= self._heartbeat_s / 2:
            self.write(HEARTBEAT_FRAME)

    def _overdue(self, now: float) -> str | None:
        bounds, state = self._server.bounds, self.session.state
        if self._heartbeat_s and now - self._read_at > 2 * self._heartbeat_s:
            return f"no heart-beat for {2 * self._heartbeat_s} s"
        if self._write_paused_since is not None and now - self._write_paused_since > bounds.write_s:
            return f"nothing was read for {bounds.write_s} s"
        if state in LOGIN and now - self._began > bounds.login_s:
            return f"no login within {bounds.login_s} s"
        if self.session.is_over:
            if self._parting_since is None:
                self._parting_since = now
            if now - self._parting_since > PARTING_S:
                return "the close was not answered, or not read"
        if state is SessionState.OPEN and not self.session.login.still_holds():
            return "its key was deleted or has expired"
        return None


class Server:
    """AMQP 0-9-1 on any number of addresses."""

    def __init__(
        self,
        queueing: Queueing,
        access: Access | None,
        bounds: Bounds,
        *,
        any_user: bool,
        clock: Clock = time.monotonic,
    ) -> None:
        self.queueing, self.access, self.bounds, self.any_user = queueing, access, bounds, any_user
        self.clock = clock
        self.replies: dict[str, Channel] = {}
        """Channels that wait for direct replies, by their reply names."""
        self.partial_bytes = 0
        """Bytes of incomplete frames and messages."""
        self.strangers_cut_off = 0
        """Clients that sent too much before login, since the start."""
        self.connected = Connected[Connection](bounds.connections)
        self._listener = Listener(self.connection, bounds.login_s)

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self.connected)

    def connection(self) -> Connection:
        """Return the protocol object for a client that is about to connect."""
        return Connection(self)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Serve an address, and return its port, which the system chooses for 0."""
        return await self._listener.listen(host, port, tls)

    def cut_off_largest(self) -> None:
        """Cut off the client that holds the most memory with incomplete messages, since memory is short."""
        max(self.connected, key=lambda each: each.partial_bytes).cut_off("too many bytes of incomplete messages")

    async def close(self, drain_s: float) -> None:
        """Stop accepting, store what arrived, send all clients the reason, and close."""
        self.connected.is_closing = True
        self._listener.stop()
        await self.queueing.intake.flush()
        for connection in self.connected:
            if not connection.session.is_open and not connection.session.is_over:
                connection.drop()  # do not wait for clients before login
                continue
            await connection.session.close("broker forced connection closure with reason 'shutdown'")
        await self.connected.all_gone(min(drain_s, PARTING_S), Connection.drop)


@asynccontextmanager
async def serve(
    broker: BrokerPort,
    *,
    hosts: Iterable[str] = (ROOT,),
    access: Access | None = None,
    bounds: Bounds | None = None,
    any_user: bool = False,
    drain_s: float = 2.0,
) -> AsyncIterator[Server]:
    """Serve AMQP over a broker while the `async with` lasts; call `listen` on the result.

    `any_user`: whether a broker without keys accepts names that it does not know.
    """
    queueing = Queueing(broker, hosts)
    async with (
        queueing.open(),
        serve_queueing(queueing, access=access, bounds=bounds, any_user=any_user, drain_s=drain_s) as server,
    ):
        yield server


@asynccontextmanager
async def serve_queueing(
    queueing: Queueing,
    *,
    access: Access | None = None,
    bounds: Bounds | None = None,
    any_user: bool = False,
    drain_s: float = 2.0,
    clock: Clock = time.monotonic,
) -> AsyncIterator[Server]:
    """Serve AMQP over a `Queueing` that is open, and that other wires may use too."""
    server = Server(queueing, access, bounds or Bounds(), any_user=any_user, clock=clock)
    async with ticking(lambda: server.connected, TICK_S, clock=clock, log=_log, name="wherry amqp ticks"):
        try:
            yield server
        finally:
            await server.close(drain_s)
