"""The steady clock of queues: that of the event loop, which is a virtual one in the simulator."""

from __future__ import annotations

import asyncio


def now_s() -> float:
    """Return seconds that only go forward."""
    return asyncio.get_running_loop().time()
