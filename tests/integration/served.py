"""A node in a thread of its own, for tests that come over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from wherry.node.config import Config, ServerSection, StorageSection
from wherry.node.node import Node
from wherry.wire.http.protocol.bounds import Bounds

T = TypeVar("T")


class Served:
    """The node, and a way into its loop."""

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self.node, self.loop = node, loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop of the node."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


@contextmanager
def served(home: Path, bounds: Bounds | None = None, **sections: Any) -> Iterator[Served]:
    """Run a node on a directory, until the end of the `with`."""
    sections.setdefault("server", ServerSection(port=0, drain_s=2.0))
    config = Config(
        storage=StorageSection(path=str(home)),
        limits=bounds or Bounds(),
        **sections,
    )
    ready, found = threading.Event(), list[Served]()

    async def main() -> None:
        async with Node(config) as node:
            found.append(Served(node, asyncio.get_running_loop()))
            stop = found[0].__dict__["stop"] = asyncio.Event()
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="node")
    thread.start()
    assert ready.wait(30)
    try:
        yield found[0]
    finally:
        found[0].loop.call_soon_threadsafe(found[0].__dict__["stop"].set)
        thread.join(30)
        assert not thread.is_alive(), "the node does not end"
