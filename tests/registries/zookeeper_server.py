"""A real ZooKeeper on a loopback port, with a directory of its own, that a test kills and starts again."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Literal

from kazoo.client import KazooClient

from tests.environments import JAVA_OPTIONS
from tests.ports import free_port
from tests.registries.installing import Process, need

_JARS = Path("/usr/share/java")
_CLASSES = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java", "netty-all")
_NETTY = (
    "buffer",
    "codec",
    "common",
    "handler",
    "resolver",
    "transport",
    "transport-native-epoll",
    "transport-native-unix-common",
)
_CERTIFICATES = Path(__file__).parents[1] / "unit" / "security" / "certificates"

_CONFIGURATION = """
tickTime=500
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=srvr
forceSync=no
"""
"""Sessions last two to twenty ticks."""

PATIENCE_S = 90


def _installed() -> bool:
    return shutil.which("java") is not None and (_JARS / "zookeeper.jar").exists()


_TLS = """
secureClientPort={port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={folder}/server.pem
ssl.trustStore.location={authority}
ssl.clientAuth={clients}
"""


class ZooKeeper:
    """A server of one process; with `clients` it has a port for TLS too, where they need a certificate or none."""

    def __init__(self, folder: Path, clients: Literal["need", "none"] | None = None) -> None:
        need(_installed, "libzookeeper-java default-jre-headless")
        self._folder = folder
        self.port, self.tls_port = free_port(), free_port()
        self._clients = clients
        self._process: Process | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and return when it serves."""
        configuration = self._folder / "zoo.cfg"
        text = _CONFIGURATION.format(folder=self._folder, port=self.port)
        if self._clients is not None:
            parts = [(_CERTIFICATES / name).read_text() for name in ("first.key", "first.pem")]
            (self._folder / "server.pem").write_text("".join(parts))
            authority = _CERTIFICATES / "authority.pem"
            text += _TLS.format(folder=self._folder, port=self.tls_port, authority=authority, clients=self._clients)
        configuration.write_text(text)
        names = [*_CLASSES, *(f"netty-{each}" for each in _NETTY)]
        classes = ":".join(str(_JARS / f"{name}.jar") for name in names)
        options = [each for each in JAVA_OPTIONS.split() if "SharedArchive" not in each]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        self._process = Process(
            ["java", *options, "-Xmx128m", "-cp", classes, main, str(configuration)], self._folder / "log"
        )
        deadline = time.monotonic() + PATIENCE_S
        while not self._serves():
            assert self._process.alive() and time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        """End the server at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def wipe(self) -> None:
        """Remove all data of a server that was killed."""
        shutil.rmtree(self._folder / "data")

    def pause(self) -> None:
        """Let the server stand still."""
        assert self._process is not None
        self._process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a server go on that stood still."""
        assert self._process is not None
        self._process.signal(signal.SIGCONT)

    def client(self) -> KazooClient:
        """Return a client of our own, connected."""
        client = KazooClient(self.address)
        client.start(PATIENCE_S)
        return client

    def end_session(self, session: int, password: bytes) -> None:
        """End a session as its own process would, from another connection."""
        thief = KazooClient(self.address, client_id=(session, password))
        thief.start(PATIENCE_S)
        thief.stop()
        thief.close()

    def _serves(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.5) as asking:
                asking.sendall(b"srvr")
                answer = b"".join(iter(lambda: asking.recv(4_096), b""))
        except OSError:
            return False
        return b"Mode: standalone" in answer
