"""A broker with AMQP for all tests of a worker, and a driver for each foreign client.

`AMQP_URL=amqp://guest:guest@127.0.0.1:5672/ pytest tests/amqp` runs the same tests against another server: on
RabbitMQ they all pass, which is how we know that they are right.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.amqp.driving import ELSEWHERE, Driver

PATIENCE_S = 60


@contextmanager
def node(folder: Path, *flags: str) -> Iterator[str]:
    """Run a node with AMQP on a free port; yield the URL."""
    command = [sys.executable, "-m", "wherry", "serve", "--data", str(folder / "data"), "--port", "0"]
    command += ["--amqp-port", "0", "--log-format", "json", *flags]
    log = folder / "log"
    with (
        log.open("w") as written,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=written, text=True, cwd=folder, env=os.environ
        ) as process,
    ):
        assert process.stdout is not None
        while "Ctrl-C" not in (line := process.stdout.readline()):
            assert line, log.read_text()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        ready = next(line for line in lines if line["message"] == "ready")
        try:
            yield ready["amqp"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log.read_text()


@pytest.fixture(scope="session")
def amqp_url(tmp_path_factory) -> Iterator[str]:
    """Yield the URL to connect to."""
    if ELSEWHERE is not None:
        yield ELSEWHERE
    else:
        with node(tmp_path_factory.mktemp("amqp")) as url:
            yield url


@pytest.fixture(scope="session")
def drive(amqp_url, tmp_path_factory):
    """Run a scenario on a client."""
    logs = tmp_path_factory.mktemp("drivers")
    drivers: dict[str, Driver] = {}

    def run(client: str, scenario: str) -> None:
        if client not in drivers:
            drivers[client] = Driver(client, amqp_url, logs / client)
        drivers[client].run(scenario)

    yield run
    for driver in drivers.values():
        driver.end()
