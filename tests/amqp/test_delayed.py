"""Messages that come later, and are called back by id before they do."""

from __future__ import annotations

import asyncio
import struct
import time

import pytest

from tests.amqp.raw import (
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    GET,
    GET_EMPTY,
    PUBLISH,
    QUEUE_BIND,
    QUEUE_BIND_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import broker_of, served
from wherry.model.errors import NotFound, NotWaiting

DELAY_MS = 2_000
"""Long enough for a slow machine to look twice before it is over."""


def prepared(url: str) -> Raw:
    """Declare a delayed exchange that leads to the queue `later`."""
    raw = Raw(url).opened()
    kind = long(short("x-delayed-type") + b"S" + long(b"direct"))
    raw.call(1, EXCHANGE_DECLARE, b"\0\0" + short("delays") + short("x-delayed-message") + b"\x02" + kind)
    raw.expect(EXCHANGE_DECLARE_OK)
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short("later") + b"\x02" + long(b""))
    raw.expect(QUEUE_DECLARE_OK)
    raw.call(1, QUEUE_BIND, b"\0\0" + short("later") + short("delays") + short("k") + b"\0" + long(b""))
    raw.expect(QUEUE_BIND_OK)
    for name in ("kept", "cancelled"):
        headers = long(short("x-delay") + b"I" + struct.pack(">i", DELAY_MS))
        properties = struct.pack(">H", 0x2000 | 0x1000 | 0x0080) + headers + b"\x02" + short(name)
        raw.call(1, PUBLISH, b"\0\0" + short("delays") + short("k") + b"\0")
        raw.content(1, len(name), properties)
        raw.frame(3, 1, name.encode())
    raw.call(1, GET, b"\0\0" + short("later") + b"\x01")
    raw.expect(GET_EMPTY)  # no message comes before its due time
    return raw


@pytest.mark.rows("A1", "A2", "Q12")
def test_a_delayed_message_is_not_early_and_can_be_cancelled_by_its_id():
    async def main() -> None:
        async with served() as (server, url):
            began = time.monotonic()
            raw = await asyncio.to_thread(prepared, url)
            broker = broker_of(server)
            assert (await broker.scheduled("later", "amqp")).column("id").to_pylist() == ["kept", "cancelled"]
            await broker.cancel("later", "cancelled")
            body = (await asyncio.to_thread(raw.got, "later"))[1]
            assert (body, time.monotonic() - began >= DELAY_MS / 1000) == (b"kept", True)
            with pytest.raises((NotWaiting, NotFound)):
                await broker.cancel("later", "kept")
            await asyncio.sleep(0.1)
            assert (await asyncio.to_thread(is_empty, raw)) is True
            raw.__exit__(None, None, None)

    asyncio.run(main())


def is_empty(raw: Raw) -> bool:
    raw.call(1, GET, b"\0\0" + short("later") + b"\x01")
    return raw.next().method == GET_EMPTY
