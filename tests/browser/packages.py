"""Foreign clients over WebSocket and what judges our own, each installed once under `build/`."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.amqp.environments import BUILD, node

STOMPJS = "@stomp/stompjs@7.5.0"
TYPESCRIPT = "typescript@5.9.3"
STOMP_PY = ("stomp.py==9.0.0", "websocket-client==1.9.2")


def stompjs() -> Path:
    """The folder of the package."""
    return _npm("stompjs", STOMPJS) / "@stomp" / "stompjs"


def tsc() -> Path:
    """The compiler of TypeScript, a script for node."""
    return _npm("typescript", TYPESCRIPT) / "typescript" / "bin" / "tsc"


def _npm(name: str, pin: str) -> Path:
    """The folder that node finds a package in, with node and npm as the tests of AMQP bring them."""
    folder = BUILD / "npm" / name

    def make() -> None:
        npm = [str(Path(node()).with_name("npm")), "install", "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*npm, "--prefix", str(folder), pin], check=True)

    _once(folder, pin, make)
    return folder / "node_modules"


def stomp_py() -> str:
    """An interpreter that has stomp.py, with the package that its WebSockets need."""
    folder = BUILD / "venvs" / "stomp-py-websocket"
    python = str(folder / "bin" / "python")

    def make() -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet", "install"]
        subprocess.run([*pip, *STOMP_PY], check=True)

    _once(folder, " ".join(STOMP_PY), make)
    return python


def _once(folder: Path, pins: str, make: Callable[[], None]) -> None:
    """Several test processes may ask at the same time: one of them makes it, the others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "made"
        if stamp.exists() and stamp.read_text() == pins:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make()
        stamp.write_text(pins)
