"""What a run needs: a broker, a proxy before it, a driver of Spark, and a cluster if it is to run on one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.spark.brokers import Broker
from tests.spark.soak.plan import KINDS, ON_A_CLUSTER
from tests.spark.soak.proxy import Proxy
from wherry.spark.pipelines.cluster import Cluster, cluster

ROOT = Path(__file__).parents[3]
LOCAL = "local[2,2]"
"""Two cores; a task is tried twice."""
READY_S = 120
END_S = 30
EXECUTOR = "CoarseGrainedExecutorBackend"


class DriverGone(Exception):
    """The driver ended, or did not answer in time and was ended."""


class Driver:
    """A driver in a process group of its own. The workers of its Python are in another: they outlive it a little."""

    def __init__(self, master: str, log: Path) -> None:
        with log.open("a") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.soak.driver", master],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        self.late = self._closed = False
        try:
            self._read(READY_S)
        except DriverGone:
            raise AssertionError(log.read_text()[-3_000:]) from None

    def ask(self, name: str, job: dict[str, Any], patience_s: float) -> Any:
        """Send a command and return its answer; raise `DriverGone` if there is none."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([name, job]) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise DriverGone(name) from None
        return self._read(patience_s)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the driver in order, and kill it if that takes too long."""
        if self._closed:
            return
        self._closed = True
        timer = threading.Timer(END_S, self.kill)
        timer.start()
        with suppress(OSError):
            self._process.communicate()
        timer.cancel()
        self.kill()  # kill Java, if that is still there

    def _read(self, patience_s: float) -> Any:
        assert self._process.stdout is not None
        timer = threading.Timer(patience_s, self._give_up)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise DriverGone
        return json.loads(line)

    def _give_up(self) -> None:
        self.late = True
        self.kill()


class Rig:
    """All of it."""

    def __init__(self, folder: Path, master: str, made: Cluster | None) -> None:
        self.folder, self.master, self._cluster = folder, master, made
        self.kinds = KINDS if made is None else ON_A_CLUSTER
        (folder / "broker").mkdir()
        self.broker = Broker(folder / "broker")
        self.broker.start()
        self.proxy = Proxy(self.broker.port)
        self.driver = self._driver()

    def renew(self) -> None:
        """Start another driver, in place of one that is gone."""
        self.driver.close()
        self.driver = self._driver()

    def kill_executor(self, which: int) -> None:
        """Kill one of the executors that are there."""
        assert self._cluster is not None
        groups = {each.pid for each in self._cluster.processes}
        found = sorted(_executors(groups))
        if found:
            with suppress(ProcessLookupError):
                os.kill(found[which % len(found)], signal.SIGKILL)

    def close(self) -> None:
        self.driver.close()
        self.proxy.close()
        self.broker.end()

    def _driver(self) -> Driver:
        return Driver(self.master, self.folder / "driver.log")


def _executors(groups: set[int]) -> Iterator[int]:
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with suppress(OSError):
                if os.getpgid(int(place.name)) in groups and EXECUTOR in (place / "cmdline").read_text():
                    yield int(place.name)


@contextmanager
def rig(folder: Path, master: str = LOCAL) -> Iterator[Rig]:
    """Start all of it until the end of the `with`; `cluster` as the master starts one, with two workers."""
    if master == "cluster":
        with cluster(2, folder=folder / "cluster") as made, _rig(folder, made.url, made) as there:
            yield there
    else:
        with _rig(folder, master, None) as there:
            yield there


@contextmanager
def _rig(folder: Path, master: str, made: Cluster | None) -> Iterator[Rig]:
    there = Rig(folder, master, made)
    try:
        yield there
    finally:
        there.close()
