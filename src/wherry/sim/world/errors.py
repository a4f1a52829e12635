"""Failures of a simulated run itself, and what code sees of a simulated death.

None of them is a `WherryError`: code under simulation must not take them for an answer of the broker.
"""

from __future__ import annotations


class SimError(RuntimeError):
    """The run itself failed, not a call in it."""


class Deadlock(SimError):
    """A task waits, and no callback or timer is left that could wake any task."""


class Runaway(SimError):
    """The run exceeded its bound of steps or of virtual time."""


class NoThreads(SimError):
    """Code under simulation tried to use a thread."""


class Unhandled(SimError):
    """A task or a callback failed, and its exception was not read."""


class Killed(ConnectionError):
    """The process died before it answered a caller outside of it: the result is unknown."""


class Crashed(OSError):
    """The process that had the disk open is dead; only code that continues after its own crash can get this."""


class BootRefused(SimError):
    """The broker did not start on the files that it wrote itself: a fault of the broker, not of the simulation."""
