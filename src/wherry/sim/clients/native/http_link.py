"""A connection of HTTP: the connection and the calls of the Python client, on the simulated network."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from wherry.client.client import Client
from wherry.client.link.connection import Connection
from wherry.client.link.pool import BOUNDS, answer_of, head_of
from wherry.client.link.transport import ClientRequest, ClientResponse
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.schema import Message
from wherry.sim.clients.client_link import ClientLink
from wherry.sim.clients.links import Gone
from wherry.sim.world.network import SimTransport
from wherry.sim.world.wires import WireWorld

MISREAD = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
)
"""Answers to requests that are broken, too slow or too large; clients of a run send none."""

LATE_S = 60.0
"""A request of before a pause of the broker may be late for so long."""

COMMON = "Host: localhost\r\n"


class SimConnection(Connection):
    """The connection of the client, which reports when it is made and when it is closed."""

    def __init__(self, link: HttpLink) -> None:
        super().__init__("the broker", BOUNDS)
        self._link = link
        self.made: asyncio.Future[SimTransport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, SimTransport)
        if not self.made.done():
            self.made.set_result(transport)

    def connection_lost(self, fault: Exception | None) -> None:
        self._link.is_gone = True
        super().connection_lost(fault)


class HttpLink(ClientLink):
    """One connection over HTTP, with one request at a time."""

    def __init__(self, world: WireWorld, name: str) -> None:
        super().__init__(world, name)
        self._connection = SimConnection(self)
        self._client = Client(self)
        self._last: asyncio.Task[Published] | None = None
        """The publish that was begun last."""

    async def connect(self) -> None:
        """Connect; HTTP has no greeting."""
        self.broker = await self.world.connect(self._connection, "http")
        self.transport = await self._connection.made

    async def close(self) -> None:
        """Close the connection, and wait until it is closed."""
        self._connection.close()
        await self.answer(asyncio.shield(self._connection.lost), "the close")

    async def room(self) -> None:
        """Raise `Gone` if no request may be begun any more."""
        if self.is_gone or self._connection.closing:
            raise Gone("the connection is over, or will be soon")

    def publish(
        self, queue: str, messages: list[bytes | Message], options: PublishOptions | None
    ) -> asyncio.Future[Published]:
        """Publish messages in one request, behind those that were begun before."""
        self._last = asyncio.create_task(self._publish(self._last, queue, messages, options))
        return self._last

    async def _publish(
        self,
        before: asyncio.Task[Published] | None,
        queue: str,
        messages: list[bytes | Message],
        options: PublishOptions | None,
    ) -> Published:
        if before is not None:
            await asyncio.wait([before])
        return await self._client.publish(queue, messages, options)

    async def ask(self, request: ClientRequest) -> ClientResponse:
        """Send a request; see `Transport` of the client."""
        connection = self._connection
        body = await connection.ask(head_of(request, COMMON), request.body)
        self._check(connection.status, bytes(body))
        return answer_of(connection.status, connection.headers, body)

    def _check(self, status: int, body: bytes) -> None:
        """Record a fault if the broker has misread a request; after a pause of the broker one may be late."""
        is_late = status == HTTPStatus.REQUEST_TIMEOUT and self.world.paused_until > self.world.now() - LATE_S
        if status in MISREAD and not is_late:
            self.broken("rules_kept", f"a good request was answered {status}: {body.decode()}")
