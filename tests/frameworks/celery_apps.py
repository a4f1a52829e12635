"""A Celery application as a test sees it: the side that calls, and the workers."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any, Self

from tests.environments import programs
from tests.frameworks.programs import APPS, PATIENCE_S, Caller, Program
from tests.ports import free_port

QUICK = ("--without-mingle", "--without-gossip")
"""A worker that does not look for others first is there a second earlier."""

NAMES = """
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from celery import chain, chord, group
from celery_tasks import *
"""
"""What one would import at a prompt."""


class CeleryApp:
    """The application of `apps/celery_tasks.py` with a queue of its own, and the settings that a test wants."""

    def __init__(self, url: str, folder: Path, **settings: Any) -> None:
        self.queue = f"celery-{secrets.token_hex(4)}"
        self.folder = folder
        self._bin = programs("celery")
        self._settings = {"task_default_queue": self.queue, **settings}
        self._url = url
        self._caller: Caller | None = None
        self._workers: list[Program] = []

    @property
    def environment(self) -> dict[str, str]:
        return {"AMQP_URL": self._url, "SETTINGS": json.dumps(self._settings), "FOLDER": str(self.folder)}

    def set(self, **settings: Any) -> Self:
        """Change the settings of callers and workers that start from now on."""
        self._settings.update(settings)
        return self

    def worker(self, *flags: str) -> Program:
        """Start a worker, ready on return; without other flags it runs one task at a time in its only process."""
        number = len(self._workers)
        name = f"{self.queue}-{number}@here"
        command = [str(self._bin / "celery"), "--app", "celery_tasks", "worker", "--loglevel", "INFO"]
        mine = ["--hostname", name, *(flags or ("--pool", "solo", *QUICK))]
        made = Program([*command, *mine], self.folder / f"worker-{number}.log", self.environment)
        self._workers.append(made)
        return made.until_printed(f"{name} ready")

    def command(self, *words: str) -> str:
        """Return what a command of Celery's prints; it must succeed."""
        done = subprocess.run(
            [str(self._bin / "celery"), "--app", "celery_tasks", *words],
            cwd=APPS,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def flower(self, api: str) -> tuple[Program, str]:
        """Start Flower with the management API of the broker; return it, and where it serves."""
        port = free_port()
        words = ["flower", "--address=127.0.0.1", f"--port={port}", f"--broker-api={api}"]
        command = [str(self._bin / "celery"), "--app", "celery_tasks", *words]
        log = self.folder / "flower.log"
        made = Program(command, log, {**self.environment, "FLOWER_UNAUTHENTICATED_API": "true"})
        self._workers.append(made)
        return made.until_printed("Visit me at"), f"http://127.0.0.1:{port}"

    def run(self, program: str) -> Any:
        """Run something beside the application; the value of the last line."""
        if self._caller is None:
            self._caller = Caller(self._bin / "python", self.folder / "caller.log", self.environment)
            self._caller.run(NAMES)
        return self._caller.run(program)

    def notes(self) -> list[str]:
        """Return what tasks noted, in order."""
        file = self.folder / "notes"
        return file.read_text().splitlines() if file.exists() else []

    def allow(self, *names: str) -> None:
        """Let tasks go on that wait for this."""
        for name in names:
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
