"""A broker in this process behind the client's interface: its requests and answers, without a socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wherry.broker.broker import Broker
from wherry.broker.clock import Clock, SystemClock
from wherry.broker.opening import open as open_broker
from wherry.client.client import Client
from wherry.client.clock import VirtualClock
from wherry.client.link.transport import ARROW, ClientRequest, ClientResponse
from wherry.model.errors import Unavailable
from wherry.wire.http.app import App, serve
from wherry.wire.http.protocol.message import Request, Response, Stream
from wherry.wire.http.protocol.server import Server


class EmbeddedClient(Client):
    """The client of a broker in this process."""

    def __init__(self, broker: Broker, server: Server, clock: Clock) -> None:
        super().__init__(_InProcess(server, still=isinstance(clock, VirtualClock)))
        self.broker = broker
        self.clock = clock
        self._server = server

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve this broker to other processes as well; return the address to `connect` to."""
        return f"http://{host}:{await self._server.listen(host, port)}"


@asynccontextmanager
async def embedded(
    path: str | os.PathLike[str] | None = None, *, clock: Clock | None = None
) -> AsyncIterator[EmbeddedClient]:
    """Open a broker in this process, on a directory or in memory, with the interface of `connect`.

    Parameters
    ----------
    path
        The directory; without one the broker lives in memory.
    clock
        A `VirtualClock` lets a test decide what time it is. A pull that waits then does so for no longer than its wait
        in real time, and looks again whenever the clock moves.

    Examples
    --------
    >>> async def main():
    ...     async with wherry.embedded() as client:
    ...         await client.create_topic("jobs")
    ...         await client.publish("jobs", [b"hello"])
    """
    chosen = clock or SystemClock()
    async with open_broker(path, clock=chosen) as broker, serve(App(broker)) as server:
        if isinstance(chosen, VirtualClock):
            chosen.on_move(broker.clock_moved)
        yield EmbeddedClient(broker, server, chosen)


class _InProcess:
    """A `Transport` that calls the application."""

    def __init__(self, server: Server, *, still: bool) -> None:
        self._server = server
        self._still = still

    async def ask(self, sent: ClientRequest) -> ClientResponse:
        """See `Transport`."""
        path, _, query = sent.target.partition("?")
        headers = {"accept": sent.accept, **dict(sent.headers)}
        if sent.content_type:
            headers["content-type"] = sent.content_type
        body = sent.body[0] if len(sent.body) == 1 else b"".join(sent.body)
        request = Request(sent.method, path, query, headers, body)
        try:
            # A pull waits by the broker's clock; by one that stands still it would wait for ever.
            async with asyncio.timeout(sent.wait_s if self._still and sent.wait_s and sent.accept == ARROW else None):
                answer = await self._server.answer(request)
        except TimeoutError:
            return ClientResponse(204)
        if isinstance(answer, Stream):
            await answer.chunks.aclose()  # type: ignore[attr-defined]
            self._server.end(request)
        if not isinstance(answer, Response):
            raise Unavailable("a stream needs a connection")
        headers = dict(answer.headers)
        after_s = float(headers["Retry-After"]) if "Retry-After" in headers else None
        following = headers.get("Wherry-Next")
        return ClientResponse(
            answer.status, answer.content_type, b"".join(answer.body), after_s, following, restarts=False
        )

    async def close(self) -> None:
        """Do nothing: there is no connection."""
