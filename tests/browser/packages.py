"""Packages of npm that the tests of pages use, each installed once under `build/`."""

from __future__ import annotations

from pathlib import Path

from tests.environments import node_modules

STOMPJS = "@stomp/stompjs@7.5.0"
TYPESCRIPT = "typescript@5.9.3"


def stompjs() -> Path:
    """Return the folder of the package."""
    return node_modules(STOMPJS) / "@stomp" / "stompjs"


def tsc() -> Path:
    """Return the compiler of TypeScript, a script for node."""
    return node_modules(TYPESCRIPT) / "typescript" / "bin" / "tsc"
