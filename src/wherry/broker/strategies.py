"""Loads assignment strategies of other packages: entry points in the group `wherry.assignments`.

They are loaded before the data is opened, since a subscription that uses one must find it. A strategy that cannot be
loaded, or fails its first trial, stops the start with an error that names it; later it would break pulls.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from wherry.core.state import assignment
from wherry.core.state.assignment import Factory
from wherry.model.errors import InvalidInput

GROUP = "wherry.assignments"

_loaded: dict[str, str] = {}
"""Registered entry points, by name, for a second node in this process."""


def load() -> list[str]:
    """Register each installed strategy; return their names."""
    for point in entry_points(group=GROUP):
        if _loaded.get(point.name) != point.value:
            assignment.register(point.name, _tried(point))
            _loaded[point.name] = point.value
    return sorted(_loaded)


def _tried(point: EntryPoint) -> Factory:
    """Load a factory, and try what it makes with one consumer that joins and leaves."""
    try:
        factory: Factory = point.load()
        strategy = factory(1)
        strategy.join("trial")
        partitions = list(strategy.of("trial"))
        strategy.leave("trial")
        whole = partitions in ([], [0]) and isinstance(strategy.helps, bool) and isinstance(strategy.rotates, bool)
    except Exception as fault:  # code of another package may raise anything
        allowed = f"a strategy that can be loaded and tried ({type(fault).__name__}: {fault})"
        raise InvalidInput(f"entry point {GROUP}", f"{point.name} = {point.value}", allowed) from fault
    if not whole:
        allowed = "a strategy with `helps` and `rotates`, and with partitions from 0 on"
        raise InvalidInput(f"entry point {GROUP}", f"{point.name} = {point.value}", allowed)
    return factory
