"""NATS without JetStream: in memory, at most once."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from bench.peers.peer import Peer


class Nats(Peer):
    """Subjects and subscribers, nothing stored."""

    name = "NATS core, nats-py"
    promise = "in memory"
    clients = ("nats",)

    @classmethod
    def is_installed(cls) -> bool:
        return cls.program() is not None and find_spec("nats") is not None

    @staticmethod
    def program() -> str | None:
        """Return where the server is: where pip puts programs, or on the path."""
        beside = Path(sys.executable).with_name("nats-server")
        return str(beside) if beside.exists() else shutil.which("nats-server")

    def settings(self) -> str:
        """Return more lines of its configuration."""
        return ""

    def start(self) -> None:
        conf = self.folder / "nats.conf"
        conf.write_text(f'listen: "127.0.0.1:{self.port}"\n{self.settings()}')
        self.run(self.program() or "nats-server", "-c", str(conf))
        self.wait_until(self.accepts)
