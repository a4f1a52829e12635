"""Plants in what AMQP and STOMP share: limits, labels and transactions."""

from __future__ import annotations

from typing import Any

from wherry.queueing.flow import delivering
from wherry.queueing.flow.intake import Intake
from wherry.sim.patch import patched


def one_more(room: Any) -> Any:
    """Make a limit off by one, where there is any room at all."""
    return lambda self: left + 1 if (left := room(self)) > 0 else left


def unmarked() -> Any:
    """Mark no message as redelivered."""

    def make(label: Any) -> Any:
        def fresh(*given: Any, **options: Any) -> Any:
            found = label(*given, **options)
            return found and (False, *found[1:])

        return fresh

    return patched(delivering, "_label", make)


def half() -> Any:
    """Leave the last message out of a commit."""
    return patched(Intake, "batches", lambda batches: lambda self, some: batches(self, list(some)[:-1]))
