"""A node in a thread, so that tests talk to it over sockets and look into it as well."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from wherry.journal.bodies.store import CACHE_BYTES_MAX
from wherry.node.config import (
    Config,
    FlightSection,
    SecuritySection,
    ServerSection,
    StompSection,
    StorageSection,
    TlsSection,
)
from wherry.node.node import Node
from wherry.node.process import _loop_factory

PATIENCE_S = 30.0

LOOPS: dict[Node, asyncio.AbstractEventLoop] = {}
"""Of the nodes that run."""

T = TypeVar("T")


def done_in(node: Node, work: Coroutine[Any, Any, T]) -> T:
    """Do something in the loop of a node."""
    return asyncio.run_coroutine_threadsafe(work, LOOPS[node]).result(PATIENCE_S)


@contextmanager
def running(
    folder: Path,
    stomp: StompSection | None = None,
    *,
    tls: TlsSection | None = None,
    keys: bool = False,
    cache_bytes: int = CACHE_BYTES_MAX,
) -> Iterator[Node]:
    """Run a node with STOMP and AMQP on ports of their own."""
    config = Config(
        server=ServerSection(port=0, drain_s=1.0),
        flight=FlightSection(enabled=False),
        storage=StorageSection(path=str(folder / "data"), cache_bytes=cache_bytes),
        stomp=stomp or StompSection(),
        tls=tls or TlsSection(),
        security=SecuritySection(keys="on" if keys else "off"),
    )
    started: list[Node | BaseException] = []
    ready, loops = threading.Event(), []

    async def live() -> None:
        stopping = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stopping))
        async with Node(config) as node:
            started.append(node)
            ready.set()
            await stopping.wait()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:  # the loop that a node has in its process
                runner.run(live())
        except BaseException as fault:
            started.append(fault)
            ready.set()

    thread = threading.Thread(target=run, name="node")
    thread.start()
    assert ready.wait(PATIENCE_S)
    node = started[0]
    if isinstance(node, BaseException):
        thread.join()
        raise node
    LOOPS[node] = loops[0][0]
    try:
        yield node
    finally:
        loop, stopping = loops[0]
        del LOOPS[node]
        loop.call_soon_threadsafe(stopping.set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert len(started) == 1, started


def until(holds: Callable[[], bool]) -> None:
    """Wait for something, within a bound."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
