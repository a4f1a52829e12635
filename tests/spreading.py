"""How tests are spread over the workers of pytest-xdist: by file, slow ones first, and one Spark for all that share it.

A file is the unit, because its tests share a node, a browser or a driver that would else be started by every worker.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

FIRST = ("spark", "frameworks", "integration", "c", "browser", "console", "amqp", "stomp", "sim", "property")
"""Folders in the order in which they begin; all others follow, with short tests, so that workers end together."""

ALONE = ("tests/sim/", "tests/property/test_core.py")
"""Tests that share nothing: each is a unit."""

OWN_SPARK = ("cluster", "connect", "demo", "doors", "faults", "soak", "stream_reader")
"""Files under `tests/spark` that start a Spark of their own, or none: one unit. The others are one unit too, since they
share the Spark of their worker. So there are never more than two at a time, each of which could use all cores."""

_OWN_FILES = tuple(f"tests/spark/test_{name}.py" for name in OWN_SPARK)


def unit_of(nodeid: str) -> str:
    """Return the name of the unit that a test is in."""
    path = nodeid.partition("::")[0]
    if path.startswith(ALONE):
        return nodeid
    if path.startswith("tests/spark/"):
        return "Spark of their own" if path in _OWN_FILES else "one Spark for all"
    return path


def slow_first(items: list[pytest.Item]) -> None:
    """Sort tests by their folders."""
    ranks = {folder: rank for rank, folder in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.split("/")[1], len(ranks)))


class Units(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Hands out whole units, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
