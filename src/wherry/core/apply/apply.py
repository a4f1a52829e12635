"""Apply an entry: the state moves by one atomic step.

The same entries give the same state, live and on recovery. Nothing here reads a body, waits or refuses: whether an
entry is allowed was decided before it was written.
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
    """Apply one entry, and return what the shell has to do after it."""
    step = Step(state, entry.at_us, entry.volatile, list(entry.batches), Effects(), len(entry.batches))
    for op in entry.ops:
        _HANDLERS[type(op)](step, op)
    return step.effects
