"""The process that serves a directory: opens the broker, listens, reloads certificates, and stops without loss.

    starting ──► ready ──► draining ──► stopped
    the broker   requests  /readyz answers 503, requests end,
    recovers     served    a last checkpoint, the directory is unlocked

No server listens before the broker has recovered, so a client that can connect is served.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from wherry.broker import strategies
from wherry.broker.broker import Broker
from wherry.broker.opening import open as open_broker
from wherry.model.errors import InvalidInput, WherryError
from wherry.node.config import Config
from wherry.node.identity import (
    IdentityEndpoints,
    access_tokens,
    console_provider,
    wait_in_threads,
    watch_identity,
)
from wherry.node.key_policy import first_key, has_keys, is_loopback, requires_keys
from wherry.node.memory import memory_releaser
from wherry.node.meter import (
    metered,
    observer_of,
    watch_calls,
    watch_mesh,
    watch_native,
    watch_queries,
    watch_server,
    watch_stomp,
)
from wherry.node.native.endpoints import NativeEndpoints
from wherry.node.queries.endpoints import QueryEndpoints
from wherry.node.queries.reports import QueryReports
from wherry.node.webhooks.calls import Calls, calling
from wherry.security.access import Access
from wherry.security.tls import Tls, TlsFiles
from wherry.wire.flight.certificates import Certificates
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import Verb
from wherry.wire.http.app import App, serve
from wherry.wire.http.protocol.message import Request
from wherry.wire.http.protocol.server import Server
from wherry.wire.native.sessions import Sessions as NativeSessions

if TYPE_CHECKING:
    from wherry.broker.metrics.metrics import Metrics
    from wherry.node.stomp.transports import HttpTransports
    from wherry.queueing.queueing import Queueing
    from wherry.security.oidc.access_tokens import AccessTokens
    from wherry.wire.flight.server import FlightServer
    from wherry.wire.stomp.sessions import Sessions

State: TypeAlias = Literal["starting", "ready", "draining", "stopped"]

WATCH_S = 0.5


Wire: TypeAlias = Literal["http", "flight", "amqp", "stomp"]

SCHEMES: dict[Wire, tuple[str, str]] = {
    "http": ("http", "https"),
    "flight": ("grpc", "grpc+tls"),
    "amqp": ("amqp", "amqps"),
    "stomp": ("stomp", "stomp+ssl"),
}
"""Schemes of the URLs of each wire, without TLS and with it."""


class Listening(Protocol):
    """The server of a wire."""

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on an address; return the port."""


class Served(NamedTuple):
    """A wire to be served: its server, its port, and the setting that named the port, if one did."""

    wire: Wire
    server: Listening
    port: int
    setting: str | None


_log = logging.getLogger("wherry.node")


