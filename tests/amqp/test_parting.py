"""Connections that are closed come to an end, whatever the other side does."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest

from tests.amqp.raw import CLOSE, CLOSE_OK, CONSUME, Raw, long, short
from tests.amqp.wires import connection_of, durable, served, until
from wherry.wire.amqp import server as server_module

COUNT, SIZE = 300, 100_000
"""More than both ends of a socket hold."""


@pytest.mark.rows("Q12")
def test_a_client_that_closes_and_does_not_read_the_answer_is_cut_off(monkeypatch):
    monkeypatch.setattr(server_module, "PARTING_S", 0.5)
    monkeypatch.setattr(server_module, "WRITE_HIGH_BYTES", 2 * COUNT * SIZE)  # else cut off for not reading

    def deaf(url: str) -> Raw:
        raw = Raw(url).opened()
        durable(raw, "q")
        for _ in range(COUNT):
            raw.publish("q", bytes(SIZE))
        raw.call(1, CONSUME, b"\0\0" + short("q") + short("") + b"\x02" + long(b""))  # without acks
        return raw

    async def main() -> None:
        async with served() as (server, url):
            raw = await asyncio.to_thread(deaf, url)
            with raw:
                transport = connection_of(server, raw)._transport
                await until(lambda: transport.get_write_buffer_size() > 0)
                raw.call(0, CLOSE, struct.pack(">H", 200) + short("") + struct.pack(">HH", 0, 0))
                await until(lambda: server.connections == 0)

    asyncio.run(main())


def test_a_client_that_still_sends_after_its_close_gets_the_answer():
    """Send more, as a client does whose buffers are full of publishes: a reset would take its answer from it."""

    def client(url: str) -> tuple[tuple[int, int], bytes]:
        with Raw(url).opened() as raw:
            raw.call(0, CLOSE, struct.pack(">H", 200) + short("") + struct.pack(">HH", 0, 0))
            for _ in range(20):
                for _ in range(100):
                    raw.publish("nowhere", bytes(1_000))
                time.sleep(0.01)
            return raw.next().method, raw.take(1)

    async def main() -> None:
        async with served() as (server, url):
            assert await asyncio.to_thread(client, url) == (CLOSE_OK, b"")
            await until(lambda: server.connections == 0)

    asyncio.run(main())


def test_a_client_that_was_answered_and_does_not_hang_up_is_cut_off(monkeypatch):
    monkeypatch.setattr(server_module, "PARTING_S", 0.5)

    async def main() -> None:
        async with served() as (server, url):
            with await asyncio.to_thread(lambda: Raw(url).opened()) as raw:
                raw.call(0, CLOSE, struct.pack(">H", 200) + short("") + struct.pack(">HH", 0, 0))
                await asyncio.to_thread(raw.expect, CLOSE_OK)
                await until(lambda: server.connections == 0)

    asyncio.run(main())


def test_a_client_that_is_reset_before_its_login_does_not_keep_others_from_the_close():
    async def main() -> None:
        async with served() as (server, url):
            with await asyncio.to_thread(lambda: Raw(url).opened()) as good:
                gone = Raw(url)
                await until(lambda: server.connections == 2)
                gone._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                gone.__exit__(None, None, None)  # a reset
                await server.close(1.0)
                assert (await asyncio.to_thread(good.expect, CLOSE)).code == 320

    asyncio.run(main())


@pytest.mark.parametrize("paused", [False, True])
def test_a_client_that_hangs_up_is_forgotten_whether_it_was_read_from_or_not(monkeypatch, paused):
    monkeypatch.setattr(server_module, "PARTING_S", 1_000.0)

    async def main() -> None:
        async with served() as (server, url):
            with await asyncio.to_thread(lambda: Raw(url).opened()) as raw:
                connection = connection_of(server, raw)
                if paused:
                    connection._pause()
                connection.hang_up()
                connection.hang_up()
                connection.write(b"nothing")  # is not written, and no fault
                assert await asyncio.to_thread(raw.take, 1) == b""
            await until(lambda: server.connections == 0)

    asyncio.run(main())
