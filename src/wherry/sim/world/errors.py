"""How a simulated run can go wrong by itself, and what code sees of a simulated death.

None of them is a `WherryError`: code under simulation must not take them for an answer of the broker.
"""

from __future__ import annotations


class SimError(RuntimeError):
    """The run itself is at fault, not the answer of anything that ran in it."""


class Deadlock(SimError):
    """Somebody waits, and nothing is left that could wake anybody."""


class Runaway(SimError):
    """The run went over its bound of steps or of virtual time."""


class NoThreads(SimError):
    """Code under simulation tried to use a thread."""


class Unhandled(SimError):
    """A task or a callback failed and nobody looked."""


class Killed(ConnectionError):
    """What a caller outside sees when the process dies before it answered: the outcome is unknown."""


class Crashed(OSError):
    """The process that had the disk open is dead; only code that outlived its own crash can see this."""


class BootRefused(SimError):
    """The broker did not start on what it had written itself: a finding, not a fault of the world."""
