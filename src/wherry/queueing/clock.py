"""The steady clock of queues: that of the event loop, which is a virtual one in the simulator."""

from __future__ import annotations

import asyncio


def now_s() -> float:
    """Return seconds of a clock that only moves forward."""
    return asyncio.get_running_loop().time()
