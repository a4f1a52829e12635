"""Connections that are closed come to an end, whatever the other side does."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.amqp.raw import CLOSE, CONSUME, Raw, long, short
from tests.amqp.wires import connection_of, durable, served, until
from wherry.wire.amqp import server as server_module

COUNT, SIZE = 300, 100_000
"""More than both ends of a socket hold."""


@pytest.mark.rows("Q12")
def test_who_closes_and_does_not_read_the_answer_is_cut_off(monkeypatch):
    monkeypatch.setattr(server_module, "PARTING_S", 0.5)
    monkeypatch.setattr(server_module, "WRITE_HIGH_BYTES", 2 * COUNT * SIZE)  # else it is cut off for not reading

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
