"""Which clients are let in, over TLS or not, and what they may do."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.amqp.raw import (
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
from tests.amqp.wires import PATIENCE_S, refused, url_of
from wherry.model.catalog.key import Right
from wherry.node import node as node_module
from wherry.node.config import AmqpSection, Config, SecuritySection, ServerSection, StorageSection, TlsSection
from wherry.node.node import Node
from wherry.security.keys import make
from wherry.security.tls import Tls

CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"
REPORTS_FAILURES = long(short("capabilities") + b"F" + long(short("authentication_failure_close") + b"t\x01"))


class Secure(Raw):
    """The same inside TLS."""

    def __init__(self, url: str, certificate: str | None = None) -> None:
        super().__init__(url.replace("amqps", "amqp"))
        context = ssl.create_default_context(cafile=str(CERTIFICATES / "authority.pem"))
        context.check_hostname = False
        if certificate is not None:
            context.load_cert_chain(CERTIFICATES / f"{certificate}.pem", CERTIFICATES / f"{certificate}.key")
        self._secure = self._socket = context.wrap_socket(self._socket)

    def name(self) -> str:
        """Return the common name in the certificate that the server has shown."""
        subject = (self._secure.getpeercert() or {})["subject"]
        return str(dict(pair for part in subject for pair in part)["commonName"])  # type: ignore[misc]


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


def declare(raw: Raw, name: str, flags: int = 2) -> Any:
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short(name) + bytes([flags]) + long(b""))
    return raw.next()


@pytest.mark.rows("Q13", "D30")
def test_the_tls_port_takes_tls_and_nothing_else(tmp_path):
    def client(node: Node) -> None:
        assert node.amqp_url is not None
        assert node.amqp_url.startswith("amqps://")
        with Secure(url_of(node)) as raw:
            raw.opened()
            name = raw.queue()
            raw.publish(name, b"secret")
            assert raw.got(name)[1] == b"secret"
        with Raw(url_of(node).replace("amqps", "amqp")) as plain:
            plain.send(b"AMQP\x00\x00\x09\x01")
            assert plain.is_hung_up()

    tls = TlsSection(certificate=str(CERTIFICATES / "first.pem"), key=str(CERTIFICATES / "first.key"))
    served(tmp_path, client, tls=tls)


def renewed(place: Path, name: str) -> None:
    """Put new files in the place of the old, as a renewal does it."""
    for kind in (".pem", ".key"):
        fresh = place.with_suffix(".new")
        shutil.copy(CERTIFICATES / f"{name}{kind}", fresh)
        fresh.replace(place.with_suffix(kind))


@pytest.mark.rows("Q13")
def test_a_new_certificate_is_shown_to_the_next_client_and_no_client_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(node_module, "Tls", partial(Tls, poll_s=0.05))
    place = tmp_path / "server"
    renewed(place, "first")

    def shown(node: Node) -> str:
        with Secure(url_of(node)) as raw:
            raw.opened()
            return raw.name()

    def client(node: Node) -> None:
        with Secure(url_of(node)) as before:
            before.opened()
            queue = before.queue()
            assert before.name() == "first"
            renewed(place, "second")
            ends = time.monotonic() + PATIENCE_S
            while (name := shown(node)) != "second":
                assert (name, time.monotonic() < ends) == ("first", True)
                time.sleep(0.05)
            before.publish(queue, b"still there")
            assert before.got(queue)[1] == b"still there"

    tls = TlsSection(certificate=str(place.with_suffix(".pem")), key=str(place.with_suffix(".key")))
    served(tmp_path, client, tls=tls)


@pytest.mark.rows("Q13")
def test_a_certificate_is_a_name(tmp_path):
    def client(node: Node) -> None:
        with Secure(url_of(node), "second") as raw:
            raw.begin()
            raw.start_ok("EXTERNAL", b"")
            raw.expect(TUNE)
        with Raw(url_of(node).replace("amqps", "amqp")) as plain:
            assert plain.address.port == node.amqp_port

    tls = TlsSection(
        certificate=str(CERTIFICATES / "first.pem"),
        key=str(CERTIFICATES / "first.key"),
        client_ca=str(CERTIFICATES / "authority.pem"),
    )
    served(tmp_path, client, tls=tls)


def test_without_a_certificate_external_is_refused(tmp_path):
    def client(node: Node) -> None:
        with Raw(url_of(node)) as raw:
            raw.begin()
            raw.start_ok("EXTERNAL", b"")
            assert raw.is_hung_up()

    served(tmp_path, client)


@pytest.mark.rows("D27")
def test_the_password_is_a_key_and_its_rights_hold(tmp_path):
    def client(node: Node) -> None:
        with Raw(url_of(node, "somebody", "wrong")) as raw:
            raw.begin()
            raw.start_ok("PLAIN", raw.plain())
            assert raw.is_hung_up()
        with Raw(url_of(node, "admin", TOKENS["admin"])) as admin:
            admin.opened()
            assert declare(admin, "jobs", 3).method == QUEUE_DECLARE_OK
            assert declare(admin, "other").method == QUEUE_DECLARE_OK
        with Raw(url_of(node, "writer", TOKENS["writer"])) as writer:
            writer.opened()
            writer.publish("jobs", b"x")
            assert refused(writer, lambda: declare(writer, "mine")) == 403
            writer.publish("other", b"x")
            assert refused(writer, writer.next) == 403
            writer.call(1, GET, b"\0\0" + short("jobs") + b"\x01")
            assert refused(writer, writer.next) == 403
        with Raw(url_of(node, "reader", TOKENS["reader"])) as reader:
            reader.opened()
            assert reader.got("jobs")[1] == b"x"
            reader.call(1, GET, b"\0\0" + short("jobs") + b"\x01")
            reader.expect(GET_EMPTY)
            reader.publish("jobs", b"x")
            assert refused(reader, reader.next) == 403

    served(tmp_path, client, security=SecuritySection(keys="on"))


@pytest.mark.rows("D27")
def test_a_connection_is_closed_with_its_key_and_stays_with_a_new_one(tmp_path):
    async def main() -> None:
        config = Config(
            server=ServerSection(port=0),
            storage=StorageSection(path=str(tmp_path / "data")),
            security=SecuritySection(keys="on"),
        )
        async with Node(config) as node:
            await prepared(node)
            opened = await asyncio.to_thread(lambda: Raw(url_of(node, "reader", TOKENS["reader"])).opened())
            renewed = await asyncio.to_thread(lambda: Raw(url_of(node, "reader", TOKENS["reader"])).opened())
            newer = make("reader", [Right("consume", "jobs"), Right("admin", "new")], now_ms=0)
            await node.broker.put_key(newer.key)
            renewed.call(0, (10, 70), long(newer.token.encode()) + short("because"))
            assert (await asyncio.to_thread(renewed.next)).method == (10, 71)
            (key,) = [
                each
                for each in node.broker.keys()  # noqa: SIM118  a method of the broker
                if each.name == "reader" and each.id != newer.key.id
            ]
            await node.broker.delete_key(key.id)
            assert await asyncio.to_thread(opened.is_hung_up)
            assert (await asyncio.to_thread(declare, renewed, "new")).method == QUEUE_DECLARE_OK
            for raw in (opened, renewed):
                raw.__exit__(None, None, None)

    asyncio.run(main())


def test_a_refused_login_is_reported_to_a_client_that_can_read_it(tmp_path):
    def client(node: Node) -> None:
        with Raw(url_of(node, "guest", "wrong")) as raw:
            raw.begin()
            raw.call(0, (10, 11), REPORTS_FAILURES + short("PLAIN") + long(raw.plain()) + short("en_US"))
            assert raw.expect(CLOSE).code == 403

    served(tmp_path, client)


def test_virtual_hosts_are_apart(tmp_path):
    def client(node: Node) -> None:
        def opened(host: str) -> Raw:
            raw = Raw(url_of(node))
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
