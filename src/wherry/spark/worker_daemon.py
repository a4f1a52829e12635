"""The process that starts Spark's Python workers, as in `pyspark.daemon`, but quiet where nothing is wrong.

A query that has enough rows (`show`, `head`, `LIMIT`, a stopped stream) closes the connection of its workers. Spark's
own daemon prints a traceback (`BrokenPipeError`) for each of them, although the query succeeded. Here such a worker
ends without a word. Everything else is Spark's. Nothing may be imported here that starts threads: workers are forks.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from pyspark import daemon

Worker = Callable[[socket.socket, bool], int]

ENOUGH = 1
"""The exit code of a worker whose connection Spark has closed: it is not used again."""


def quiet(worker: Worker) -> Worker:
    """Return a worker that ends with an exit code where Spark has closed its connection."""

    def run(connection: socket.socket, authenticated: bool) -> int:
        try:
            return worker(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return ENOUGH

    return run


if __name__ == "__main__":
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
