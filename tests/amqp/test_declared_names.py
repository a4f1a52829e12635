"""Names in the arguments of a declare are names: what could never be one is refused when it is declared."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.amqp.raw import (
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import DURABLE, served

LONGEST = "é" * 127 + "x"
"""255 bytes."""


def entry(name: str, value: bytes) -> bytes:
    return short(name) + b"S" + long(value)


def declare_queue(raw: Raw, *arguments: bytes) -> Any:
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short("q") + bytes([DURABLE]) + long(b"".join(arguments)))
    return raw.next()


def declare_exchange(raw: Raw, *arguments: bytes) -> Any:
    table = long(b"".join(arguments))
    raw.call(1, EXCHANGE_DECLARE, b"\0\0" + short("x") + short("direct") + bytes([DURABLE]) + table)
    return raw.next()


CASES = {
    "x-dead-letter-exchange": (declare_queue, ()),
    "x-dead-letter-routing-key": (declare_queue, (entry("x-dead-letter-exchange", b""),)),
    "alternate-exchange": (declare_exchange, ()),
}


@pytest.mark.parametrize("value", [LONGEST.encode() + b"x", b"\xff\xfe"], ids=["too long", "no text"])
@pytest.mark.parametrize("argument", CASES)
def test_what_can_be_no_name_is_refused(argument, value):
    declare, others = CASES[argument]

    def client(url: str) -> tuple[int, Any]:
        with Raw(url).opened() as raw:
            found = declare(raw, *others, entry(argument, value))
            assert found.method == CHANNEL_CLOSE, found
            raw.call(1, CHANNEL_CLOSE_OK)
            raw.open_channel(1)
            return found.code, declare(raw, *others, entry(argument, LONGEST.encode())).method

    async def main() -> None:
        async with served() as (_, url):
            allowed = QUEUE_DECLARE_OK if declare is declare_queue else EXCHANGE_DECLARE_OK
            assert await asyncio.to_thread(client, url) == (406, allowed)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("declare", "first", "then", "argument"),
    [
        (
            declare_exchange,
            [],
            [entry("alternate-exchange", b"y")],
            "'alternate-exchange' for exchange 'x' in vhost '/'",
        ),
        (
            declare_queue,
            [],
            [entry("x-dead-letter-exchange", b"y")],
            "'x-dead-letter-exchange' for queue 'q' in vhost '/'",
        ),
    ],
)
def test_a_queue_and_an_exchange_declared_differently_get_the_same_error(declare, first, then, argument):
    def client(url: str) -> str:
        with Raw(url).opened() as raw:
            declare(raw, *first)
            found = declare(raw, *then)
            assert found.code == 406
            return found.arguments[3 : 3 + found.arguments[2]].decode()

    async def main() -> None:
        async with served() as (_, url):
            text = await asyncio.to_thread(client, url)
            assert text == f"PRECONDITION_FAILED - inequivalent arg {argument}: received 'y' but current is none"

    asyncio.run(main())
