"""The Python client with tokens of a real provider: fetched, renewed before they expire, and asked for anew."""

from __future__ import annotations

import asyncio
import time

import pytest

import wherry
from tests.oidc.forged import Forger
from tests.oidc.nodes import taking_tokens
from tests.oidc.provider import SECRET, provider
from wherry.model.errors import Forbidden, Unauthorized, Unavailable

WITHIN_S = 60


@pytest.fixture(scope="module")
def home(tmp_path_factory, identity):
    with taking_tokens(tmp_path_factory.mktemp("node"), identity.issuer) as found:
        found.run(found.node.broker.create_topic("orders.new"))
        yield found


def source_of(identity, name: str, **more) -> wherry.ClientCredentials:
    return wherry.ClientCredentials(identity.issuer, name, SECRET, **more)


@pytest.mark.rows("P12")
@pytest.mark.parametrize("wire", ["native", "http"])
def test_a_client_gets_its_token_by_itself_and_once_for_all_calls(wire, home, identity):
    async def main() -> None:
        source = source_of(identity, "shop")
        async with wherry.connect(home.node.url, key=source, wire=wire) as client:
            await asyncio.gather(*(client.publish("orders.new", [b"one"]) for _ in range(20)))
            with pytest.raises(Forbidden, match="oidc:shop"):
                await client.delete_topic("orders.new")
        assert source.fetches == 1

    asyncio.run(main())


def test_a_client_without_an_event_loop_takes_a_source_too(home, identity):
    source = source_of(identity, "shop")
    with wherry.connect_sync(home.node.url, key=source) as client:
        client.publish("orders.new", [b"one"])
    with wherry.connect_sync(home.node.url, key=source) as client:
        client.publish("orders.new", [b"one"])
    assert source.fetches == 1


def test_a_native_connection_outlives_its_first_token(home, identity):
    async def main() -> None:
        source = source_of(identity, "brief")
        before = len(home.node.native_sessions.cut_offs)
        async with wherry.connect(home.node.url, key=source, wire="native") as client:
            await client.publish("orders.new", [b"one"])
            assert client.native is not None
            session = client.native.session
            ends_at = time.monotonic() + 10  # a token of this client lives for six seconds
            while time.monotonic() < ends_at:
                await client.publish("orders.new", [b"more"])
                await asyncio.sleep(0.2)
            assert client.native.session is session, "it is the same connection"
        assert source.fetches >= 2
        assert len(home.node.native_sessions.cut_offs) == before

    asyncio.run(main())


def test_a_client_over_http_renews_its_token(home, identity):
    async def main() -> None:
        source = source_of(identity, "brief")
        async with wherry.connect(home.node.url, key=source, wire="http") as client:
            ends_at = time.monotonic() + 8
            while time.monotonic() < ends_at:
                await client.publish("orders.new", [b"more"])
                await asyncio.sleep(0.2)
        assert source.fetches >= 2

    asyncio.run(main())


@pytest.mark.parametrize("wire", ["native", "http"])
def test_a_function_is_asked_at_each_connection_and_again_after_a_refusal(wire, home, identity):
    async def main() -> None:
        forger, asked = Forger(identity.issuer), []

        def token() -> str:
            asked.append(1)
            return "an-old-token" if len(asked) == 1 else forger.good()

        async with wherry.connect(home.node.url, key=token, wire=wire) as client:
            await client.publish("orders.new", [b"one"])
        assert len(asked) == 2

        async def never_good() -> str:
            return "no-token"

        async with wherry.connect(home.node.url, key=never_good, wire=wire) as client:
            with pytest.raises(Unauthorized):
                await client.publish("orders.new", [b"one"])

    asyncio.run(main())


def test_a_native_connection_keeps_its_name(home, identity):
    async def main() -> None:
        async with wherry.connect(home.node.url, key=identity.token("shop"), wire="native") as client:
            for key in (identity.token("boss"), "hello", Forger(identity.issuer).good(iss="https://evil.example")):
                with pytest.raises(Unauthorized):
                    await client._caller.json("PUT", "/v1/wire/key", dict, {"key": key})
            await client.publish("orders.new", [b"one"])

    asyncio.run(main())


def test_a_wrong_secret_is_refused_and_not_shown(identity):
    source = wherry.ClientCredentials(identity.issuer, "shop", "a wrong secret")
    assert "wrong" not in repr(source)
    with pytest.raises(Unauthorized) as caught:
        asyncio.run(source.token())
    assert "wrong secret" not in str(caught.value)


def test_a_token_that_is_good_is_given_out_while_the_provider_is_down(tmp_path):
    now = [0.0]

    async def main() -> None:
        with provider(tmp_path / "provider") as lost:
            source = source_of(lost, "shop", clock=lambda: now[0])
            first = await source.token()
            lost.stop()
            now[0] = 580.0  # of 600 seconds
            assert await source.token() == first
            now[0] = 600.0
            with pytest.raises(Unavailable, match="identity provider"):
                await source.token()
            lost.start()
            assert await source.token() != first

    asyncio.run(main())


def test_callers_share_one_request_and_one_that_gives_up_does_not_end_it(identity):
    async def main() -> None:
        source = source_of(identity, "shop")
        callers = [asyncio.create_task(source.token()) for _ in range(20)]
        await asyncio.sleep(0)
        callers[0].cancel()
        found = await asyncio.gather(*callers, return_exceptions=True)
        assert len(set(found[1:])) == 1
        assert source.fetches == 1

    asyncio.run(main())
