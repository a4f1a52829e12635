"""The end of a process in which Spark plans a load, or the micro-batches of a stream.

When a query is stopped, Spark closes the connection to the process that plans its micro-batches. Its module takes that
for an error, fails to report it over the closed connection, and prints a traceback of both. A process that plans a load
belongs to Spark's own daemon, whatever the setting for workers, and may find its connection closed when it is done.
Here both end without a word. Other errors are printed.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module of Spark that plans micro-batches."""
DAEMON = "pyspark.daemon"
"""The module of Spark whose forks plan loads."""
CLOSED = (BrokenPipeError, ConnectionResetError)

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def install() -> None:
    """Let this process end without a word when Spark closes its connection; does nothing in other processes."""
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == RUNNER:
        sys.excepthook = hook_of(sys.__excepthook__)
    if spec is not None and spec.name == DAEMON:
        main.traceback = _Printer()


class _Printer:
    """What Spark's daemon prints the error of a worker with, in place of the module `traceback`."""

    def print_exc(self) -> None:
        if not isinstance(sys.exc_info()[1], CLOSED):
            traceback.print_exc()

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)


def hook_of(printed: Hook) -> Hook:
    """Return a hook for errors that prints all but the end of the connection."""

    def hook(kind: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
        if not (isinstance(fault, CLOSED) and isinstance(fault.__context__, EOFError)):
            printed(kind, fault, trace)

    return hook
