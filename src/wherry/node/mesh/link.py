"""A link to one peer: one connection of the native wire, as any client has it, with a stream for each shared topic.

    dial ──► connected ──► a flow for each topic that both nodes have ──► the connection ends ──► a pause ──► dial
                 │
                 └─ the peer is none to connect to (this node itself, an eighth hub, the leaf of another): later again

Nothing here decides which nodes are connected: that is `mesh/flow/links`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from wherry.broker.port.port import BrokerPort
from wherry.client.link.backoff import Backoff
from wherry.client.native.session import NativeSession
from wherry.mesh.flow.links import MeshNode
from wherry.model.errors import Forbidden, NotFound, WherryError
from wherry.node.mesh.at_peer import Backlog, Position, ask_topic, leave_topic
from wherry.node.mesh.figures import FlowFigures, LinkState, LinkView, MeshFailures, TopicAtNode
from wherry.node.mesh.flowing import FlowTopics
from wherry.node.mesh.topic_flow import TopicFlow

LOOK_S = 1.0
"""How often a link looks for topics that both nodes have by now."""

REFUSED_S = 2.0
GREET_S = 5.0

_log = logging.getLogger("wherry.mesh")


class Dialled(Protocol):
    """A way to one peer."""

    async def session(self) -> NativeSession:
        """Return a new connection, or raise `Unavailable`."""

    async def close(self) -> None:
        """Close the connection."""


Judge = Callable[[MeshNode, str], str]
"""Returns why a peer at an address is not to be connected to; empty if it is."""

Greet = Callable[[NativeSession], Awaitable[None]]
"""Called with each new connection to a peer that is to be connected to."""


class LinkCalls(NamedTuple):
    """What the links of a node have in common: who it is, how it dials, judges and greets, and where failures go."""

    me: Callable[[], MeshNode]
    dial: Callable[[str], Dialled]
    judge: Judge
    greet: Greet
    failures: MeshFailures


class PeerLink:
    """The link to the node at one address."""

    def __init__(self, broker: BrokerPort, url: str, calls: LinkCalls, backlog: Backlog, flowing: FlowTopics) -> None:
        self._broker, self.url, self._calls, self._backlog = broker, url, calls, backlog
        self._flowing = flowing
        self.peer: MeshNode | None = None
        """The node at the address, once it was connected."""
        self._session: NativeSession | None = None
        self._state: LinkState = "connecting"
        self._why = ""
        self._figures: dict[str, FlowFigures] = {}
        self._positions: dict[str, Position] = {}
        self._denied: set[str] = set()
        """Topics that the key of this node may not read at the peer, as of the last look."""

    @property
    def answers(self) -> bool:
        """Whether the peer answers, connected or refused."""
        return self._state != "connecting"

    @property
    def is_connected(self) -> bool:
        """Whether messages can come now."""
        return self._state == "connected"

    async def greet(self) -> None:
        """Greet the peer again, if it is connected."""
        if self._session is not None and self.is_connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(GREET_S):
                    await self._announce(self._session)

    def view(self) -> LinkView:
        """Return what is known of the link."""
        peer = self.peer
        name, role = (None, None) if peer is None else (peer.name, peer.role)
        return LinkView(self.url, self._state, name, role, self._why, list(self._figures.values()))

    async def run(self) -> None:
        """Keep the link until this task is cancelled."""
        backoff = Backoff()
        while True:
            is_refused = False
            try:
                is_refused = not await self._connect(backoff)
                if not is_refused:
                    self._why = "the connection was lost"
            except WherryError as fault:
                self._why = str(fault)
            except Exception as fault:
                self._why = f"{type(fault).__name__}: {fault}"
                self._calls.failures.note("link", url=self.url)
            finally:
                self._state, self._session = "refused" if is_refused else "connecting", None
            if is_refused:
                await asyncio.sleep(REFUSED_S)
            else:
                await backoff.pause()

    async def _connect(self, backoff: Backoff) -> bool:
        """Connect, and run flows until the connection ends; return False if the peer is none to connect to."""
        dialled = self._calls.dial(self.url)
        try:
            return await self._serve(await dialled.session(), backoff)
        finally:
            with suppress(WherryError):
                await dialled.close()

    async def _serve(self, session: NativeSession, backoff: Backoff) -> bool:
        """Run flows until the session ends; return False if the peer is none to connect to."""
        flows: dict[str, asyncio.Task[None]] = {}
        lost = asyncio.ensure_future(asyncio.shield(session.lost))
        try:
            while not lost.done():
                if (
                    self._session is session
                    and self.peer is not None
                    and (why := self._calls.judge(self.peer, self.url))
                ):
                    self._why = why
                    return False
                for topic in self._flowing.names():
                    if topic in flows and not flows[topic].done():
                        continue
                    found = await self._ask(session, topic)
                    if found is None:
                        continue
                    if not await self._is_welcome(session, found):
                        return False
                    backoff.reset()
                    flows[topic] = self._start(session, topic)
                await asyncio.wait([lost], timeout=LOOK_S)
            return True
        finally:
            lost.cancel()
            for flow in flows.values():
                flow.cancel()
            if flows:
                await asyncio.wait(flows.values())

    async def _ask(self, session: NativeSession, topic: str) -> TopicAtNode | None:
        """Return the topic at the peer; None if there is none, or if the key lacks the right: the others go on."""
        try:
            found = await ask_topic(session, topic)
        except NotFound:
            found = None
        except Forbidden as fault:
            self._denied.add(topic)
            self._of(topic).last_fault = str(fault)
            return None
        if topic in self._denied:
            self._denied.discard(topic)
            self._of(topic).last_fault = ""
        return found

    def _of(self, topic: str) -> FlowFigures:
        return self._figures.setdefault(topic, FlowFigures(topic))

    async def _is_welcome(self, session: NativeSession, found: TopicAtNode) -> bool:
        """Return whether the peer is one to connect to; greet it if it is new."""
        peer = MeshNode(found.node, found.role, found.hub)
        why = self._calls.judge(peer, self.url)
        if why:
            self.peer, self._why = peer, why
            return False
        if self._state != "connected":
            self.peer, self._state, self._why, self._session = peer, "connected", "", session
            _log.info("connected to a peer", extra={"node": peer.name, "url": self.url, "role": peer.role})
            await self._announce(session)
        return True

    async def _announce(self, session: NativeSession) -> None:
        """Greet the peer; if it does not let this node announce itself, the link shows that, and goes on."""
        why = ""
        try:
            await self._calls.greet(session)
        except WherryError as fault:
            why = f"this node is not announced there: {fault}"
        except Exception as fault:
            why = f"{type(fault).__name__}: {fault}"
            self._calls.failures.note("announce", url=self.url)
        if session is self._session:
            self._why = why

    def _start(self, session: NativeSession, topic: str) -> asyncio.Task[None]:
        figures, position = self._of(topic), self._positions.setdefault(topic, Position())
        flow = TopicFlow(self._broker, self._calls.me(), session, topic, figures, self._backlog, position)
        return asyncio.create_task(self._run(flow, session, topic, figures), name=f"wherry mesh {topic}")

    async def _run(self, flow: TopicFlow, session: NativeSession, topic: str, figures: FlowFigures) -> None:
        """Run a flow; why it ended is shown, and it begins again with the next look."""
        try:
            await flow.run()
        except WherryError as fault:
            if session.is_closed:
                return  # the link shows why
            figures.last_fault = str(fault)
            if isinstance(fault, Forbidden):
                self._denied.add(topic)
            if not self._broker.has_topic(topic):
                with suppress(WherryError):
                    await leave_topic(session, self._calls.me(), topic)
        except Exception as fault:
            figures.last_fault = f"{type(fault).__name__}: {fault}"
            self._calls.failures.note("topic", url=self.url, topic=topic)
