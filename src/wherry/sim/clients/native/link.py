"""A connection of the native wire: the upgrade and the session of the Python client, on the simulated network.

No second client is written here. The session has no socket and reads no clock but that of its event loop, so that its
state machine runs in the simulator as it is: requests by number, confirms as ranges, credit, heartbeats, GOODBYE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from wherry.broker.broker import Broker
from wherry.client.batch import Batch
from wherry.client.link.transport import ClientRequest, ClientResponse
from wherry.client.native.publishing import prepare
from wherry.client.native.session import NativeSession
from wherry.client.native.stream import ClientStream
from wherry.client.native.upgrade import SWITCHED, UpgradeAnswer
from wherry.client.requests import Caller, SubscriptionRequests
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.errors import Unavailable, WherryError
from wherry.model.schema import Message
from wherry.sim.clients.client_link import ClientLink
from wherry.sim.clients.links import PATIENCE_S, Gone
from wherry.sim.world.network import SimTransport
from wherry.sim.world.wires import WireWorld
from wherry.wire.native.codec.documents import SubscribeTerms
from wherry.wire.native.codec.frames import PATH, PROTOCOL

T = TypeVar("T")

REQUEST = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()

RESTED_S = 6.0
"""So long after a pause of the broker, nothing that it sends is late because of the pause."""

BLAMED = {
    "broke the protocol: credit": "credit_kept",
    "broke the protocol": "rules_kept",
    "sent no HELLO": "answers_come",
    "did not end a stream": "answers_come",
    "sent nothing": "beats_come",
    "closed the connection: ": "rules_kept",
}
"""Words of the client about the end of a connection, and the checker whose rule the broker broke then."""


class Upgrading(UpgradeAnswer):
    """Sends the request for the upgrade as soon as the connection is made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: asyncio.Future[SimTransport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, SimTransport)
        transport.write(REQUEST)
        if not self.made.done():
            self.made.set_result(transport)


async def open_session(
    world: WireWorld, ended: Callable[[NativeSession], None], made: Callable[[SimTransport], None]
) -> tuple[Broker, NativeSession]:
    """Connect and switch to the native wire; `made` is called with the transport as soon as there is one."""
    asking = Upgrading()
    broker = await world.connect(asking, "native")
    transport = await asking.made
    made(transport)
    answer = await asking.answer
    if answer is None or answer.status != SWITCHED:
        transport.close()
        raise Unavailable("the broker closed the connection without an answer to the upgrade")
    session = NativeSession(transport, 2 * PATIENCE_S, ended)
    session.data_received(bytes(answer.body))
    await session.opened
    return broker, session


class NativeLink(ClientLink):
    """One connection over the native wire."""

    def __init__(self, world: WireWorld, name: str) -> None:
        super().__init__(world, name)
        self.session: NativeSession

    async def connect(self) -> None:
        """Connect and greet."""
        try:
            self.broker, self.session = await open_session(self.world, self._ended, self._made)
        except WherryError as fault:
            raise Gone(str(fault)) from fault

    def _made(self, transport: SimTransport) -> None:
        self.transport = transport

    async def ready(self) -> None:
        """Do nothing: a publisher needs no more than the session."""

    @property
    def is_leaving(self) -> bool:
        """Return whether a side has sent GOODBYE: nothing new is begun."""
        return self.session.is_leaving

    async def close(self) -> None:
        """Send GOODBYE, and wait until the connection is closed."""
        self.session.close()
        await self.answer(asyncio.shield(self.session.lost), "GOODBYE")

    # --------------------------------------------------------------------------------------------------- calls

    def subscribe(self, terms: SubscribeTerms, take: Callable[[Batch, int], None]) -> ClientStream:
        """Ask for a stream; `opened` of the stream has the answer."""
        stream = ClientStream(self.session, SubscriptionRequests(Caller(self), terms.topic, terms.subscription), take)
        try:
            stream.subscribe(terms)
        except WherryError as fault:
            raise Gone(str(fault)) from fault
        return stream

    async def ask(self, request: ClientRequest) -> ClientResponse:
        """Send a CALL; see `Transport` of the client."""
        return await self.session.call(request)

    def publish(
        self, queue: str, messages: list[bytes | Message], options: PublishOptions | None
    ) -> asyncio.Future[Published]:
        """Publish messages in one frame."""
        try:
            return prepare(queue, messages, options).send(self.session, queue)
        except WherryError as fault:
            raise Gone(str(fault)) from fault

    async def room(self) -> None:
        """Wait until a request may be sent; raise `Gone` if none may be begun any more."""
        if self.session.is_full:
            await self.answer(self.session.room(), "room")
        if self.is_gone or self.is_leaving:
            raise Gone("the connection is over, or will be soon")

    # ----------------------------------------------------------------------------------------------------- end

    def _ended(self, session: NativeSession) -> None:
        """Note that the session begins nothing new; once it is closed, check why."""
        if not session.is_closed or self.is_gone:
            return
        self.is_gone = True
        try:
            session.next_number()
        except Unavailable as fault:
            self._check_end(str(fault))

    def _check_end(self, why: str) -> None:
        rule = next((rule for words, rule in BLAMED.items() if words in why), None)
        is_late = self.is_ending or self.world.paused_until > self.world.now() - RESTED_S
        self.world.note("ended", self.name, why)
        if rule is not None and not ("broke the protocol" not in why and is_late) and not self.has_failed():
            self.broken(rule, why)
