"""STOMP over a WebSocket and polled, without a socket: pings and ends by the clock that the sessions are given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from tests.behaviour.world import VirtualClock
from tests.unit.wire.memory_transport import MemoryTransport
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.queueing.queueing import Queueing
from wherry.sim.world import loop
from wherry.wire.stomp.sessions import Sessions
from wherry.wire.stomp.transports.polling import PARTING_S, Bounds, Polling
from wherry.wire.stomp.transports.websocket import PING_S, SILENCE_S, WebSockets

HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
PING, PONG = b"\x89\x00", b"\x8a\x80\0\0\0\0"
CONNECT = b"CONNECT\naccept-version:1.2\nhost:/\n\n\0"


class SessionWorld:
    """Sessions over a broker in memory, with a clock that the test sets."""

    def __init__(self, queueing: Queueing) -> None:
        self.now = 100.0
        self.sessions = Sessions(queueing, clock=lambda: self.now)


def run(test: Callable[[SessionWorld], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        broker = await start(MemoryEngine(), None, VirtualClock())
        queueing = Queueing(broker)
        async with queueing.open():
            await test(SessionWorld(queueing))
            await asyncio.sleep(1)  # the sessions that ended let their messages go
        await broker.close()

    loop.run(main())


class Idle(asyncio.BaseProtocol):
    """The protocol of a transport before the upgrade."""


def test_a_silent_websocket_gets_a_ping_and_is_cut_off():
    async def test(world: SessionWorld) -> None:
        socket, transport = WebSockets(world.sessions).answer(HANDSHAKE), MemoryTransport(Idle())
        transport.set_protocol(socket)
        socket.begin(transport, b"", lambda: None)
        assert transport.written.startswith(b"HTTP/1.1 101 ")
        transport.written.clear()
        socket.tick(100.0 + PING_S)
        assert not transport.written
        socket.tick(100.1 + PING_S)
        assert transport.written == PING
        world.now = 150.0
        transport.feed(PONG)
        socket.tick(150.0 + SILENCE_S)
        assert not transport.is_closed
        socket.tick(150.1 + SILENCE_S)
        assert transport.is_closed
        assert [each.why for each in world.sessions.cut_offs] == ["websocket"]
        socket.connection_lost(None)

    run(test)


def test_a_polled_session_ends_after_a_while_without_requests():
    async def test(world: SessionWorld) -> None:
        polling = Polling(world.sessions, Bounds(idle_s=60, sessions=1))
        opened = polling.open(peer="10.0.0.1", secure=False)
        world.now = 130.0
        await polling.transport(opened.id).send(0, CONNECT)
        polling.tick(190.0)
        assert len(polling) == 1
        world.now = 191.0
        polling.open(peer="10.0.0.1", secure=False)  # looks at the clock first, since there is room for one only
        assert len(polling) == 1

    run(test)


def test_the_last_bytes_of_a_closed_session_can_be_fetched_for_a_while():
    async def test(world: SessionWorld) -> None:
        polling = Polling(world.sessions)
        opened = polling.open(peer="10.0.0.1", secure=False)
        world.now = 130.0
        await polling.transport(opened.id).send(0, b"NONSENSE\n\n\0")
        assert (await polling.transport(opened.id).take(0, 0)).data.startswith(b"ERROR")
        polling.tick(130.0 + PARTING_S)
        assert len(polling) == 1
        polling.tick(130.1 + PARTING_S)
        assert len(polling) == 0

    run(test)
