"""Nodes of a mesh as processes, lines between them that can be cut, and clients that wait until all has come."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from typer.testing import CliRunner

import wherry
from tests.integration.proxies import Proxy
from tests.integration.worlds import Node
from tests.ports import free_port
from wherry.cli.main import app

PATIENCE_S = 90.0


class MeshNodeProcess(Node):
    """A node of a mesh; its configuration is in a file."""

    def __init__(self, home: Path, name: str, **mesh: Any) -> None:
        self.name = name
        self._file = home / f"{name}.toml"
        super().__init__(home / name, "--config", str(self._file))
        self.url = f"http://127.0.0.1:{self._port}"
        self.configure(**mesh)

    def configure(self, **mesh: Any) -> None:
        """Write the configuration for the next start."""
        lines = [f"{key} = {_toml(value)}" for key, value in {"node": self.name, **mesh}.items()]
        off = "\n".join(f"[{wire}]\nenabled = false" for wire in ("flight", "amqp", "stomp"))
        self._file.write_text("\n".join([off, "[mesh]", *lines, ""]))

    def pause(self) -> None:
        """Stop the process, as a machine that hangs."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the process continue."""
        self._process.send_signal(signal.SIGCONT)

    async def __aexit__(self, *why: object) -> None:
        if self._process.returncode is None:
            self.go_on()
        await super().__aexit__(*why)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


class Line:
    """A line to a node, at an address of its own, that can be cut and mended."""

    def __init__(self, url: str) -> None:
        self._proxy = Proxy(url)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def mend(self) -> None:
        """Let connections through."""
        self._server = await asyncio.start_server(self._proxy.serve, "127.0.0.1", self._port)

    async def cut(self) -> None:
        """Cut the connections, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._proxy.cut()
            self._server = None
            await asyncio.sleep(0)


@asynccontextmanager
async def started(nodes: Sequence[MeshNodeProcess]) -> AsyncIterator[dict[str, wherry.Client]]:
    """Start nodes; yield a client of each, by name."""
    async with AsyncExitStack() as stack:
        clients = {}
        for node in nodes:
            await stack.enter_async_context(node)
            clients[node.name] = await stack.enter_async_context(wherry.connect(node.url))
        yield clients


async def until(found: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until a look at nodes gives something true."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await found():  # noqa: ASYNC110  the node is another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


async def connected(client: wherry.Client, *names: str) -> None:
    """Wait until a node is connected to these nodes, and no others."""

    async def look() -> bool:
        links = (await client.mesh())["links"]
        return {each["node"] for each in links if each["state"] == "connected"} == set(names)

    await until(look, f"connected to {names}")


async def flowing(client: wherry.Client, topic: str, *peers: str) -> None:
    """Wait until each of these nodes has subscribed to a topic at a node: from then on they miss nothing."""

    async def look() -> bool:
        backlogs = (await client.mesh())["backlogs"]
        return {each["peer"] for each in backlogs if each["topic"] == topic} == set(peers)

    await until(look, f"{topic} flows to {peers}")


async def received(client: wherry.Client, topic: str, subscription: str, last: set[bytes]) -> list[bytes]:
    """Return all that a subscriber gets, in order, until it has each of the last messages."""
    got: list[bytes] = []
    missing = set(last)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while missing:
                batch = await client.pull(topic, subscription, 1_000, wait_ms=1_000)
                got += batch.payloads()
                missing -= set(batch.payloads())
                if len(batch):
                    await batch.ack()
    except TimeoutError:
        raise AssertionError(f"never came: {sorted(missing)[:5]}; {len(got)} others did, the last {got[-3:]}") from None
    return got


def shown(url: str) -> str:
    """Return what `wherry mesh` prints about a node."""
    done = CliRunner().invoke(app, ["mesh"], env={"WHERRY_URL": url, "COLUMNS": "160"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output
