"""The mesh of one node: keeps a link to each node that is to be connected to, and announces this node.

With `discover`, the nodes are those of the topic `system.peers`, which is a `flow` topic itself: each node publishes a
record of itself there every few seconds, and at each hub that it is connected to. So a node that knows one other node
soon knows all, and all know it. Records that are not renewed expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from wherry.broker.port.port import BrokerPort
from wherry.client.native.publishing import prepare
from wherry.client.native.session import NativeSession
from wherry.mesh.flow import records
from wherry.mesh.flow.links import LinkPlan, MeshNode, is_among, plan_links, refusal, run_behind
from wherry.mesh.flow.records import KnownPeers, PeerRecord
from wherry.model.catalog.topic import Topic
from wherry.model.errors import InvalidInput, NotFound, WherryError
from wherry.node.mesh.figures import BacklogView, CutOffView, MeshFailures, MeshView, TopicAtNode
from wherry.node.mesh.flowing import FlowTopics
from wherry.node.mesh.link import Dialled, LinkCalls, PeerLink
from wherry.node.mesh.settings import MeshSettings

EXPIRES_ANNOUNCES = 4
"""A record expires when so many announcements in a row did not come."""

KEEP_ANNOUNCES = 8
READ_MESSAGES = 1_000

ENDED_MAX = 100
"""Links that ended and are remembered; the one that ended longest ago is forgotten."""

PEERS_TOPIC = {"mesh": "flow", "keep": "age", "messages_max": 10_000, "overflow": "drop-oldest"}

_log = logging.getLogger("wherry.mesh")


class NodeMesh:
    """The links of a node."""

    def __init__(
        self, broker: BrokerPort, settings: MeshSettings, run: str, url: str, dial: Callable[[str], Dialled]
    ) -> None:
        self._broker, self._settings, self._url = broker, settings, url
        self._run = run_behind(run, next(iter(settings.addresses)) if settings.role == "leaf" else None)
        self._links: dict[str, tuple[PeerLink, asyncio.Task[None]]] = {}
        self._ended: dict[str, PeerLink] = {}
        """Links to peers that fell silent, by address: their counts and positions, for when these return."""
        self._flowing = FlowTopics(broker)
        self._known = KnownPeers(round(settings.announce_s * EXPIRES_ANNOUNCES * 1000))
        self._plan = LinkPlan((), {})
        self._version = 0
        self._greetings: dict[str, asyncio.Task[None]] = {}
        self.failures = MeshFailures()
        self._calls = LinkCalls(lambda: self.me, dial, self._judge, self._greet, self.failures)

    @property
    def me(self) -> MeshNode:
        """Return this node; of a leaf the hub is known once it was connected."""
        settings = self._settings
        hub = None
        if settings.role == "leaf":
            peers = [link.peer for link, _ in self._links.values()]
            hub = next((peer.name for peer in peers if peer is not None and peer.role == "hub"), None)
        return MeshNode(settings.node, settings.role, hub)

    def topic(self, name: str) -> TopicAtNode:
        """Return what a peer has to know of a topic; raise `NotFound` if there is none that flows."""
        found = self._broker.find_topic(name)
        if found is None or not found.flows:
            raise NotFound("flow topic", name)
        me = self.me
        return TopicAtNode(me.name, me.role, f"{self._run}.{self._broker.topic_number(name)}", me.hub, found.partitions)

    # ----------------------------------------------------------------------------------------------------------- life

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Keep the links while the `async with` lasts."""
        tasks = [asyncio.create_task(self._keep_links(), name="wherry mesh")]
        if self._settings.discover:
            await self._create_peers_topic()
            tasks += [
                asyncio.create_task(self._announce(), name="wherry mesh announce"),
                asyncio.create_task(self._read_peers(), name="wherry mesh peers"),
            ]
        try:
            yield
        finally:
            tasks += [*(task for _, task in self._links.values()), *self._greetings.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _keep_links(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:
                self.failures.note("links")
            await asyncio.sleep(self._settings.look_s)

    async def _look(self) -> None:
        """Make the links that are wanted now, and end the others."""
        self._known.expire(self._now_ms())
        connected = {url: peer for url, peer in self._peers().items() if self._links[url][0].is_connected}
        self._plan = plan_links(self.me, self._settings.addresses, self._known.records, connected, self._is_trusted)
        for url in self._plan.wanted:
            if url not in self._links and url != self._url:
                link = self._ended.pop(url, None) or self._new_link(url)
                self._links[url] = (link, asyncio.create_task(link.run(), name=f"wherry mesh {url}"))
        for url in [each for each in self._links if each not in self._plan.wanted]:
            self._ended[url], task = self._links.pop(url)
            task.cancel()
            await asyncio.wait([task])
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def _new_link(self, url: str) -> PeerLink:
        return PeerLink(self._broker, url, self._calls, self._settings.backlog, self._flowing)

    def _peers(self) -> dict[str, MeshNode]:
        """Return the nodes that answer, by address: also those that are refused."""
        return {url: link.peer for url, (link, _) in self._links.items() if link.answers and link.peer is not None}

    def _is_trusted(self, url: str) -> bool:
        return self._settings.trusted is None or is_among(url, self._settings.trusted)

    def _judge(self, peer: MeshNode, url: str) -> str:
        """Return why a node at an address is not to be connected to; empty if it is. An address of the list wins."""
        peers = self._peers()
        for at, each in peers.items():
            is_weaker = url in self._settings.addresses and at not in self._settings.addresses
            if each.name == peer.name and at != url and self._links[at][0].is_connected and not is_weaker:
                return f"it is connected to at {at}"
        return refusal(self.me, peer, [each.name for each in peers.values() if each.role == "hub"])

    @staticmethod
    def _now_ms() -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    # ------------------------------------------------------------------------------------------------------- announce

    async def _create_peers_topic(self) -> None:
        keep_ms = round(self._settings.announce_s * KEEP_ANNOUNCES * 1000)
        with suppress(WherryError):  # one that was made with other terms is as good
            await self._broker.create_topic(Topic(name=records.TOPIC, keep_ms=keep_ms, **PEERS_TOPIC))  # type: ignore[arg-type]

    def _record(self) -> bytes:
        me = self.me
        self._version = max(self._version + 1, self._broker.now_ms())
        return records.encode(PeerRecord(node=me.name, url=self._url, role=me.role, hub=me.hub, version=self._version))

    async def _announce(self) -> None:
        while True:
            try:
                await self._broker.publish(records.TOPIC, [self._record()])
            except WherryError as fault:
                _log.warning("this node could not announce itself", extra={"why": str(fault)})
            except Exception:
                self.failures.note("announce")
            self._greet_hubs()
            await asyncio.sleep(self._settings.announce_s)

    def _greet_hubs(self) -> None:
        """Announce this node at each hub that it is connected to, which passes that on as a message of its own.

        A hub does not pass on what it got from a hub. So two hubs that were cut off from each other until both had
        forgotten the other hear of each other again from a third; and a hub hears of a leaf before it is connected.
        """
        for url in [each for each, task in self._greetings.items() if task.done()]:
            del self._greetings[url]
        for url, (link, _) in self._links.items():
            if link.peer is not None and link.peer.role == "hub" and url not in self._greetings:
                # Not waited for: a hub that hangs must not keep this node from announcing itself elsewhere.
                self._greetings[url] = asyncio.create_task(link.greet(), name=f"wherry mesh greet {url}")

    async def _greet(self, session: NativeSession) -> None:
        """Announce this node to a peer that may not know it."""
        if self._settings.discover:
            with suppress(NotFound):  # a peer that does not discover
                await prepare(records.TOPIC, [self._record()], None).send(session, records.TOPIC)

    async def _read_peers(self) -> None:
        """Learn what all nodes announce."""
        while True:
            try:
                await self._read_peers_once()
            except WherryError as fault:
                _log.warning("the peers could not be read", extra={"why": str(fault)})
            except Exception:
                self.failures.note("peers")
            await asyncio.sleep(self._settings.announce_s)

    async def _read_peers_once(self) -> None:
        name = f"mesh-reader.{self._settings.node}"
        await self._broker.subscribe(records.TOPIC, name, durable=False, start="earliest", acks=False)
        consumer = await self._broker.consumer(records.TOPIC, name)
        try:
            while True:
                delivery = await consumer.pull(READ_MESSAGES, wait_ms=None)
                for payload in delivery.batch.column("payload").to_pylist():
                    with suppress(InvalidInput):  # any client may publish there
                        self._known.learn(records.decode(payload), self._now_ms())
        finally:
            await consumer.close()

    # ----------------------------------------------------------------------------------------------------------- view

    def view(self) -> MeshView:
        """Return the links, what peers have not read, and the nodes that are known."""
        me = self.me
        flowing = self._flowing.names()
        return MeshView(
            node=me.name,
            role=me.role,
            url=self._url,
            links=[link.view() for link, _ in self._links.values()],
            backlogs=[backlog for topic in flowing for backlog in self._backlogs(topic)],
            cut_offs=[cut_off for topic in flowing for cut_off in self._cut_offs(topic)],
            known=[record.node for record in self._known.records],
            refused=dict(self._plan.refused),
        )

    def _backlogs(self, topic: str) -> list[BacklogView]:
        return [
            BacklogView(topic, each.peer, self._broker.subscription_stats(topic, each.name).lag)
            for each in self._broker.subscriptions(topic)
            if each.peer is not None
        ]

    def _cut_offs(self, topic: str) -> list[CutOffView]:
        return [
            CutOffView(topic, each.subscription, each.at_ms, each.why)
            for each in self._broker.stats(topic).removals
            if each.peer is not None
        ]
