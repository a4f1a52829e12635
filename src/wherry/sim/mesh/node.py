"""One node of a simulated mesh: a broker on a disk of its own, its HTTP port, and its links to other nodes.

Its process can be killed, or lose its power, between any two callbacks, and is started again on the same disk.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from random import Random
from typing import TypeVar

from wherry.broker.broker import Broker
from wherry.broker.opening import start
from wherry.client.native.session import NativeSession
from wherry.client.native.upgrade import SWITCHED
from wherry.journal.disk.disk import DiskEngine
from wherry.model.errors import StorageError, Unavailable, WherryError
from wherry.node.mesh.endpoints import MeshEndpoints
from wherry.node.mesh.mesh import NodeMesh
from wherry.node.mesh.settings import MeshSettings
from wherry.sim.clients.native.link import Upgrading
from wherry.sim.mesh.plan import TOPIC
from wherry.sim.world.clock import SimClock
from wherry.sim.world.disk import DiskFaults, SimDisk
from wherry.sim.world.errors import Killed
from wherry.sim.world.native import serve_native
from wherry.sim.world.network import Network, SimTransport, Weather
from wherry.sim.world.process import Process
from wherry.wire.http.protocol.server import Server

T = TypeVar("T")

FILE_BYTES = 64 << 10
RESERVE_BYTES = 8 << 10
ENTRY_BYTES_MAX = 16 << 10
CAPACITY_BYTES = 8 << 20
CACHE_BYTES = 1 << 20
DIAL_S = 3.0
TIMEOUT_S = 10.0

Reach = Callable[[str, str], "MeshSimNode | None"]
"""Returns the node at an address if a line from a node leads there now."""


class SimDial:
    """The way from one node to an address; see `Dialled`."""

    def __init__(self, node: MeshSimNode, url: str) -> None:
        self._node, self._url = node, url
        self._transport: SimTransport | None = None

    async def session(self) -> NativeSession:
        """Connect and switch to the native wire."""
        there = self._node.reach(self._node.name, self._url)
        if there is None or there.server is None:
            await asyncio.sleep(0.01)
            raise Unavailable(f"{self._url} cannot be reached")
        asking = Upgrading()
        self._transport = there.network.connect(asking, there.server.connection, there.inside, copy_context())
        self._node.dialled[self._transport] = there
        async with asyncio.timeout(DIAL_S):
            answer = await asking.answer
        if answer is None or answer.status != SWITCHED:
            raise Unavailable("the peer closed the connection without an answer to the upgrade")
        session = NativeSession(self._transport, TIMEOUT_S, lambda _: None)
        session.data_received(bytes(answer.body))
        await session.opened
        return session

    async def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()
            self._node.dialled.pop(self._transport, None)


class MeshSimNode:
    """A node, which outlives its processes."""

    def __init__(self, seed: int, settings: MeshSettings, weather: Weather, reach: Reach, backlog: int) -> None:
        self.name, self.settings, self.reach = settings.node, settings, reach
        self.url = url_of(self.name)
        self._random = Random(f"{seed}/mesh/{self.name}")
        self._clock = SimClock(Random(self._random.getrandbits(64)))
        self._disk = SimDisk(
            Random(self._random.getrandbits(64)), DiskFaults(), capacity_bytes=CAPACITY_BYTES, on_event=lambda *_: None
        )
        self.network = Network(Random(self._random.getrandbits(64)), weather)
        self.dialled: dict[SimTransport, MeshSimNode] = {}
        """Connections from here to other nodes."""
        self.broker: Broker | None = None
        self.mesh: NodeMesh | None = None
        self.server: Server | None = None
        self.inside = Context()
        self._process = Process(self.name)
        self.lives = 0
        self.cut_offs: set[tuple[str, int]] = set()
        """Subscriptions that were cut off here, with the time: a broker remembers the last ones only."""
        self.told: Counter[str] = Counter()
        """How often this node, in its earlier lives, found that a peer had dropped its backlog."""
        self.overrun = 0
        """The longest backlog that grew though it was beyond its bound."""
        self._bound = backlog
        self._looked = 0, 0
        self._waits: dict[str, int] = {}

    async def boot(self) -> None:
        """Start the node on its disk."""
        while self.broker is None:
            self._process = process = Process(self.name)
            try:
                self.broker = await process.call(self._start())
            except (OSError, StorageError):
                process.kill()
                self._disk.kill()
                await asyncio.sleep(0.05)
        self.lives += 1

    async def _start(self) -> Broker:
        files = self._disk.open()
        engine = DiskEngine(
            files,
            file_bytes=FILE_BYTES,
            reserve_bytes=RESERVE_BYTES,
            entry_bytes_max=ENTRY_BYTES_MAX,
            new_seed=lambda: self._random.getrandbits(32),
        )
        broker = await start(engine, files, self._clock, cache_bytes=CACHE_BYTES, owner="sim")
        self.mesh = NodeMesh(broker, self.settings, "r1", self.url, lambda url: SimDial(self, url))
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(self._serve(broker, self.mesh, ready))
        await asyncio.wait((ready, serving), return_when=asyncio.FIRST_COMPLETED)
        return broker

    async def _serve(self, broker: Broker, mesh: NodeMesh, ready: asyncio.Future[None]) -> None:
        clock = asyncio.get_running_loop().time
        async with serve_native(broker, clock=clock, more=[MeshEndpoints(mesh).table()]) as server, mesh.open():
            self.server, self.inside = server, copy_context()
            ready.set_result(None)
            await asyncio.Event().wait()

    def kill(self, *, power: bool) -> None:
        """Kill the process now; with `power`, what was not synced is lost."""
        if self.broker is None:
            return
        self.note_cut_offs()
        self.told += self._told_now()
        self.broker = self.mesh = self.server = None
        if power:
            self._disk.crash()
        else:
            self._disk.kill()
        self._process.kill()
        self.network.process_died()
        for transport in list(self.dialled):
            Network.end_died(transport)
        self.dialled.clear()

    def cut(self, other: MeshSimNode | None = None) -> None:
        """Break the connections to another node, or one of all."""
        found = [transport for transport, there in self.dialled.items() if other in (None, there)]
        if other is None and found:
            found = [self._random.choice(found)]
        for transport in found:
            self.dialled[transport].network.cut(transport)

    async def call(self, ask: Callable[[Broker], Awaitable[T]]) -> T:
        """Call the broker from outside; raise `Killed` if the node is down, or dies before it answers."""
        broker = self.broker
        if broker is None:
            raise Killed(f"{self.name} is down")

        async def inside() -> T:
            return await ask(broker)

        return await self._process.call(inside())

    def note_cut_offs(self) -> None:
        """Remember which subscriptions were cut off here."""
        if self.broker is not None and self.broker.has_topic(TOPIC):
            self.cut_offs |= {(each.subscription, each.at_ms) for each in self.broker.stats(TOPIC).removals}

    def peers_cut_off(self) -> set[str]:
        """Return the peers that were cut off here, as the broker remembers it now."""
        found = self.broker.stats(TOPIC).removals if self.broker is not None else ()
        return {each.peer for each in found if each.peer is not None}

    def was_told(self, peer: str) -> bool:
        """Return whether this node ever found that a peer had dropped its backlog."""
        return (self.told + self._told_now())[peer] > 0

    def _told_now(self) -> Counter[str]:
        links = [] if self.mesh is None else self.mesh.view().links
        return Counter(
            {
                link.node: sum(flow.cut_offs for flow in link.topics if flow.topic == TOPIC)
                for link in links
                if link.node
            }
        )

    def note_backlogs(self) -> None:
        """Note a backlog that was beyond its bound and grew, while nobody was cut off here.

        One that is made anew may begin beyond it: the next message that would join it cuts the peer off.
        """
        views = [] if self.mesh is None else self.mesh.view().backlogs
        waits = {each.peer: each.waiting for each in views if each.topic == TOPIC}
        looked = self.lives, len(self.cut_offs)
        if looked == self._looked:
            grown = [now for peer, now in waits.items() if now > self._waits.get(peer, now) > self._bound]
            self.overrun = max([self.overrun, *grown])
        self._looked, self._waits = looked, waits

    def copies(self) -> int:
        """Return how many messages came here without need, in this life."""
        links = [] if self.mesh is None else self.mesh.view().links
        return sum(flow.repeated + flow.left_out for link in links for flow in link.topics if flow.topic == TOPIC)

    def is_quiet(self, peers: Sequence[str]) -> bool:
        """Return whether the node is connected to these nodes, and none of them waits for a message."""
        if self.mesh is None:
            return False
        view = self.mesh.view()
        connected = {each.node for each in view.links if each.state == "connected"}
        waiting = [each for each in view.backlogs if each.topic == TOPIC]
        read_by = {each.peer for each in waiting}
        return connected == set(peers) == read_by and not any(each.waiting for each in waiting)


def url_of(name: str) -> str:
    """Return the address of a node."""
    return f"http://{name}.example:7070"


FAULTS = (WherryError, Killed, OSError)
"""What a call of a client outside can end with while nodes die."""
