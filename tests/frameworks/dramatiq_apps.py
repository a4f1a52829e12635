"""A Dramatiq application as a test sees it: the side that sends, and the workers."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any, Self

from tests.environments import programs
from tests.frameworks.programs import Caller, Program


class DramatiqApp:
    """The actors of `apps/dramatiq_actors.py` with a queue of their own, and the settings that a test wants."""

    def __init__(self, url: str, folder: Path) -> None:
        self.queue = f"dramatiq-{secrets.token_hex(4)}"
        self.folder = folder
        self._bin = programs("dramatiq")
        self._settings: dict[str, Any] = {}
        self._url = url
        self._caller: Caller | None = None
        self._workers: list[Program] = []

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AMQP_URL": self._url,
            "SETTINGS": json.dumps(self._settings),
            "FOLDER": str(self.folder),
            "QUEUE": self.queue,
        }

    def set(self, **settings: Any) -> Self:
        """Change the settings of senders and workers that start from now on."""
        self._settings.update(settings)
        return self

    def worker(self, threads: int = 2, prefetch: int = 0) -> Program:
        """Start a worker, and wait until it is ready; it fetches twice as much as it has threads by default."""
        log = self.folder / f"worker-{len(self._workers)}.log"
        command = [str(self._bin / "dramatiq"), "dramatiq_actors", "--processes", "1", "--threads", str(threads)]
        fetched = {"dramatiq_queue_prefetch": str(prefetch), "dramatiq_delay_queue_prefetch": "0"}
        made = Program(command, log, {**self.environment, **fetched})
        self._workers.append(made)
        return made.until_printed("Worker process is ready for action")

    def run(self, program: str) -> Any:
        """Run something beside the actors; the value of the last line."""
        if self._caller is None:
            self._caller = Caller(self._bin / "python", self.folder / "caller.log", self.environment)
            self._caller.run("import time; from dramatiq import group, pipeline; from dramatiq_actors import *")
        return self._caller.run(program)

    def counts(self) -> list[int]:
        """Return how many messages are in the queue, in the one of the delayed and in the one of the dead."""
        return list(self.run("broker.get_queue_message_counts(QUEUE)"))

    def notes(self) -> list[str]:
        """Return what actors noted, in order."""
        file = self.folder / "notes"
        return file.read_text().splitlines() if file.exists() else []

    def allow(self, name: str) -> None:
        """Let actors go on that wait for this."""
        (self.folder / f"may-{name}").touch()

    def close(self) -> None:
        if self._caller is not None:
            self._caller.close()
        for worker in self._workers:
            worker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
