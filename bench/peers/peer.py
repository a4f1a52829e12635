"""One broker under test: a server process, and how its client produces and consumes."""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

SIZE = 256
_STAMP = struct.Struct("<q")
_FILL = bytes(range(256))[_STAMP.size :]

STOP_S = 20.0


def message() -> bytes:
    """A message of `SIZE` bytes that begins with the time, in nanoseconds of the steady clock that processes share."""
    return _STAMP.pack(time.monotonic_ns()) + _FILL


def age_ms(payload: bytes) -> float:
    """How old a message is."""
    return (time.monotonic_ns() - _STAMP.unpack_from(payload)[0]) / 1e6


def paced(count: int, rate: int | None) -> Iterator[None]:
    """So many steps, at most `rate` a second. Blocks: a producer that does nothing else may sleep."""
    start = time.monotonic()
    for number in range(count):
        if rate is not None:
            wait = start + number / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
        yield


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Peer:
    """A broker with its server. `produce` and `consume` run in processes of their own."""

    name: ClassVar[str] = ""
    promise: ClassVar[str] = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.server: subprocess.Popen[bytes] | None = None

    @staticmethod
    def is_installed() -> bool:
        """Whether server and client are here."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server; on return it serves."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.terminate()
            try:
                self.server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()

    def run(self, *command: str, **more: object) -> None:
        """Start the server process, its words in a file beside its data."""
        with (self.folder / "server.log").open("wb") as log:
            self.server = subprocess.Popen(command, stdout=log, stderr=log, **more)  # type: ignore[call-overload]

    def wait_until(self, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        """Until the server serves."""
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end or (self.server is not None and self.server.poll() is not None):
                raise RuntimeError(f"{self.name} did not start; see {self.folder / 'server.log'}")
            time.sleep(0.05)

    def accepts(self) -> bool:
        """Whether somebody listens on the port."""
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        """Publish so many messages, each confirmed."""
        raise NotImplementedError

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        """Receive and ack so many messages; their ages in milliseconds, of a bounded sample."""
        raise NotImplementedError
