"""The life of the process: signals, the banner, exit codes.

| code | meaning |
|---|---|
| 0 | it was asked to stop, and stopped with everything written |
| 1 | it could not start, or its journal failed |
| 2 | the configuration is wrong |
| 128 + n | a second signal n: it left at once, as a crash would; what was confirmed is on disk all the same |
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from wherry.model.errors import WherryError
from wherry.node import logs
from wherry.node.config import Config
from wherry.node.node import Node

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("wherry.node")


def run(config: Config) -> int:
    """Serve until a signal; the exit code."""
    logs.set_up(config.log.level, config.log.format)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_live(config))
        except (WherryError, OSError) as fault:
            print(f"wherry: {fault}", file=sys.stderr)
            return 1


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster loop, where it is to be had."""
    try:
        import uvloop  # noqa: PLC0415  not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _live(config: Config) -> int:
    stopping = asyncio.Event()
    _heed_signals(stopping)
    async with Node(config) as node:
        print(banner(node), flush=True)
        waits = [asyncio.create_task(wait) for wait in (stopping.wait(), node.failed())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        failure = node.failure
        if failure is not None:
            _log.error("the journal failed, so this node stops: %s", failure)
    return 0 if failure is None else 1


def _heed_signals(stopping: asyncio.Event) -> None:
    def stop(number: int) -> None:
        if stopping.is_set():
            _log.warning("a second signal: leaving at once", extra={"signal": signal.Signals(number).name})
            os._exit(128 + number)
        _log.info("asked to stop", extra={"signal": signal.Signals(number).name})
        stopping.set()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


def banner(node: Node) -> str:
    """Where it listens, where its data is, and three things to try."""
    data = Path(node.config.storage.path).resolve()
    door = "every request needs a key" if node.keys_on else "no keys asked for"
    lines = [f"Wherry {version('wherry')} at {node.url} ({door}), data in {data}"]
    if node.first_key is not None:
        lines.append(f"The first key, which may do everything, is in {node.first_key}: keep it safe, delete the file.")
    key = ", key='wk_…'" if node.keys_on else ""
    sends = ' -H "Authorization: Bearer $KEY"' if node.keys_on else ""
    lines += [
        "",
        f"  curl{sends} -X PUT {node.url}/v1/topics/jobs",
        f"  curl{sends} {node.url}/v1/topics/jobs/messages -H 'Content-Type: text/plain' -d hello",
        f"  python -c \"import wherry; wherry.connect_sync('{node.url}'{key}).publish('jobs', ['hello'])\"",
        "  wherry publish --create jobs hello",
        "",
        f"  {node.url}/docs shows every call. Ctrl-C stops.",
    ]
    return "\n".join(lines)
