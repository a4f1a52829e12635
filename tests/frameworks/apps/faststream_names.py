"""What programs of the tests use: a broker, a name of their own, and a place for what handlers saw."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from faststream.rabbit import RabbitBroker

name = os.environ["NAME"]
url = os.environ["AMQP_URL"]
broker = RabbitBroker(url)
seen: list[object] = []
"""What handlers saw, in the order in which they did."""


async def until(ready: Callable[[], object]) -> None:
    """Wait until something is so, with the handlers at work meanwhile."""
    async with asyncio.timeout(30):
        while not ready():  # noqa: ASYNC110  a list has no event
            await asyncio.sleep(0.02)
