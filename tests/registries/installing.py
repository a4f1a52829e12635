"""Installs the servers that the tests of registries run, where they are missing; starts and ends their processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import debian

BUILD = Path(__file__).parents[2] / "build" / "registries"

PATHS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
"""Where servers are: the search path of a user often lacks the folders of the administrator."""


def need(found: Callable[[], bool], packages: str) -> None:
    """Install packages of Debian unless what they bring is there; one test process at a time."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found():
            return
        if debian.may_install():
            debian.install(packages)
        if not found():
            pytest.fail(f"the tests of registries need: apt-get install {packages}", pytrace=False)


class Process:
    """A server process with a group of its own, so that what it starts ends with it."""

    def __init__(self, command: list[str], log: Path) -> None:
        with log.open("ab") as output:
            self._running = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        self.pid = self._running.pid

    def alive(self) -> bool:
        return self._running.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        self._running.send_signal(number)

    def kill(self) -> None:
        """End the process and what it started, at once."""
        os.killpg(self.pid, signal.SIGKILL)
        self._running.wait()
