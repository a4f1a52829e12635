"""With keys: no client leads messages to or from where it has no right, and a refusal leaves nothing behind.

A binding needs `admin` on its destination and `consume` on the exchange it comes from, an alternate or dead-letter
exchange needs `publish` there.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from tests.amqp.raw import (
    EXCHANGE_BIND,
    EXCHANGE_BIND_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    PUBLISH,
    QUEUE_BIND,
    QUEUE_BIND_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import DURABLE, broker_of, declared, refused, served, text
from wherry.broker.broker import Broker
from wherry.model.catalog.key import Right
from wherry.security.keys import make

OWN = Right("admin", "mine*")
"""All that the member has; `theirs`, `news`, `vault` and what is built in are not its own."""


class Case(NamedTuple):
    """A call, its answer where it is allowed, and the one right that the member lacks for it."""

    method: tuple[int, int]
    arguments: bytes
    answer: tuple[int, int]
    missing: Right


def queue_bind(queue: str, exchange: str) -> bytes:
    return b"\0\0" + short(queue) + short(exchange) + short("") + b"\0" + long(b"")


def exchange_bind(to: str, source: str) -> bytes:
    return b"\0\0" + short(to) + short(source) + short("") + b"\0" + long(b"")


def exchange(name: str, *arguments: bytes) -> bytes:
    return b"\0\0" + short(name) + short("fanout") + bytes([DURABLE]) + long(b"".join(arguments))


def queue(name: str, *arguments: bytes) -> bytes:
    return b"\0\0" + short(name) + bytes([DURABLE]) + long(b"".join(arguments))


def dead_letters_to(name: str, key: str | None = None) -> bytes:
    where = text("x-dead-letter-exchange", name)
    return where if key is None else where + text("x-dead-letter-routing-key", key)


CASES = {
    "a queue to an exchange of others": Case(
        QUEUE_BIND, queue_bind("mine", "news"), QUEUE_BIND_OK, Right("consume", "news")
    ),
    "a queue to a built-in exchange": Case(
        QUEUE_BIND, queue_bind("mine", "amq.fanout"), QUEUE_BIND_OK, Right("consume", "amq.fanout")
    ),
    "a queue of others to an exchange": Case(
        QUEUE_BIND, queue_bind("theirs", "mine.in"), QUEUE_BIND_OK, Right("admin", "theirs")
    ),
    "an exchange to one of others": Case(
        EXCHANGE_BIND, exchange_bind("mine.in", "news"), EXCHANGE_BIND_OK, Right("consume", "news")
    ),
    "an exchange of others to one": Case(
        EXCHANGE_BIND, exchange_bind("vault", "mine.in"), EXCHANGE_BIND_OK, Right("admin", "vault")
    ),
    "an alternate exchange": Case(
        EXCHANGE_DECLARE,
        exchange("mine.out", text("alternate-exchange", "vault")),
        EXCHANGE_DECLARE_OK,
        Right("publish", "vault"),
    ),
    "an exchange": Case(EXCHANGE_DECLARE, exchange("other.out"), EXCHANGE_DECLARE_OK, Right("admin", "other.out")),
    "a dead-letter exchange": Case(
        QUEUE_DECLARE, queue("mine.dying", dead_letters_to("vault")), QUEUE_DECLARE_OK, Right("publish", "vault")
    ),
    "a dead-letter queue": Case(
        QUEUE_DECLARE, queue("mine.dying", dead_letters_to("", "theirs")), QUEUE_DECLARE_OK, Right("publish", "theirs")
    ),
    "dead letters by their own keys": Case(
        QUEUE_DECLARE, queue("mine.dying", dead_letters_to("")), QUEUE_DECLARE_OK, Right("publish", "*")
    ),
}


async def key_for(broker: Broker, name: str, *rights: Right) -> str:
    made = make(name, list(rights), now_ms=0)
    await broker.put_key(made.key)
    return made.token


def catalog(broker: Broker) -> tuple[object, object]:
    """Return all that a declaration or binding could change."""
    return list(broker.topics()), list(broker.routes())


def prepared(url: str) -> Raw:
    """Declare what belongs to each user, and return the administrator's connection."""
    admin = Raw(url).opened()
    for name in ("theirs", "mine"):
        declared(admin, name)
    for name in ("news", "vault", "mine.in"):
        admin.call(1, EXCHANGE_DECLARE, exchange(name))
        admin.expect(EXCHANGE_DECLARE_OK)
    return admin


@pytest.mark.rows("D27")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_call_without_the_right_is_refused_and_nothing_else_happens(case):
    async def main() -> None:
        async with served(keys=True) as (server, url):
            broker = broker_of(server)
            tokens = {
                "admin": await key_for(broker, "admin", Right("admin", "*")),
                "member": await key_for(broker, "member", OWN),
                "entitled": await key_for(broker, "entitled", OWN, case.missing),
            }

            def as_(name: str) -> str:
                return url.replace("guest:guest", f"{name}:{tokens[name]}")

            admin = await asyncio.to_thread(prepared, as_("admin"))
            before = catalog(broker)
            with admin:
                await asyncio.to_thread(is_refused, as_("member"), case, admin)
                assert catalog(broker) == before
                await asyncio.to_thread(is_answered, as_("entitled"), case)
                assert catalog(broker) != before

    asyncio.run(main())


def is_refused(url: str, case: Case, other: Raw) -> None:
    """Check that the channel ends: the connection stays open, and that of another client too."""
    with Raw(url).opened() as raw:
        raw.call(1, case.method, case.arguments)
        found = raw.next()
        assert refused(raw, lambda: found) == 403
        assert found.arguments[3:].startswith(b"ACCESS_REFUSED")
        raw.publish("mine", b"of the member")
        assert raw.got("mine")[1] == b"of the member"
        other.publish("theirs", b"of another")
        assert other.got("theirs")[1] == b"of another"


def is_answered(url: str, case: Case) -> None:
    with Raw(url).opened() as raw:
        raw.call(1, case.method, case.arguments)
        raw.expect(case.answer)


@pytest.mark.rows("D27")
def test_a_binding_that_was_refused_leads_nothing_anywhere():
    async def main() -> None:
        async with served(keys=True) as (server, url):
            broker = broker_of(server)
            root = await key_for(broker, "admin", Right("admin", "*"))
            member = await key_for(broker, "member", OWN)
            admin = await asyncio.to_thread(prepared, url.replace("guest:guest", f"admin:{root}"))

            def client() -> tuple[int, int]:
                with admin, Raw(url.replace("guest:guest", f"member:{member}")).opened() as raw:
                    raw.call(1, QUEUE_BIND, queue_bind("mine", "news"))
                    assert refused(raw, raw.next) == 403
                    admin.call(1, QUEUE_BIND, queue_bind("theirs", "news"))
                    admin.expect(QUEUE_BIND_OK)
                    admin.call(1, PUBLISH, b"\0\0" + short("news") + short("") + b"\0")
                    admin.content(1, 1)
                    admin.frame(3, 1, b"x")
                    return declared(admin, "theirs"), declared(raw, "mine")

            assert await asyncio.to_thread(client) == (1, 0)

    asyncio.run(main())
