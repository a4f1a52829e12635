"""The sender that a message names, and which ways to log in are offered."""

from __future__ import annotations

import asyncio

import pytest

import wherry
from tests.amqp.raw import CHANNEL_CLOSE, CHANNEL_CLOSE_OK, CLOSE, Raw, long, short
from tests.amqp.wires import broker_of, counts, durable, served, until
from wherry.broker.broker import Broker
from wherry.model.catalog.key import Right
from wherry.queueing.login import Login
from wherry.security.access import Access
from wherry.security.keys import make

UPDATE_SECRET, UPDATE_SECRET_OK = (10, 70), (10, 71)


def signed(name: str) -> bytes:
    """Return the properties of a message that names its sender."""
    return b"\x00\x10" + short(name)


def is_refused(raw: Raw, name: str) -> bool:
    """Return whether a message with this sender ends the channel, which is open afterwards."""
    raw.publish("q", b"x", signed(name))
    raw.call(1, (50, 10), b"\0\0" + short("q") + b"\x03" + long(b""))
    found = raw.next()
    if found.method != CHANNEL_CLOSE:
        return False
    assert found.code == 406
    raw.call(1, CHANNEL_CLOSE_OK)
    raw.open_channel(1)
    return True


def as_user(url: str, name: str, secret: str) -> str:
    return url.replace("guest:guest", f"{name}:{secret}")


@pytest.mark.rows("D27")
def test_with_keys_the_sender_is_the_name_of_the_key():
    def client(url: str, tokens: dict[str, str]) -> list[bool]:
        with Raw(as_user(url, "somebody", tokens["ann"])).opened() as raw:
            durable(raw, "q")
            answers = [is_refused(raw, name) for name in ("ann", "somebody", "ben", "")]
            raw.call(0, UPDATE_SECRET, long(tokens["ann again"].encode()) + short("because"))
            raw.expect(UPDATE_SECRET_OK)
            answers += [is_refused(raw, name) for name in ("ann", "ben")]
            raw.call(0, UPDATE_SECRET, long(tokens["ben"].encode()) + short("because"))
            assert raw.expect(CLOSE).code == 403
            return answers

    async def main() -> None:
        async with served(keys=True) as (server, url):
            broker = broker_of(server)
            tokens = {name: await key_of(broker, name) for name in ("ann", "ben")}
            tokens["ann again"] = await key_of(broker, "ann")
            answers = await asyncio.to_thread(client, url, tokens)
            assert answers == [False, True, True, True, False, True]
            await until(lambda: counts(broker, "q")[0] == 2)

    asyncio.run(main())


async def key_of(broker: Broker, name: str) -> str:
    made = make(name, [Right("admin", "*")], now_ms=0)
    await broker.put_key(made.key)
    return made.token


def test_without_keys_the_sender_is_the_name_of_the_login():
    def client(url: str) -> list[bool]:
        with Raw(url).opened() as raw:
            durable(raw, "q")
            return [is_refused(raw, name) for name in ("guest", "ann")]

    async def main() -> None:
        async with served() as (_, url):
            assert await asyncio.to_thread(client, url) == [False, True]

    asyncio.run(main())


@pytest.mark.rows("D27")
@pytest.mark.parametrize(
    ("keys", "certified", "offered"),
    [(True, "ann", False), (True, None, False), (False, None, False), (False, "ann", True)],
)
def test_a_certificate_is_asked_for_where_it_is_a_way_to_log_in(keys, certified, offered):
    async def main() -> None:
        async with wherry.open() as broker:
            login = Login(Access(keys, broker), certified)
            assert login.mechanisms == ("PLAIN", "AMQPLAIN", *(("EXTERNAL",) if offered else ()))

    asyncio.run(main())
