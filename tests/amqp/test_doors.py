"""Who is let in, over TLS or not, and what they may do."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.amqp.raw import (
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CLOSE,
    GET,
    GET_EMPTY,
    OPEN,
    OPEN_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    TUNE,
    Raw,
    long,
    short,
)
from wherry.model.key import Right
from wherry.node.config import AmqpSection, Config, SecuritySection, ServerSection, StorageSection, TlsSection
from wherry.node.node import Node
from wherry.security.keys import make

CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"
TOLD = long(short("capabilities") + b"F" + long(short("authentication_failure_close") + b"t\x01"))


class Secure(Raw):
    """The same inside TLS."""

    def __init__(self, url: str, certificate: str | None = None) -> None:
        super().__init__(url.replace("amqps", "amqp"))
        context = ssl.create_default_context(cafile=str(CERTIFICATES / "authority.pem"))
        context.check_hostname = False
        if certificate is not None:
            context.load_cert_chain(CERTIFICATES / f"{certificate}.pem", CERTIFICATES / f"{certificate}.key")
        self._socket = context.wrap_socket(self._socket)


def served(tmp_path: Path, client: Callable[[Node], None], **sections: Any) -> None:
    """Run a client in a thread beside a node."""
    config = Config(server=ServerSection(port=0), storage=StorageSection(path=str(tmp_path / "data")), **sections)

    async def main() -> None:
        async with Node(config) as node:
            await prepared(node)
            await asyncio.to_thread(client, node)

    asyncio.run(main())


async def prepared(node: Node) -> None:
    if node.keys_on:
        await node.broker.create_topic("jobs")
        rights = {"writer": "publish", "reader": "consume"}
        for name, verb in rights.items():
            made = make(name, [Right(verb, "jobs")], now_ms=0)  # type: ignore[arg-type]
            await node.broker.put_key(made.key)
            TOKENS[name] = made.token
        assert node.first_key is not None
        TOKENS["admin"] = node.first_key.read_text().strip()


TOKENS: dict[str, str] = {}


def url(node: Node, name: str = "guest", secret: str = "guest") -> str:
    assert node.amqp_url is not None
    return node.amqp_url.replace("//", f"//{name}:{secret}@") + "/"


def declare(raw: Raw, name: str, flags: int = 2) -> Any:
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short(name) + bytes([flags]) + long(b""))
    return raw.next()


@pytest.mark.rows("Q13", "D30")
def test_it_speaks_tls_and_nothing_else_on_that_port(tmp_path):
    def client(node: Node) -> None:
        assert node.amqp_url is not None
        assert node.amqp_url.startswith("amqps://")
        with Secure(url(node)) as raw:
            raw.opened()
            name = raw.queue()
            raw.publish(name, b"secret")
            assert raw.got(name)[1] == b"secret"
        with Raw(url(node).replace("amqps", "amqp")) as plain:
            plain.send(b"AMQP\x00\x00\x09\x01")
            assert plain.is_hung_up()

    tls = TlsSection(certificate=str(CERTIFICATES / "first.pem"), key=str(CERTIFICATES / "first.key"))
    served(tmp_path, client, tls=tls)


@pytest.mark.rows("Q13")
def test_a_certificate_is_a_name(tmp_path):
    def client(node: Node) -> None:
        with Secure(url(node), "second") as raw:
            raw.begin()
            raw.start_ok("EXTERNAL", b"")
            raw.expect(TUNE)
        with Raw(url(node).replace("amqps", "amqp")) as plain:
            assert plain.address.port == node.amqp_port

    tls = TlsSection(
        certificate=str(CERTIFICATES / "first.pem"),
        key=str(CERTIFICATES / "first.key"),
        client_ca=str(CERTIFICATES / "authority.pem"),
    )
    served(tmp_path, client, tls=tls)


def test_without_a_certificate_external_is_refused(tmp_path):
    def client(node: Node) -> None:
        with Raw(url(node)) as raw:
            raw.begin()
            raw.start_ok("EXTERNAL", b"")
            assert raw.is_hung_up()

    served(tmp_path, client)


@pytest.mark.rows("D27")
def test_the_password_is_a_key_and_its_rights_hold(tmp_path):
    def client(node: Node) -> None:
        with Raw(url(node, "somebody", "wrong")) as raw:
            raw.begin()
            raw.start_ok("PLAIN", raw.plain())
            assert raw.is_hung_up()
        with Raw(url(node, "admin", TOKENS["admin"])) as admin:
            admin.opened()
            assert declare(admin, "jobs", 3).method == QUEUE_DECLARE_OK
            assert declare(admin, "other").method == QUEUE_DECLARE_OK
        with Raw(url(node, "writer", TOKENS["writer"])) as writer:
            writer.opened()
            writer.publish("jobs", b"x")
            assert refused(writer, lambda: declare(writer, "mine")) == 403
            writer.publish("other", b"x")
            assert refused(writer, writer.next) == 403
            writer.call(1, GET, b"\0\0" + short("jobs") + b"\x01")
            assert refused(writer, writer.next) == 403
        with Raw(url(node, "reader", TOKENS["reader"])) as reader:
            reader.opened()
            assert reader.got("jobs")[1] == b"x"
            reader.call(1, GET, b"\0\0" + short("jobs") + b"\x01")
            reader.expect(GET_EMPTY)
            reader.publish("jobs", b"x")
            assert refused(reader, reader.next) == 403

    served(tmp_path, client, security=SecuritySection(keys="on"))


def refused(raw: Raw, call: Callable[[], Any]) -> int:
    """The code of a channel's end; the channel is open again afterwards."""
    found = call()
    assert found.method == CHANNEL_CLOSE, found
    raw.call(1, CHANNEL_CLOSE_OK)
    raw.open_channel(1)
    code: int = found.code
    return code


