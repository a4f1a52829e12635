"""The line in which connections wait for the loop, shared by nodes that may die.

A node has a loop of its own; simulated ones share one. A callback belongs to the process that scheduled it, and is not
called once that process is dead: the line itself must belong to none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context

from wherry.wire.fairness import FairLoop


class SharedLine(FairLoop):
    """A `FairLoop` of several nodes: no connection uses up a budget, and those of dead nodes are passed over."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop().time, lambda: 0.0)

    def wait(self, call: Callable[[], None], *, is_stranger: bool = False) -> None:
        """Put a callback in line, which is made in its own process."""
        loop, context = asyncio.get_running_loop(), copy_context()

        def made() -> None:
            loop.call_soon(call, context=context)

        super().wait(made, is_stranger=is_stranger)

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._turn_began = self.used()
        asyncio.get_running_loop().call_soon(self._next, context=Context())
