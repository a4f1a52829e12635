"""Loads assignment strategies of others: entry points in the group `wherry.assignments`.

Before the data is opened: a subscription that uses one must find it. One that cannot be loaded, or breaks at its first
trial, stops the start and is named; later it would break the pulls of its consumers.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from wherry.core.state import assignment
from wherry.core.state.assignment import Factory
from wherry.model.errors import InvalidInput

GROUP = "wherry.assignments"

_loaded: dict[str, str] = {}
"""Entry points that are registered, by name: a second node in this process finds them there."""


def load() -> list[str]:
    """Register each strategy that is installed; their names."""
    for point in entry_points(group=GROUP):
        if _loaded.get(point.name) != point.value:
            assignment.register(point.name, _tried(point))
            _loaded[point.name] = point.value
    return sorted(_loaded)


def _tried(point: EntryPoint) -> Factory:
    """Load a factory and let what it makes see one consumer come and go."""
    try:
        factory: Factory = point.load()
        strategy = factory(1)
        strategy.join("trial")
        partitions = list(strategy.of("trial"))
        strategy.leave("trial")
        whole = partitions in ([], [0]) and isinstance(strategy.helps, bool) and isinstance(strategy.rotates, bool)
    except Exception as fault:  # it is another's code: whatever it raises
        allowed = f"a strategy that can be loaded and tried ({type(fault).__name__}: {fault})"
        raise InvalidInput(f"entry point {GROUP}", f"{point.name} = {point.value}", allowed) from fault
    if not whole:
        allowed = "a strategy with `helps` and `rotates`, and with partitions from 0 on"
        raise InvalidInput(f"entry point {GROUP}", f"{point.name} = {point.value}", allowed)
    return factory
