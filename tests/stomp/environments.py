"""`stomp.py` in an environment of its own that is made once and kept under `build/`, as the clients of AMQP are."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

PINS = "stomp.py==8.2.0 docopt==0.6.2 websocket-client==1.9.0"

FOLDER = Path(__file__).parents[2] / "build" / "venvs" / "stomp.py"


def python_with_stomp() -> str:
    """The interpreter that has it. Several test processes may ask at once: one makes it, the others wait."""
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_name("stomp.py.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = FOLDER / "made"
        if not stamp.exists() or stamp.read_text() != PINS:
            shutil.rmtree(FOLDER, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
            pip = [str(FOLDER / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet"]
            subprocess.run([*pip, "install", *PINS.split()], check=True)
            stamp.write_text(PINS)
    return str(FOLDER / "bin" / "python")
