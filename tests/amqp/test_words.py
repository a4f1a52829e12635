"""The errors of calls that cannot be done, word for word as RabbitMQ sends them: some clients look at the words."""

from __future__ import annotations

from secrets import token_hex

import pytest

from tests.amqp.raw import (
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    EXCHANGE_DECLARE,
    HEADER,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    START,
    Raw,
    long,
    short,
)
from tests.amqp.wires import AUTO_DELETE, DURABLE, EXCLUSIVE, PASSIVE, number, text

EXCHANGE_DELETE, EXCHANGE_BIND, EXCHANGE_UNBIND, QUEUE_UNBIND = (40, 20), (40, 30), (40, 40), (50, 50)

DEFAULT = (403, "ACCESS_REFUSED - operation not permitted on the default exchange")


def locked(name: str) -> tuple[int, str]:
    text = f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be "
    rest = "originally declared on another connection or the exclusive property value does not match that of the "
    return 405, text + rest + "original declaration."


@pytest.fixture
def raw(amqp_url):
    with Raw(amqp_url).opened() as made:
        yield made


def close_reason(raw: Raw) -> tuple[int, str]:
    """Return why the channel was closed, which is open again then."""
    found = raw.expect(CHANNEL_CLOSE)
    raw.call(1, CHANNEL_CLOSE_OK)
    raw.open_channel(1)
    return found.code, found.arguments[3 : 3 + found.arguments[2]].decode()


def declare(raw: Raw, name: str, flags: int, *arguments: bytes) -> None:
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short(name) + bytes([flags]) + long(b"".join(arguments)))


@pytest.mark.parametrize("greeting", [HEADER, b"AMQP\x01\x01\x00\x09"])
def test_clients_may_begin_as_the_version_before_did(amqp_url, greeting):
    with Raw(amqp_url) as raw:
        raw.send(greeting)
        assert raw.expect(START).arguments[:2] == b"\0\x09"


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (EXCHANGE_DECLARE, short("") + short("direct") + bytes([PASSIVE]) + long(b"")),
        (EXCHANGE_DECLARE, short("") + short("direct") + b"\0" + long(b"")),
        (EXCHANGE_DELETE, short("") + b"\0"),
        (EXCHANGE_BIND, short("") + short("amq.direct") + short("k") + b"\0" + long(b"")),
        (EXCHANGE_UNBIND, short("") + short("amq.direct") + short("k") + b"\0" + long(b"")),
        (EXCHANGE_UNBIND, short("amq.direct") + short("") + short("k") + b"\0" + long(b"")),
    ],
)
def test_the_default_exchange_cannot_be_changed(raw, call, arguments):
    raw.call(1, call, b"\0\0" + arguments)
    assert close_reason(raw) == DEFAULT


def test_exchanges_that_are_always_there_stay(raw):
    raw.call(1, EXCHANGE_DELETE, b"\0\0" + short("amq.direct") + b"\0")
    assert close_reason(raw) == (
        403,
        "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed",
    )


@pytest.mark.parametrize("more", [0, AUTO_DELETE])
@pytest.mark.parametrize(("first", "second"), [(EXCLUSIVE, 0), (0, EXCLUSIVE)], ids=["exclusive", "shared"])
def test_a_queue_does_not_become_exclusive_nor_cease_to_be(raw, first, second, more):
    """Ask for other changes too."""
    name = token_hex(8)
    declare(raw, name, first)
    raw.expect(QUEUE_DECLARE_OK)
    declare(raw, name, second | more, number("x-message-ttl", 9) if more else b"")
    assert close_reason(raw) == locked(name)
    raw.call(1, (50, 40), b"\0\0" + short(name) + b"\0")


@pytest.mark.parametrize("kinds", [("classic", ""), ("", "classic")], ids=["classic first", "nothing first"])
def test_a_queue_without_a_type_is_classic(raw, kinds):
    name = token_hex(8)
    for kind in kinds:
        declare(raw, name, EXCLUSIVE, text("x-queue-type", kind) if kind else b"")
        raw.expect(QUEUE_DECLARE_OK)


def test_a_queue_that_is_exclusive_to_another_connection_is_locked(raw, amqp_url):
    name = token_hex(8)
    declare(raw, name, EXCLUSIVE)
    raw.expect(QUEUE_DECLARE_OK)
    with Raw(amqp_url).opened() as other:
        for flags in (EXCLUSIVE, PASSIVE):
            declare(other, name, flags)
            assert close_reason(other) == locked(name)


@pytest.mark.parametrize(("first", "second"), [(EXCLUSIVE | DURABLE, EXCLUSIVE), (EXCLUSIVE, EXCLUSIVE | DURABLE)])
def test_a_queue_that_ends_with_its_connection_does_not_last_whatever_was_declared(raw, first, second):
    name = token_hex(8)
    for flags in (first, second):
        declare(raw, name, flags)
        raw.expect(QUEUE_DECLARE_OK)
