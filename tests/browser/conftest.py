"""Pages in a real browser, and a node that can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browsers import browser, page_factory  # noqa: F401
from tests.ports import free_port


class NodeProcess:
    """A node as people run it; after a kill it starts again on the same port."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder, self._flags, self._port = folder, flags, free_port()
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> NodeProcess:
        command = [sys.executable, "-m", "wherry", "serve", "--data", str(self._folder / "data")]
        command += ["--port", str(self._port), "--log-format", "json", *self._flags]
        log = self._folder / "log"
        with log.open("w") as written:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=written, text=True, cwd=self._folder, env=os.environ
            )
        assert self._process.stdout is not None
        while "Ctrl-C" not in (line := self._process.stdout.readline()):
            assert line, log.read_text()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        self.url = next(line for line in lines if line["message"] == "ready")["url"]
        return self

    def kill(self) -> None:
        """Kill the node as by `kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture
def killable(tmp_path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path).start()
    yield node
    node.kill()
