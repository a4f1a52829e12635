"""A client that is closed has left: its connections are gone, with the last word that TLS asks for."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import wherry
from tests.integration.worlds import Node
from wherry.client.link import pool
from wherry.client.link.connection import Connection

CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"
TRUST = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
PAIR = (CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
TLS = ("--tls-certificate", str(PAIR[0]), "--tls-key", str(PAIR[1]))


@pytest.fixture
def counted(monkeypatch) -> dict[str, int]:
    """Count the connections that were made and lost."""
    seen = {"made": 0, "lost": 0}

    def count(method: str, name: str) -> None:
        original = getattr(Connection, method)

        def call(self: Connection, argument: object) -> None:
            original(self, argument)
            seen[name] += 1

        monkeypatch.setattr(Connection, method, call)

    count("connection_made", "made")
    count("connection_lost", "lost")
    return seen


def test_a_client_that_is_closed_has_left(tmp_path: Path, counted: dict[str, int]):
    async def main() -> None:
        async with Node(tmp_path / "home", *TLS) as node:
            client = wherry.connect(node.url, tls=TRUST, wire="http")
            await asyncio.gather(*(client.topics() for _ in range(5)))
            waiting = asyncio.create_task(client.topics())
            await asyncio.sleep(0)
            waiting.cancel()
            began = time.monotonic()
            await client.close()
            assert time.monotonic() - began < pool.GOODBYE_S / 2
            assert counted["made"] == counted["lost"] >= 5
            with pytest.raises(wherry.Unavailable):
                await client.topics()
            await client.close()  # twice is the same as once

    asyncio.run(main())


@contextmanager
def rude() -> Iterator[str]:
    """Run a server that answers one request over TLS, and then hangs without a close."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*PAIR)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            with context.wrap_socket(plain, server_side=True) as peer:
                peer.recv(4_096)
                peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"topics":[]}')
                done.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


def test_no_client_waits_for_ever_for_a_close(counted: dict[str, int], monkeypatch):
    monkeypatch.setattr(pool, "GOODBYE_S", 0.2)

    async def main() -> float:
        with rude() as url:
            client = wherry.connect(url, tls=TRUST, wire="http")
            assert await client.topics() == []
            began = time.monotonic()
            await client.close()
            assert counted == {"made": 1, "lost": 1}
            return time.monotonic() - began

    assert 0.2 <= asyncio.run(main()) < 5
