"""A TCP proxy between Spark and the broker, that can drop all connections and let none in for a while."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

HOST = "127.0.0.1"
CHUNK = 1 << 16
RESET = struct.pack("ii", 1, 0)
"""Linger of 0 s: what was under way at a close is lost."""


class Proxy:
    """Listens on a port of its own, until it is closed."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed_until = 0.0
        self._left = 0
        self._then: Callable[[], None] | None = None
        self._listening = socket.create_server((HOST, 0))
        self.url = f"grpc://{HOST}:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def drop(self, pause_s: float = 0.0) -> None:
        """End all connections where they are; new ones too for a while."""
        with self._lock:
            self._closed_until = time.monotonic() + pause_s
            for each in self._open:
                _reset(each)

    def after(self, count: int, then: Callable[[], None]) -> None:
        """Do something when so many more bytes have passed, before the next are passed on."""
        with self._lock:
            self._left, self._then = count, then

    def forget(self) -> None:
        """Forget what was to be done."""
        with self._lock:
            self._then = None

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(one,), daemon=True).start()

    def _join(self, one: socket.socket) -> None:
        """Join two sockets, until one of them is at its end."""
        if time.monotonic() < self._closed_until:
            _reset(one)
            one.close()
            return
        try:
            other = socket.create_connection((HOST, self._target), 10)
        except OSError:
            _reset(one)
            one.close()
            return
        other.settimeout(None)
        for each in (one, other):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {one, other}
        back = threading.Thread(target=self._pump, args=(other, one), daemon=True)
        back.start()
        self._pump(one, other)
        back.join()
        with self._lock:
            self._open -= {one, other}
            one.close()
            other.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                self._count(len(data))
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _count(self, count: int) -> None:
        with self._lock:
            self._left -= count
            then = self._then if self._left <= 0 else None
            if then is not None:
                self._then = None
        if then is not None:
            then()


def _reset(one: socket.socket) -> None:
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        one.shutdown(socket.SHUT_RDWR)
