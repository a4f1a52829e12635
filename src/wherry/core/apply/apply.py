"""The one place where durable state changes: an entry goes in, the state moves one atomic step.

Live, on recovery and on another node the same entries give the same state. Nothing here asks for bodies, waits, or
refuses: whether an entry is right was decided before it was written.
"""

from __future__ import annotations

from wherry.core.apply import catalog, publishes, settles
from wherry.core.apply.step import Effects, Handler, Step
from wherry.core.state.state import State
from wherry.model import ops
from wherry.model.ops import Entry

_HANDLERS: dict[type[ops.Op], Handler] = {
    **catalog.HANDLERS,
    **publishes.HANDLERS,
    **settles.HANDLERS,
}


def apply(state: State, entry: Entry) -> Effects:
    """Move the state by one entry."""
    step = Step(state, entry.at_us, entry.volatile, list(entry.batches), Effects(), len(entry.batches))
    for op in entry.ops:
        _HANDLERS[type(op)](step, op)
    return step.effects
