"""A broker in a process of its own, with Flight, that a test may kill; and a topic's rows without Spark."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.ports import free_port
from wherry.spark.link import FlightLink

PATIENCE_S = 60


class Broker:
    """A node on a directory, that keeps its port over restarts."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.flags, self.port = folder, flags, free_port()
        self.url = f"grpc://127.0.0.1:{self.port}"
        self.http = ""
        self.process: subprocess.Popen[str] | None = None
        self.link = FlightLink(self.url, retry_s=20)

    def start(self) -> None:
        command = [sys.executable, "-m", "wherry", "serve", "--port", "0", "--data", str(self.folder / "data")]
        environment = {**os.environ, "WHERRY_FLIGHT_PORT": str(self.port)}
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, *self.flags], stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=self.folder
            )
        assert self.process.stdout is not None
        while "Ctrl-C" not in (line := self.process.stdout.readline()):
            assert line, (self.folder / "log").read_text()
            self.http = self.http or line.split()[3]

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        self.process.communicate(timeout=PATIENCE_S)

    def create(self, *, partitions: int = 1, name: str = "t", **fields: Any) -> str:
        """Create a topic with a name of its own, and return the name."""
        topic = f"{name}-{secrets.token_hex(4)}"
        self.link.action("create-topic", {"name": topic, "partitions": partitions, **fields})
        return topic

    def publish(self, topic: str, payloads: list[bytes], **columns: Any) -> None:
        batch = pa.record_batch({"payload": pa.array(payloads, pa.binary()), **columns})
        assert self.link.put({"topic": topic}, batch.schema, iter([batch])) == len(payloads)

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Return all rows that can be read from a topic."""
        found = []
        for ticket in self.link.parts({"topic": topic}):
            for batch in self.link.read(json.loads(ticket)):
                found += batch.to_pylist()
        return found

    def payloads(self, topic: str) -> list[bytes]:
        return [row["payload"] for row in self.rows(topic)]

    def subscriptions(self, topic: str) -> dict[str, dict[str, Any]]:
        """Return the broker's rows about the subscriptions of a topic."""
        found = list(self.link.once({"table": "subscriptions", "topic": topic}))
        return {row["name"]: row for batch in found for row in batch.to_pylist()}


@contextmanager
def broker(folder: Path, *flags: str) -> Iterator[Broker]:
    """Run a broker until the end of the `with`."""
    made = Broker(folder, *flags)
    made.start()
    try:
        yield made
    finally:
        made.end()
