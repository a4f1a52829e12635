"""Installs packages of Debian that tests need: one test process at a time, since apt-get refuses a second one."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

LOCK = Path(__file__).parents[1] / "build" / "debian.lock"

WAIT_S = 600
"""How long apt-get waits for another program of the machine that installs."""


def may_install() -> bool:
    """Return whether this process can install packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: str) -> str:
    """Install packages, names with blanks between; return what apt-get wrote last. Callers look for what they need."""
    # RUNLEVEL keeps packages from starting servers of their own.
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    command = ["apt-get", "--quiet", "-o", f"DPkg::Lock::Timeout={WAIT_S}"]
    written = ""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for step in (["update"], ["install", "--yes", "--no-install-recommends", *packages.split()]):
            done = subprocess.run([*command, *step], env=quiet, capture_output=True, text=True, check=False)
            written = f"{done.stdout[-2_000:]}{done.stderr}"
    return written
