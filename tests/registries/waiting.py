"""Waits for what a roster should become, without a look at the clock but for a generous deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wherry.mesh.registry import Registry

PATIENCE_S = 90


async def until(registry: Registry, reached: Callable[[], bool]) -> None:
    """Return once `reached` is true, which is looked at when the roster changes."""
    changed = asyncio.Event()
    stop = registry.roster.watch(lambda _: changed.set())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                await changed.wait()
                changed.clear()
    except TimeoutError:
        raise AssertionError(f"not reached: the roster has {dict(registry.roster.services)}") from None
    finally:
        stop()


async def until_urls(registry: Registry, expected: list[str], service: str = "billing") -> None:
    """Return once a service has these URLs."""
    await until(registry, lambda: urls(registry, service) == expected)


async def until_true(reached: Callable[[], bool]) -> None:
    """Return once `reached` is true, for what no event reports."""
    async with asyncio.timeout(PATIENCE_S):
        while not reached():  # noqa: ASYNC110  counts and processes report no event
            await asyncio.sleep(0.02)


def urls(registry: Registry, service: str = "billing") -> list[str]:
    """Return the URLs of the instances of a service."""
    return [each.url for each in registry.roster.of(service)]