class Node:
    """A broker with the servers of its wires.

    Examples
    --------
    >>> async def main(config):
    ...     async with Node(config) as node:
    ...         print(node.url)
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.state: State = "starting"
        self.broker: Broker
        self.server: Server
        self.calls: Calls
        self.native_sessions: NativeSessions
        self.keys_on = False
        self.tokens: AccessTokens | None = None
        """Verifies access tokens, if an identity provider is configured."""
        self.first_key: Path | None = None
        """The file with the first key, if this start made it."""
        self._ports: dict[Wire, int] = {"http": config.server.port}
        """The ports of the wires that are served."""
        self.stomp_sessions: Sessions | None = None
        self.stomp_over_http: HttpTransports | None = None
        """STOMP over the HTTP port, if STOMP is served."""
        self._flight: FlightServer | None = None
        self._stack = AsyncExitStack()

    def _url_of(self, wire: Wire) -> str | None:
        port, host = self._ports.get(wire), self.config.server.host
        if port is None:
            return None
        plain, secure = SCHEMES[wire]
        scheme = plain if self.config.tls.certificate is None else secure
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def port(self) -> int:
        """Return the port of HTTP."""
        return self._ports["http"]

    @property
    def flight_port(self) -> int | None:
        """Return the port of Arrow Flight, None if it is not served."""
        return self._ports.get("flight")

    @property
    def amqp_port(self) -> int | None:
        """Return the port of AMQP, None if it is not served."""
        return self._ports.get("amqp")

    @property
    def stomp_port(self) -> int | None:
        """Return the port of STOMP, None if it is not served."""
        return self._ports.get("stomp")

    @property
    def url(self) -> str:
        """Return the URL of HTTP."""
        return self._url_of("http") or ""

    @property
    def flight_url(self) -> str | None:
        """Return the URL of Arrow Flight, None if it is not served."""
        return self._url_of("flight")

    @property
    def amqp_url(self) -> str | None:
        """Return the URL of AMQP, None if it is not served."""
        return self._url_of("amqp")

    @property
    def stomp_url(self) -> str | None:
        """Return the URL of STOMP, None if it is not served."""
        return self._url_of("stomp")

    async def __aenter__(self) -> Node:
        began = time.monotonic()
        try:
            await self._start()
        except BaseException:
            self.state = "stopped"
            await self._stack.aclose()
            raise
        self.state = "ready"
        seconds = round(time.monotonic() - began, 3)
        _log.info(
            "ready",
            extra={
                "url": self.url,
                "flight": self.flight_url,
                "amqp": self.amqp_url,
                "stomp": self.stomp_url,
                "data": self.config.storage.path,
                "seconds": seconds,
            },
        )
        return self

    async def _start(self) -> None:
        config, stack = self.config, self._stack
        tls = self._tls()
        strategies.load()
        path, cache_bytes = config.storage.path, config.storage.cache_bytes
        self.broker = await stack.enter_async_context(open_broker(path, cache_bytes=cache_bytes))
        await self._apply_key_policy()
        self.tokens = tokens = await stack.enter_async_context(access_tokens(config.oidc))
        access = Access(self.keys_on, self.broker, tokens=tokens)

        def guard(request: Request, verb: Verb, topic: str) -> str:
            return "" if verb == "none" else access.check(request.headers, verb, topic)

        metrics = await stack.enter_async_context(metered(self.broker, config))
        self.calls = await stack.enter_async_context(
            calling(self.broker, config.webhooks, patience_s=config.server.drain_s)
        )
        names = None if self.keys_on else (config.server.host, *config.server.names)
        self.app = App(
            self.broker,
            bounds=config.limits,
            guard=guard,
            names=names,
            origins=self._origins(),
            observer=observer_of(metrics),
            check_ready=self._check_ready,
        )
        self.server = await stack.enter_async_context(serve(self.app))
        watch_server(metrics, self.server)
        self.native_sessions = NativeSessions(self.broker)
        stack.push_async_callback(self.native_sessions.finished)
        self.app.mount(NativeEndpoints(self.app, self.native_sessions).table())
        watch_native(metrics, self.native_sessions)
        watch_calls(metrics, self.calls)
        self._take_reports(metrics)
        if tokens is not None:
            self._serve_identity(tokens, access, metrics)
        if tls is not None:
            following = asyncio.create_task(tls.follow(), name="wherry tls")
            stack.callback(following.cancel)
        if (memory := memory_releaser()) is not None:
            giving = asyncio.create_task(memory.run(), name="wherry memory")
            stack.callback(giving.cancel)
        # if pandas is installed and not kept out, Arrow loads it with the first array: now, not in the first request
        pa.array([])
        context = None if tls is None else tls.context
        served = [Served("http", self.server, config.server.port, "server.host, server.port")]
        if config.flight.enabled:
            await self._start_flight(access)
        if config.amqp.enabled or config.stomp.enabled:
            served += await self._start_hosts(access, metrics, tls=context is not None)
        for each in served:
            await self._listen(each, context)
        await self._listen_unix(config.server.unix_socket)
        if config.mesh.node is not None:
            await self._start_mesh(metrics)

    def _take_reports(self, metrics: Metrics) -> None:
        """Let streaming queries of Spark report themselves, and show them."""
        reports = QueryReports(self.broker, time.monotonic)
        self.app.mount(QueryEndpoints(reports).table())
        watch_queries(metrics, reports)

    async def _start_mesh(self, metrics: Metrics) -> None:
        from wherry.node.mesh.endpoints import MeshEndpoints  # noqa: PLC0415  only where it has peers
        from wherry.node.mesh.serving import meshing  # noqa: PLC0415

        meshed = meshing(self.broker, self.config.mesh, Path(self.config.storage.path), self.url)
        mesh = await self._stack.enter_async_context(meshed)
        watch_mesh(metrics, mesh.failures)
        self.app.mount(MeshEndpoints(mesh).table())

    def _serve_identity(self, tokens: AccessTokens, access: Access, metrics: Metrics) -> None:
        """Let requests wait for keys of the provider, and show the provider."""
        self.server.awaited = lambda request: access.awaited_in(request.headers)
        self.app.service.provider = lambda: console_provider(tokens, self.config.oidc)
        self.app.mount(IdentityEndpoints(tokens, access, self.config.oidc).table())
        watch_identity(metrics, tokens)

    async def _listen_unix(self, path: str | None) -> None:
        if path is not None:
            try:
                await self.server.listen_unix(path)
            except OSError as fault:
                allowed = f"a path where a socket can be made ({fault})"
                raise InvalidInput("server.unix_socket", path, allowed) from None

    async def _listen(self, served: Served, tls: ssl.SSLContext | None) -> None:
        """Listen for a wire.

        If another program has a port that no setting names, log a warning and do not serve the wire.
        """
        host, port = self.config.server.host, served.port
        try:
            self._ports[served.wire] = await served.server.listen(host, port, tls)
        except OSError as fault:
            if served.setting is not None:
                raise InvalidInput(served.setting, f"{host}:{port}", f"an address to listen on ({fault})") from None
            name = served.wire.upper()
            _log.warning(f"{name} is not served: another program has its port", extra={"port": port, "why": str(fault)})

    async def _start_hosts(self, access: Access, metrics: Metrics, *, tls: bool) -> list[Served]:
        """Start the virtual hosts; return the wires that serve them."""
        from wherry.queueing.queueing import Queueing  # noqa: PLC0415  only where it is served

        queueing = Queueing(self.broker, self.config.amqp.hosts)
        await self._stack.enter_async_context(queueing.open())
        served = []
        if self.config.amqp.enabled:
            served.append(await self._start_amqp(queueing, access, tls=tls))
        if self.config.stomp.enabled:
            served.append(await self._start_stomp(queueing, access, metrics, tls=tls))
        return served

    async def _start_amqp(self, queueing: Queueing, access: Access, *, tls: bool) -> Served:
        from wherry.node.management import PREFIX, Management  # noqa: PLC0415  only where it is served
        from wherry.wire.amqp.server import serve_queueing  # noqa: PLC0415

        config = self.config
        port = config.amqp.port_beside(config.server, tls=tls)
        serving = serve_queueing(queueing, access=access, any_user=config.amqp.any_user, drain_s=config.server.drain_s)
        server = await self._stack.enter_async_context(serving)
        self.app.mount_under(PREFIX, Management(queueing, access, self.app, any_user=config.amqp.any_user))
        return Served("amqp", server, port, "amqp.port" if config.amqp.port is not None else None)

    async def _start_stomp(self, queueing: Queueing, access: Access, metrics: Metrics, *, tls: bool) -> Served:
        from wherry.node.stomp.endpoints import StompEndpoints  # noqa: PLC0415  only where it is served
        from wherry.node.stomp.transports import HttpTransports  # noqa: PLC0415
        from wherry.wire.stomp.sessions import Bounds  # noqa: PLC0415
        from wherry.wire.stomp.transports.tcp import serve as serve_stomp  # noqa: PLC0415

        config, section = self.config, self.config.stomp
        port = section.port_beside(config.server, tls=tls)
        bounds = Bounds(**{name: getattr(section, name) for name in Bounds.__struct_fields__})
        serving = serve_stomp(
            queueing,
            access=access,
            bounds=bounds,
            any_user=config.amqp.any_user,
            names=(config.server.host, *config.server.names),
            drain_s=config.server.drain_s,
        )
        server = await self._stack.enter_async_context(serving)
        self.stomp_sessions = server.sessions
        self.stomp_over_http = HttpTransports(server.sessions)
        self.app.mount(StompEndpoints(self.stomp_over_http).table())
        self.server.ticking.append(self.stomp_over_http)
        watch_stomp(metrics, server.sessions)
        return Served("stomp", server, port, "stomp.port" if section.port is not None else None)

    async def _start_flight(self, access: Access) -> None:
        from wherry.wire.flight.server import serve as serve_flight  # noqa: PLC0415  8 MB, only where it is served

        config = self.config
        port = config.flight.port_beside(config.server)
        guard, wait, tls = access.check, wait_in_threads(access), self._certificates()
        flight = serve_flight(self.broker, config.server.host, port, guard=guard, wait=wait, tls=tls)
        self._flight = await self._stack.enter_async_context(flight)
        self._ports["flight"] = self._flight.port

    def _certificates(self) -> Certificates | None:
        tls = self.config.tls
        if tls.certificate is None or tls.key is None:
            return None
        client_ca = None if tls.client_ca is None else Path(tls.client_ca).read_bytes()
        required = tls.client_certificates == "required"
        chain, key = Path(tls.certificate).read_bytes(), Path(tls.key).read_bytes()
        return Certificates(chain, key, client_ca if required else None)

    def _tls(self) -> Tls | None:
        tls = self.config.tls
        if tls.certificate is None or tls.key is None:
            return None
        client_ca = None if tls.client_ca is None else Path(tls.client_ca)
        required = tls.client_certificates == "required"
        return Tls(TlsFiles(Path(tls.certificate), Path(tls.key), client_ca, required))

    async def _apply_key_policy(self) -> None:
        host = self.config.server.host
        identified = self.config.oidc.issuer is not None
        self.keys_on = requires_keys(self.config.security, host, has_keys=identified or has_keys(self.broker))
        if not self.keys_on:
            return
        self.first_key = await first_key(self.broker, Path(self.config.storage.path))
        if self.first_key is not None:
            _log.info("made the first key, which has all rights", extra={"file": str(self.first_key)})
        keys = self.broker.keys()
        if not any(key.allows("admin", "*") for key in keys):
            _log.warning("no key may administer all topics ('*'): keys and routes cannot be changed over a wire")
        if self.config.tls.certificate is None and not is_loopback(host):
            _log.warning("keys are sent unencrypted: there is no TLS, and other machines can reach this address")

    def _origins(self) -> tuple[str, ...]:
        origins = self.config.server.origins
        if "*" in origins and not self.keys_on:
            raise InvalidInput(
                "server.origins", "*", "origins of pages; any origin is allowed only if keys are required"
            )
        return origins

    def _check_ready(self) -> None:
        if self.state != "ready":
            raise HttpError("closed", f"this node is {self.state}")

    @property
    def is_idle(self) -> bool:
        """Return, once stopped, whether no call is left that waits for its client and would delay the exit."""
        return self._flight is None or self._flight.is_idle

    @property
    def failure(self) -> WherryError | None:
        """Return why the journal failed, None if it works: after a failure nothing can be stored or confirmed."""
        return self.broker.failure

    async def failed(self) -> bool:
        """Wait for a failure of the journal; return True when there is one."""
        while True:
            if self.failure is not None:
                return True
            await asyncio.sleep(WATCH_S)

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        began = time.monotonic()
        self.state = "draining"
        _log.info("draining", extra={"connections": self.server.connections, "requests": self.server.requests})
        try:
            if self.failure is None:
                await asyncio.sleep(self.config.server.linger_s)
            await self.server.close(self.config.server.drain_s)
        finally:
            await self._stack.aclose()
            self.state = "stopped"
        _log.info("stopped", extra={"seconds": round(time.monotonic() - began, 3)})
