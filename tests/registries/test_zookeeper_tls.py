"""ZooKeeper over TLS, with a real server of Debian: who is trusted, by which name, and what an error says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.registries.waiting import until, until_true, urls
from tests.registries.zookeeper_server import ZooKeeper
from wherry.mesh.instance import Instance
from wherry.mesh.opening import open_registry
from wherry.mesh.zookeeper.registry import ZooKeeperRegistry
from wherry.mesh.zookeeper.tls import zookeeper_tls
from wherry.model.errors import InvalidInput, Unavailable

FILES = Path(__file__).parents[1] / "unit" / "security" / "certificates"
CA, CERTIFICATE, KEY = (str(FILES / name) for name in ("authority.pem", "second.pem", "second.key"))
ONE = Instance(service="billing", id="a", url="http://127.0.0.1:7080")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[ZooKeeper]:
    """Return a server whose clients must show a certificate."""
    server = ZooKeeper(tmp_path_factory.mktemp("guarded"), "need")
    server.start()
    yield server
    server.kill()


def opened(server: ZooKeeper, host: str = "127.0.0.1", **options: object) -> ZooKeeperRegistry:
    url = f"zks://{host}:{server.tls_port}/tls"
    registry = open_registry(url, **{"session_ms": 5_000, "start_ms": 90_000, **options})
    assert isinstance(registry, ZooKeeperRegistry)
    return registry


async def refused(registry: ZooKeeperRegistry) -> str:
    with pytest.raises(Unavailable) as caught:
        await registry.start()
    return str(caught.value)


@pytest.mark.rows("P11")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_instances_are_announced_and_followed_over_tls(host, guarded):
    async def main():
        pair = {"ca": CA, "certificate": CERTIFICATE, "key": KEY}
        one, other = opened(guarded, host, **pair), opened(guarded, host, tls=zookeeper_tls(**pair))
        try:
            await one.start()
            await other.start()
            await one.announce(ONE)
            await until(other, lambda: urls(other) == [ONE.url])
            # Many nodes: their answers come several in one record of TLS.
            for number in range(50):
                await one.announce(Instance(service="many", id=f"i{number}", url=f"http://127.0.0.1:{7100 + number}"))
            await until(other, lambda: len(other.roster.of("many")) == 50)
            await one.withdraw(ONE.service, ONE.id)
            await until(other, lambda: urls(other) == [])
        finally:
            await one.close()
            await other.close()

    asyncio.run(main())


@pytest.mark.rows("P11")
def test_a_session_over_tls_goes_on_after_the_server_was_restarted(tmp_path):
    async def main():
        server = ZooKeeper(tmp_path, "none")
        server.start()
        one, other = opened(server, ca=CA), opened(server, ca=CA)
        try:
            await one.start()
            await one.announce(ONE)
            await other.start()
            server.kill()
            await until_true(lambda: not other.reachable)
            await asyncio.to_thread(server.start)
            await until_true(lambda: one.reachable and other.reachable)
            await until(other, lambda: urls(other) == [ONE.url])
            await one.withdraw(ONE.service, ONE.id)
            await until(other, lambda: urls(other) == [])
        finally:
            await one.close()
            await other.close()
            server.kill()

    asyncio.run(main())


def test_a_server_of_an_authority_that_is_not_trusted_is_refused_and_the_error_gives_the_reason(guarded):
    async def main():
        # The authorities of the system do not know the one of the test.
        text = await refused(opened(guarded, certificate=CERTIFICATE, key=KEY, start_ms=3_000))
        assert "over TLS" in text and "certificate" in text
        text = await refused(opened(guarded, "127.0.0.2", ca=CA, certificate=CERTIFICATE, key=KEY, start_ms=3_000))
        assert "over TLS" not in text, "nothing listens there"

    asyncio.run(main())


def test_a_name_that_is_not_in_the_certificate_is_refused(guarded, monkeypatch):
    """A name server could lead a name to any address; the name of the URL is what counts."""
    import socket  # noqa: PLC0415  this test alone

    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more: real("127.0.0.1" if host == "zk.example" else host, *more)
    )

    async def main():
        pair = {"ca": CA, "certificate": CERTIFICATE, "key": KEY}
        text = await refused(opened(guarded, "zk.example", **pair, start_ms=3_000))
        assert "zk.example" in text and "mismatch" in text.lower()

    asyncio.run(main())


def test_a_client_without_a_certificate_is_refused_where_one_is_needed_and_one_in_plain_text_too(guarded):
    async def main():
        text = await refused(opened(guarded, ca=CA, start_ms=3_000))
        assert "cannot be reached" in text
        plain = open_registry(f"zk://127.0.0.1:{guarded.tls_port}", start_ms=3_000)
        with pytest.raises(Unavailable):
            await plain.start()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"ca": "/nowhere/ca.pem"}, "ca"),
        ({"ca": KEY}, "ca"),
        ({"certificate": "/nowhere/one.pem"}, "certificate"),
        ({"certificate": CERTIFICATE, "key": str(FILES / "first.key")}, "certificate"),
        ({"certificate": CERTIFICATE, "key": str(FILES / "encrypted.key")}, "certificate"),
        ({"key": KEY}, "key"),
        ({"tls": "yes"}, "tls"),
        ({"ca": CA, "tls": ssl.create_default_context()}, "tls"),
    ],
)
def test_files_that_cannot_be_used_are_refused_by_field_and_without_their_path(options, field):
    with pytest.raises(InvalidInput) as caught:
        open_registry("zks://127.0.0.1", **options)
    assert caught.value.field == field
    assert str(FILES) not in str(caught.value)


def test_the_files_of_tls_are_options_of_zks_alone():
    with pytest.raises(InvalidInput, match="one of session_ms, start_ms, auth"):
        open_registry("zk://127.0.0.1", ca=CA)
