"""Long listings in slices: one slice at a time for all listings, and turns of the loop for other calls before each.

A listing or a search takes longer the more messages there are. A publish, pull or settle meanwhile waits for one slice
at most, and several listings get their slices in the order in which they asked.
"""

from __future__ import annotations

import asyncio

TURNS = 8
"""Turns of the loop before a slice: another call needs several to be read, written, confirmed and answered."""

SLICE_MESSAGES = 256
SLICE_BYTES = 512 << 10
"""What is loaded, searched or written in one slice; a single message may be larger."""


class Slices:
    """The line of listings that wait for their next slice."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()

    async def turn(self) -> None:
        """Wait until the caller may do one slice; the caller does it before it awaits anything."""
        async with self._line:
            for _ in range(TURNS):
                await asyncio.sleep(0)
