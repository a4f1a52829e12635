"""Long looks in slices: one slice at a time, whoever looks, and turns of the loop for everybody else before each.

A listing or a search takes as long as there are messages. Those who publish, pull and settle meanwhile wait for a slice
at most, and many who look share the slices in the order in which they asked.
"""

from __future__ import annotations

import asyncio

TURNS = 8
"""Of the loop before a slice: a call of somebody else needs some, to be read, written, confirmed and answered."""

SLICE_MESSAGES = 256
SLICE_BYTES = 512 << 10
"""What is loaded, searched or written in one slice: more than either only if it is one message."""


class Slices:
    """Those who look at much."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()

    async def turn(self) -> None:
        """Wait for the turn to do one slice, which is done before anything is awaited."""
        async with self._line:
            for _ in range(TURNS):
                await asyncio.sleep(0)
