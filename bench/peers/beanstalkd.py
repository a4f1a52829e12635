"""beanstalkd with its log synced at every write (`-f0`), by a client of a few lines over a plain socket."""

from __future__ import annotations

import socket

from bench.peers.peer import SIZE, Peer, age_ms, message, paced

TUBE = b"bench"


class Beanstalkd(Peer):
    """put, reserve and delete, one after the other."""

    name = "beanstalkd"
    promise = "-f0: fsync at every write"
    programs = ("beanstalkd",)

    def start(self) -> None:
        data = self.folder / "data"
        data.mkdir()
        self.run("beanstalkd", "-l", "127.0.0.1", "-p", str(self.port), "-b", str(data), "-f0")
        self.wait_until(self.accepts)

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        with _Connection(port) as connection:
            connection.ask(b"use %s\r\n" % TUBE)
            for _ in paced(count, rate):
                answer = connection.ask(b"put 0 0 60 %d\r\n%s\r\n" % (SIZE, message()))
                assert answer.startswith(b"INSERTED"), answer

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        ages: list[float] = []
        with _Connection(port) as connection:
            connection.ask(b"watch %s\r\n" % TUBE)
            while len(ages) < count:
                _, job, size = connection.ask(b"reserve\r\n").split()
                ages.append(age_ms(connection.body(int(size))))
                assert connection.ask(b"delete %s\r\n" % job) == b"DELETED\r\n"
        return ages


class _Connection:
    """Sends a command and waits for its answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()

    def ask(self, command: bytes) -> bytes:
        self._socket.sendall(command)
        return self._answers.readline()

    def body(self, size: int) -> bytes:
        return self._answers.read(size + 2)[:size]