@pytest.mark.rows("D27")
def test_a_connection_goes_with_its_key_and_stays_with_a_new_one(tmp_path):
    async def main() -> None:
        config = Config(
            server=ServerSection(port=0),
            storage=StorageSection(path=str(tmp_path / "data")),
            security=SecuritySection(keys="on"),
        )
        async with Node(config) as node:
            await prepared(node)
            opened = await asyncio.to_thread(lambda: Raw(url(node, "reader", TOKENS["reader"])).opened())
            renewed = await asyncio.to_thread(lambda: Raw(url(node, "reader", TOKENS["reader"])).opened())
            renewed.call(0, (10, 70), long(TOKENS["admin"].encode()) + short("because"))
            assert (await asyncio.to_thread(renewed.next)).method == (10, 71)
            (key,) = [each for each in node.broker.keys() if each.name == "reader"]  # noqa: SIM118  a method of the broker
            await node.broker.delete_key(key.id)
            assert await asyncio.to_thread(opened.is_hung_up)
            assert (await asyncio.to_thread(declare, renewed, "new")).method == QUEUE_DECLARE_OK
            for raw in (opened, renewed):
                raw.__exit__(None, None, None)

    asyncio.run(main())


def test_a_refused_login_is_told_to_who_can_hear_it(tmp_path):
    def client(node: Node) -> None:
        with Raw(url(node, "guest", "wrong")) as raw:
            raw.begin()
            raw.call(0, (10, 11), TOLD + short("PLAIN") + long(raw.plain()) + short("en_US"))
            assert raw.expect(CLOSE).code == 403

    served(tmp_path, client)


def test_virtual_hosts_are_apart(tmp_path):
    def client(node: Node) -> None:
        def opened(host: str) -> Raw:
            raw = Raw(url(node))
            raw.tuned()
            raw.call(0, OPEN, short(host) + short("") + b"\0")
            raw.expect(OPEN_OK)
            raw.open_channel(1)
            return raw

        with opened("/") as root, opened("staging") as staging:
            assert declare(root, "q").method == QUEUE_DECLARE_OK
            root.publish("q", b"of the root")
            assert refused(staging, lambda: declare(staging, "q", 3)) == 404
            assert declare(staging, "q").method == QUEUE_DECLARE_OK
            staging.publish("q", b"of staging")
            assert (root.got("q")[1], staging.got("q")[1]) == (b"of the root", b"of staging")
            names = [topic.name for topic in node.broker.topics()]
            assert names == ["@staging/q", "q"]

    served(tmp_path, client, amqp=AmqpSection(hosts=("/", "staging")))
