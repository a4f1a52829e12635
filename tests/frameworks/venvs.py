"""A virtual environment for each framework, made once under `build/venvs` and kept until what is pinned changes."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VENVS = ROOT / "build" / "venvs"

PINNED = {
    "celery": ["celery==5.7.0", "kombu==5.7.0", "amqp==5.4.2", "flower==2.2.0", "pyrabbit==1.1.0"],
    "dramatiq": ["dramatiq[rabbitmq]==2.2.1", "pika==1.4.4"],
    "faststream": ["faststream[rabbit,cli]==0.7.8", "aio-pika==10.2.1", "aiormq==7.2.4"],
}
"""The framework, and the client library that speaks for it."""


def programs(name: str) -> Path:
    """The `bin` of a framework's environment; several test processes may ask at the same time."""
    home = VENVS / name
    wanted = "\n".join(PINNED[name])
    VENVS.mkdir(parents=True, exist_ok=True)
    with (VENVS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = home / ".made"
        if not stamp.exists() or stamp.read_text() != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
            install = ["-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet", "install"]
            subprocess.run([str(home / "bin" / "python"), *install, *PINNED[name]], check=True)
            stamp.write_text(wanted)
    return home / "bin"
