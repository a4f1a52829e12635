"""The end of the process in which Spark plans the micro-batches of a stream.

When a query is stopped, Spark closes the connection to that process. Its module takes that for an error, fails to
report it over the closed connection, and prints a traceback of both. Here it ends without a word. Other errors are
printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module of Spark that such a process runs."""

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def install() -> None:
    """Let this process end without a word when Spark closes its connection; does nothing in other processes."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == RUNNER:
        sys.excepthook = hook_of(sys.__excepthook__)


def hook_of(printed: Hook) -> Hook:
    """Return a hook for errors that prints all but the end of the connection."""

    def hook(kind: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
        if not (isinstance(fault, BrokenPipeError | ConnectionResetError) and isinstance(fault.__context__, EOFError)):
            printed(kind, fault, trace)

    return hook
