"""A TCP proxy that counts the bytes which come back: what a broker really sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit


class Counter:
    """The bytes that the broker sent, and the address of the proxy."""

    def __init__(self, url: str) -> None:
        self.url, self.received = url, 0

    def since(self, before: int) -> int:
        return self.received - before


@contextmanager
def counted(url: str) -> Iterator[Counter]:
    """Run a proxy before a broker until the end of the `with`."""
    place = urlsplit(url)
    target = (place.hostname, place.port)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        counter = Counter(f"grpc://127.0.0.1:{listening.getsockname()[1]}")
        sockets: list[socket.socket] = []

        def forward(source: socket.socket, sink: socket.socket, *, counts: bool) -> None:
            try:
                while data := source.recv(1 << 16):
                    if counts:
                        counter.received += len(data)
                    sink.sendall(data)
            except OSError:
                pass
            finally:
                for each in (source, sink):
                    try:
                        each.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        continue

        def accept() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                server = socket.create_connection(target)
                sockets.extend((client, server))
                threading.Thread(target=forward, args=(client, server), kwargs={"counts": False}, daemon=True).start()
                threading.Thread(target=forward, args=(server, client), kwargs={"counts": True}, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield counter
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for each in sockets:
                each.close()
