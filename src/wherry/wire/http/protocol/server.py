"""The HTTP server: accept connections, count them, tick, and close without cutting off requests under way."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from itertools import count
from typing import Any, TypeAlias, TypeVar

from wherry.model.errors import WherryError
from wherry.wire.http.api.problem import HttpError, problem
from wherry.wire.http.protocol.bounds import Bounds
from wherry.wire.http.protocol.connection import Connection
from wherry.wire.http.protocol.heads import date_line
from wherry.wire.http.protocol.message import (
    Answer,
    Header,
    Request,
    Response,
    Stream,
)
from wherry.wire.http.protocol.upgrade import Guest
from wherry.wire.listener import Clock, Connected, Listener, Ticking, ticking

App: TypeAlias = Callable[[Request], Awaitable[Answer]]
T = TypeVar("T")
Gate: TypeAlias = Callable[[Request], object]
Observer: TypeAlias = Callable[[Request, int, float], None]

TICK_S = 1.0
SMALL_BODY_BYTES = 1 << 20
BOUNDS = ("connections", "requests", "waits", "head_bytes", "body_bytes", "bodies_bytes", "head_s", "body_s", "write_s")
"""Those fields of `Bounds` that end in a refusal."""

_log = logging.getLogger("wherry.http")


def readable_by(origin: str) -> list[Header]:
    """Return headers that let a page of another origin read an answer, and keep caches from giving it to others."""
    return [("Access-Control-Allow-Origin", origin), ("Access-Control-Expose-Headers", "*"), ("Vary", "Origin")]


class Server:
    """An HTTP server on any number of addresses, for one application.

    `clock` is for times within a request and a connection, `wall_clock` for the header `Date`.
    """

    def __init__(
        self,
        app: App,
        *,
        gate: Gate = lambda request: None,
        forget: Callable[[int], None] = lambda connection: None,
        bounds: Bounds | None = None,
        observer: Observer | None = None,
        clock: Clock = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self.clock, self._wall_clock = clock, wall_clock
        self.gate = gate
        """Called with a request before its body is read; raises if the caller may not send one."""
        self.awaited: Callable[[Request], Awaitable[None] | None] = lambda request: None
        """Called as a request begins; returns what to wait for before its caller can be known, nearly always None."""
        self.forget = forget
        """Called with the number of a connection that is closed."""
        self.numbers = count(1)
        """Numbers for connections."""
        self.ticking: list[Ticking] = []
        """Called about once a second with the time, like the connections."""
        self.bounds = bounds or Bounds()
        self.requests = 0
        self.waits = 0
        self.bodies_bytes = 0
        self.answers_bytes = 0
        self.refused: Counter[str] = Counter()
        """Connections and requests that were refused, by the name of the bound."""
        self._observer = observer
        self.connected = Connected[Guest](self.bounds.connections)
        self._tasks: set[asyncio.Task[None]] = set()
        self._patience: dict[asyncio.Timeout, None] = {}
        self._listener = Listener(self.connection, self.bounds.head_s)
        self._ticks = AsyncExitStack()
        self._is_ticking = False
        self._date = (0, "")

    @property
    def connections(self) -> int:
        """Return how many connections are open."""
        return len(self.connected)

    @property
    def closing(self) -> bool:
        """Return whether the server accepts no more connections and requests."""
        return self.connected.is_closing

    def connection(self) -> Connection:
        """Return the protocol object for a client that is about to connect."""
        return Connection(self)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on an address, and return its port, which the system chooses for 0."""
        port = await self._listener.listen(host, port, tls)
        await self.begin_ticks()
        return port

    async def listen_unix(self, path: str) -> None:
        """Listen on a Unix socket as well, without TLS."""
        await self._listener.listen_unix(path)
        await self.begin_ticks()

    async def begin_ticks(self) -> None:
        """Tick until the server closes; `listen` begins it as well."""
        if not self._is_ticking:
            self._is_ticking = True
            ticks = ticking(self._all_ticking, TICK_S, clock=self.clock, log=_log, name="wherry http ticks")
            await self._ticks.enter_async_context(ticks)

    def _all_ticking(self) -> Iterable[Ticking]:
        return (*self.connected, *self.ticking)

    async def close(self, drain_s: float = 10.0) -> None:
        """Close: accept nothing more, answer requests under way, and waiting requests with what they have so far."""
        self.connected.is_closing = True
        self._listener.stop()
        until = self.clock() + drain_s
        while self._patience:
            self._patience.popitem()[0].reschedule(asyncio.get_running_loop().time())
        for connection in self.connected:
            connection.finish()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=drain_s)
        # the last bytes of the last answers
        await self.connected.all_gone(until - self.clock(), lambda connection: connection.abort())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._ticks.aclose()

    # --------------------------------------------------------------------------------- what a connection calls

    def date_line(self) -> str:
        """Return the `Date` header, made once a second."""
        now = int(self._wall_clock())
        if now != self._date[0]:
            self._date = (now, date_line(now))
        return self._date[1]

    def admit(self, connection: Guest) -> str | None:
        """Count a connection; return why it is refused, None if it may be open."""
        if self.connected.admit(connection):
            return None
        if self.closing:
            return "this broker is closing"
        self.refused["connections"] += 1
        return f"{self.bounds.connections} connections are open, which is the bound"

    def discard(self, connection: Guest) -> None:
        """Forget a closed connection."""
        self.connected.discard(connection)

    def succeed(self, connection: Guest, successor: Guest) -> Callable[[], None]:
        """Count `successor` in the place of a connection; return what `successor` calls when it is closed."""
        self.connected.replace(connection, successor)
        return lambda: self.discard(successor)

    def hold(self, size: int, whole: int = 0) -> bool:
        """Count bytes of a body of `whole` bytes if they fit; a large body leaves room for small ones."""
        room = self.bounds.bodies_bytes
        if whole > SMALL_BODY_BYTES:
            room -= room // 8
        if size > 0 and self.bodies_bytes + size > room:
            self.refused["bodies_bytes"] += 1
            return False
        self.bodies_bytes += size
        return True

    def is_roomy(self, size: int) -> bool:
        """Return whether `size` more bytes leave half of the memory for bodies free."""
        return self.bodies_bytes + size <= self.bounds.bodies_bytes // 2

    def keep(self, size: int) -> bool:
        """Count bytes of an answer until its client has read them, and return whether they fit."""
        room = self.bounds.bodies_bytes
        if size > SMALL_BODY_BYTES:
            room -= room // 8
        if size > 0 and self.answers_bytes and self.answers_bytes + size > room:
            return False
        self.answers_bytes += size
        return True

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that answers a request."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def answer(self, request: Request) -> Answer:
        """Return the answer of the application, or the problem that it raises; after a `Stream`, call `end`."""
        if self.requests - self.waits >= self.bounds.requests:
            self.refused["requests"] += 1
            return problem(HttpError("busy", f"{self.bounds.requests} requests are under way, which is the bound"))
        self.requests += 1
        answer: Answer | None = None
        try:
            answer = await self._app(request)
        except WherryError as fault:
            answer = problem(fault)
        except Exception as fault:
            _log.exception("%s %s failed", request.method, request.path)
            answer = problem(HttpError("internal", f"this is a fault of the broker, and it is in its log: {fault!r}"))
        finally:
            if not isinstance(answer, Stream):
                self.end(request)
        self.dress(request, answer)
        return answer

    def dress(self, request: Request, answer: Answer) -> None:
        """Add the headers that let the calling page read the answer, if that page has another origin."""
        if request.page and isinstance(answer, Response | Stream):
            answer.headers = [*answer.headers, *readable_by(request.page)]

    def end(self, request: Request) -> None:
        """Stop counting a request."""
        self.requests -= 1
        if request.waits:
            self.waits -= 1
            request.waits = False

    def begin_wait(self, request: Request) -> None:
        """Count a request among those that wait for messages or for an outcome, which have a bound of their own."""
        if request.waits:
            return
        if self.waits >= self.bounds.waits:
            self.refused["waits"] += 1
            raise HttpError("busy", f"{self.bounds.waits} requests wait already, which is the bound")
        request.waits = True
        self.waits += 1

    async def patiently(self, ask: Callable[[int], Awaitable[T]], wait_ms: int) -> T:
        """Return what `ask` returns within `wait_ms`; when the server closes, call `ask` again with no time to wait."""
        if wait_ms and not self.closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as patience:
                    self._patience[patience] = None
                    try:
                        return await ask(wait_ms)
                    finally:
                        self._patience.pop(patience, None)
        return await ask(0)

    def observe(self, request: Request, status: int, seconds: float) -> None:
        """Report an answered request to the observer."""
        if self._observer is not None:
            self._observer(request, status, seconds)
