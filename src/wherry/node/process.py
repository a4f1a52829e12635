"""The life of the process: signals, the banner, exit codes.

| code | meaning |
|---|---|
| 0 | stopped by a signal, with everything written |
| 1 | could not start, or the journal failed |
| 2 | the configuration is wrong |
| 128 + n | a second signal n: stopped at once, like a crash; everything confirmed is on disk |
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from wherry.model.errors import WherryError
from wherry.node import logs
from wherry.node.config import Config
from wherry.node.memory import keep_pandas_out
from wherry.node.node import Node
from wherry.wire.http.pages import docs

DEFAULT_URL = "http://127.0.0.1:7070"
"""The port that clients use by default."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

GC_THRESHOLDS = (20_000, 20, 20)
"""The garbage collector scans young objects less often than by default, and never those that existed when the node was
ready: modules and classes, which take it 40 ms while all clients wait."""

SWITCH_S = 0.0001
"""How long a thread that reads the log may hold the interpreter lock; Python's default of 5 ms delays consumers."""

_log = logging.getLogger("wherry.node")


def run(config: Config) -> int:
    """Serve until a signal; return the exit code."""
    keep_pandas_out()
    logs.set_up(config.log.level, config.log.format)
    raise_file_limit(config.limits.connections)
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            code, is_idle = runner.run(_live(config))
        except (WherryError, OSError) as fault:
            print(f"wherry: {fault}", file=sys.stderr)
            return 1
    if not is_idle:
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """Exit without the interpreter's own shutdown, which would wait for calls of clients; data is stored by now."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the faster loop, where it is installed."""
    try:
        import uvloop  # noqa: PLC0415  not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


def raise_file_limit(connections: int) -> None:
    """Raise the limit of open files, one for each connection, as far as possible; log it if it is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems report a hard limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < connections:
        _log.warning(
            "fewer files may be open than limits.connections asks for: raise the limit (ulimit -Hn, LimitNOFILE=)",
            extra={"files": soft, "connections": connections},
        )


async def _live(config: Config) -> tuple[int, bool]:
    """Serve until a signal; return the exit code, and whether no call is left that would hold up the exit."""
    stopping = asyncio.Event()
    _heed_signals(stopping)
    async with Node(config) as node:
        print(banner(node), flush=True)
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        waits = [asyncio.create_task(wait) for wait in (stopping.wait(), node.failed())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        failure = node.failure
        if failure is not None:
            _log.error("the journal failed, so this node stops: %s", failure)
    return 0 if failure is None else 1, node.is_idle


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
    """Return the addresses, the data directory, and three commands to try."""
    data = Path(node.config.storage.path).resolve()
    key_policy = "every request needs a key" if node.keys_on else "no keys asked for"
    lines = [f"Wherry {version('wherry')} at {node.url} ({key_policy}), data in {data}"]
    if node.first_key is not None:
        lines.append(f"The first key, which may do everything, is in {node.first_key}: keep it safe, delete the file.")
    lines.append("")
    sends, imports, key = "", "wherry", ""
    if node.keys_on:
        token = "wk_…" if node.first_key is None else f'"$(cat {shlex.quote(str(node.first_key.resolve()))})"'
        lines.append(f"  export WHERRY_KEY={token}")
        sends, imports = ' -H "Authorization: Bearer $WHERRY_KEY"', "os, wherry"
        key = ", key=os.environ['WHERRY_KEY']"
    at = "" if node.url == DEFAULT_URL else f" --url {node.url}"
    flight = "" if node.flight_url is None else f"; {node.flight_url} is Arrow Flight, for Spark and columns"
    amqp = "" if node.amqp_url is None else f"; {node.amqp_url} is for clients of RabbitMQ"
    stomp = "" if node.stomp_url is None else f"; {node.stomp_url} is for STOMP"
    page = f"{node.url}/docs" if docs.is_there() else f"{node.url}/openapi.json (to try them out: {docs.INSTALL})"
    lines += [
        f"  curl{sends} -X PUT {node.url}/v1/topics/jobs",
        f"  curl{sends} {node.url}/v1/topics/jobs/messages -H 'Content-Type: text/plain' -d hello",
        f"  python -c \"import {imports}; wherry.connect_sync('{node.url}'{key}).publish('jobs', ['hello'])\"",
        f"  wherry{at} publish --create jobs hello",
        "",
        f"  Look at it: {node.url}/console. Every call: {page}{flight}{amqp}{stomp}. Ctrl-C stops.",
    ]
    return "\n".join(lines)
