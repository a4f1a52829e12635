"""The other side of `clients/driver.py`: a process for each client, that is asked for one scenario after the other."""

from __future__ import annotations

import ast
import json
import os
import selectors
import subprocess
import sys
from pathlib import Path

import pytest

from tests.amqp.scenarios.everything import MODULES
from tests.amqp.scenarios.registry import names_for
from tests.environments import ROOT, node, node_modules, python_with

AMQPLIB = "amqplib@2.3.1"
PATIENCE_S = 40
"""For one scenario. Whatever hangs is ended with its process; the next scenario gets a new one."""

ELSEWHERE = os.environ.get("AMQP_URL")
"""Another server to run against, such as RabbitMQ."""


class Driver:
    """A client's process, started when it is first needed."""

    def __init__(self, client: str, url: str, log: Path) -> None:
        self._client, self._url, self._log = client, url, log
        self._process: subprocess.Popen[str] | None = None

    def run(self, scenario: str) -> None:
        """Fail as the scenario fails."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps({"run": scenario}), file=process.stdin, flush=True)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            answered = selector.select(PATIENCE_S)
        line = process.stdout.readline() if answered else ""
        if not line:
            self.end()
            why = "the driver ended" if answered else f"no answer in {PATIENCE_S} s"
            pytest.fail(f"{self._client}: {scenario}: {why}\n{self._log.read_text()[-4_000:]}", pytrace=False)
        failed = json.loads(line)["failed"]
        if failed is not None:
            pytest.fail(f"{self._client}: {scenario}\n{failed}", pytrace=False)

    def end(self) -> None:
        if self._process is not None:
            with self._process as process:  # closes the pipes
                process.kill()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            client = self._client
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            if client == "amqplib":
                environment |= {"NODE": node(), "NODE_PATH": str(node_modules(AMQPLIB))}
            python = sys.executable if client == "amqplib" else python_with(client)
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    [python, "-m", "tests.amqp.clients.driver", client, self._url],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=ROOT,
                    env=environment,
                )
        return self._process


def scenarios_of(client: str) -> list[str]:
    """Return the scenarios that all clients share, as far as this one can run them, and its own."""
    assert MODULES
    own = Path(__file__).with_name("clients") / f"{client.replace('-', '_')}_own.py"
    functions = [each for each in ast.parse(own.read_text()).body if isinstance(each, ast.FunctionDef)]
    marks = {each.name: ast.unparse(each.decorator_list[0]) for each in functions if each.decorator_list}
    everywhere = [name for name, mark in marks.items() if ELSEWHERE is None or "only_here" not in mark]
    return names_for(client, with_only_here=ELSEWHERE is None) + everywhere
