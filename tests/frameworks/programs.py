"""Programs that run in a framework's environment: workers that can be killed, and a caller that answers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any, Self

HERE = Path(__file__).parent
APPS = HERE / "apps"
PATIENCE_S = 45.0
"""How long anything may take on a busy machine before it counts as never."""


def wait_until(ready: Callable[[], object], otherwise: Callable[[], str] = str) -> None:
    """Wait until something is so; `otherwise` gives more of the error when it never is."""
    end = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < end, f"never in {PATIENCE_S:.0f} s. {otherwise()}"
        time.sleep(0.03)


class Program:
    """A process in a group of its own, with all that it prints in a file."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str], folder: Path = APPS) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(APPS), **environment},
                cwd=folder,
                start_new_session=True,
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def until_printed(self, words: str) -> Self:
        def it_does() -> bool:
            ended = self.process.poll() is not None
            found = words in self.output()
            assert found or not ended, f"it ended before it printed {words!r}:\n{self.output()}"
            return found

        wait_until(it_does, lambda: f"it did not print {words!r}:\n{self.output()}")
        return self

    def kill(self) -> None:
        """Kill all of its processes, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def wait(self) -> int:
        """Wait until it ends by itself; return how."""
        return self.process.wait(PATIENCE_S)

    def stop(self) -> None:
        """Ask it to end; what does not listen is killed."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Failed(Exception):
    """The program raised this; the last line is the error."""


class Caller:
    """A Python of the environment that runs what it is given, and answers with the value of the last line."""

    def __init__(self, python: Path, log: Path, environment: Mapping[str, str]) -> None:
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [str(python), str(HERE / "answering.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env={**os.environ, "PYTHONPATH": str(APPS), **environment},
                cwd=APPS,
            )

    def run(self, program: str) -> Any:
        """Run a program, and return the value of its last line, if that is an expression."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None and answers is not None
        asked.write(json.dumps(dedent(program)).encode() + b"\n")
        asked.flush()
        ready, _, _ = select.select([answers], [], [], PATIENCE_S)
        assert ready, f"no answer in {PATIENCE_S:.0f} s to:\n{program}"
        answer = json.loads(answers.readline())
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["value"]

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
