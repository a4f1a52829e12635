"""Ctrl-C during a run: noted, and looked at between calls to Java.

Spark's own handler calls Java from within whatever call to Java was under way, which breaks both and prints tracebacks.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def noted() -> Iterator[Callable[[], bool]]:
    """Note the first Ctrl-C until the end of the `with`; a second one is a `KeyboardInterrupt`.

    What is yielded returns whether there was one. In a thread that gets no signals it always returns false.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        seen.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)
