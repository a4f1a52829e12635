"""One broker under test: a server process, and how its client produces and consumes."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, TypeVar

from bench.measuring import processor_s

SIZE = 256
_STAMP = struct.Struct("<q")
_FILL = bytes(range(256))[_STAMP.size :]

STOP_S = 20.0


def message(at_ns: int | None = None) -> bytes:
    """Return a message of `SIZE` bytes. It begins with a time of the steady clock: now, or when it will be due."""
    return _STAMP.pack(time.monotonic_ns() if at_ns is None else at_ns) + _FILL


def age_ms(payload: bytes) -> float:
    """Return how old a message is; how late, if it begins with the time at which it was due."""
    return (time.monotonic_ns() - _STAMP.unpack_from(payload)[0]) / 1e6


def paced(count: int, rate: int | None) -> Iterator[None]:
    """Make so many steps, at most `rate` a second. Blocks: a producer that does nothing else may sleep."""
    start = time.monotonic()
    for number in range(count):
        if rate is not None:
            wait = start + number / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
        yield


def free_port() -> int:
    """Return a port that no process has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Peer:
    """A broker with its server. `produce` and `consume` run in processes of their own."""

    name: ClassVar[str] = ""
    promise: ClassVar[str] = ""
    programs: ClassVar[tuple[str, ...]] = ()
    """What must be on the path."""
    clients: ClassVar[tuple[str, ...]] = ()
    """Python modules that its client processes import."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.server: subprocess.Popen[bytes] | None = None

    @classmethod
    def is_installed(cls) -> bool:
        """Return whether server and client are on this machine."""
        return all(map(shutil.which, cls.programs)) and all(map(find_spec, cls.clients))

    @property
    def reached_at(self) -> int:
        """Return the port that its client processes connect to."""
        return self.port

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

    def processor_s(self) -> float:
        """Return what the server has taken of the processor so far; nothing where there is no server."""
        return 0.0 if self.server is None else processor_s(self.server.pid)

    def run(self, *command: str, **more: object) -> None:
        """Start the server process, its words in a file beside its data."""
        with (self.folder / "server.log").open("wb") as log:
            self.server = subprocess.Popen(command, stdout=log, stderr=log, **more)  # type: ignore[call-overload]

    def wait_until(self, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until the server serves."""
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end or (self.server is not None and self.server.poll() is not None):
                raise RuntimeError(f"{self.name} did not start; see {self.folder / 'server.log'}")
            time.sleep(0.05)

    def accepts(self) -> bool:
        """Return whether a process listens on the port."""
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        """Publish so many messages, each confirmed."""
        raise NotImplementedError

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        """Receive and ack so many messages; return their ages in milliseconds."""
        raise NotImplementedError


P = TypeVar("P", bound=Peer)


@contextmanager
def served(kind: type[P], folder: Path) -> Iterator[P]:
    """Run the server of a peer on a new folder, which is removed at the end."""
    folder.mkdir()
    peer = kind(folder)
    try:
        peer.start()
        yield peer
    finally:
        peer.stop()
        shutil.rmtree(folder, ignore_errors=True)
