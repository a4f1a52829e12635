"""The broker under test: a Wherry node as people run it, or the server that AMQP_URL (and AMQP_API_URL) names."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.frameworks.programs import PATIENCE_S, wait_until


@dataclass(frozen=True)
class Elsewhere:
    """A server that was started elsewhere, and its management API if it has one."""

    url: str
    http: str


class Node:
    """A node on a folder; it can be killed, and started again on the same ports."""

    def __init__(self, folder: Path, amqp_port: int = 0) -> None:
        self.folder, self.amqp_port = folder, amqp_port
        self.url = self.http = ""
        self.log = folder / "node.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Serve; on return clients may come."""
        before = self.log.stat().st_size if self.log.exists() else 0
        wherry = str(Path(sys.executable).with_name("wherry"))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [wherry, "serve", "--port", "0", "--data", str(self.folder / "data"), "--log-format", "json"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "WHERRY_AMQP_PORT": str(self.amqp_port), "WHERRY_FLIGHT_PORT": "0"},
            )
        running = self._process

        def serves() -> bool:
            printed = self.log.read_bytes()[before:].decode()
            assert running.poll() is None, printed
            found = re.search(r"amqp://127\.0\.0\.1:\d+", printed)
            page = re.search(r"http://127\.0\.0\.1:\d+", printed)
            self.url, self.http = (each[0] if each else "" for each in (found, page))
            return "Ctrl-C" in printed and bool(self.url)

        wait_until(serves, lambda: f"no AMQP after the start:\n{self.log.read_text()}")

    def kill(self) -> None:
        """Kill the node as a power cut would, without closing a connection."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_S)
            self._process = None
