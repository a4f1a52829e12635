"""Access tokens where they are asked for: what is kept, when keys are fetched, and what a lost provider means."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter

import pytest

from tests.oidc.forged import FORGERIES, SECRET_MARK, Forger
from tests.oidc.signing import jwk, private_key
from wherry.model.catalog.key import Right
from wherry.model.errors import Unauthorized
from wherry.security.oidc.access_tokens import NOT_ACCEPTED, UNREACHABLE, AccessTokens
from wherry.security.oidc.fetch import Fetched, FetchFailed
from wherry.security.oidc.provider import IdentityProvider
from wherry.security.oidc.rules import Rules
from wherry.security.oidc.verifying import Expectations

ISSUER = "https://id.example/realms/shop"
START_S = 1_000_000.0


class World:
    """A provider's documents, and clocks that stand still until a test moves them."""

    def __init__(self, *keys: str) -> None:
        self.now = START_S
        self.keys = list(keys)
        self.is_down = False
        self.asked: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()
        self.provider = IdentityProvider(
            ISSUER, keys_kept_s=600, refetch_s=10, get=self._get, clock=lambda: self.now - START_S
        )
        expected = Expectations(issuer=ISSUER, audiences=("wherry",), leeway_s=0)
        rules = Rules(["realm:clerk -> publish:orders.* call:billing.*"])
        self.tokens = AccessTokens(self.provider, expected, rules, kept_max=3, now_s=lambda: self.now)

    async def _get(self, url: str) -> Fetched:
        self.asked[url.rpartition("/")[2]] += 1
        await self.gate.wait()
        if self.is_down:
            raise FetchFailed("down")
        if url.endswith("configuration"):
            return Fetched(json.dumps({"issuer": ISSUER, "jwks_uri": f"{ISSUER}/certs"}).encode(), None)
        listed = [jwk("ES256", name) for name in self.keys]
        return Fetched(json.dumps({"keys": listed}).encode(), None)

    def token(self, name: str = "provider", **changes) -> str:
        forger, now = Forger(ISSUER, algorithm="ES256"), int(self.now)
        claims = forger.claims(**({"iat": now, "exp": now + 100} | changes))
        return forger.signed(forger.header(kid=f"{name}-ES256"), claims, key=private_key("ES256", name))

    async def identify(self, token: str):
        waiting = self.tokens.awaited(token)
        if waiting is not None:
            await waiting
        return self.tokens.identify(token)


def test_a_token_gives_the_rights_of_its_claims():
    async def main() -> None:
        world = World("provider")
        found = await world.identify(world.token())
        assert found.name == "oidc:ann"
        assert found.key.rights == (Right("publish", "orders.*"),)
        assert found.key.allows("publish", "orders.new")
        assert not found.key.allows("consume", "orders.new")
        assert found.may_call("billing.total")
        assert not found.may_call("stock.count")

    asyncio.run(main())


def test_a_verified_token_costs_no_second_verification_until_it_expires():
    async def main() -> None:
        world = World("provider")
        token = world.token()
        first = await world.identify(token)
        assert world.tokens.identify(token) is first
        assert world.tokens.outcomes == {"accepted": 1}
        world.now += 100
        with pytest.raises(Unauthorized, match=NOT_ACCEPTED):
            world.tokens.identify(token)
        assert world.tokens.outcomes == {"accepted": 1, "expired": 1}
        assert not len(world.tokens)

    asyncio.run(main())


def test_the_number_of_kept_tokens_is_bounded():
    async def main() -> None:
        world = World("provider")
        tokens = [world.token(sub=f"user-{number}") for number in range(5)]
        for token in tokens:
            await world.identify(token)
        assert len(world.tokens) == 3
        world.tokens.identify(tokens[4])
        assert world.tokens.outcomes["accepted"] == 5
        world.tokens.identify(tokens[0])
        assert world.tokens.outcomes["accepted"] == 6, "the first of them was forgotten, and verified again"

    asyncio.run(main())


def test_a_new_key_is_fetched_once_for_all_that_wait():
    async def main() -> None:
        world = World("provider")
        await world.provider.refresh()
        world.keys, world.now = ["provider", "next"], world.now + 10
        world.gate.clear()
        waiting = [asyncio.create_task(world.identify(world.token("next", sub=f"u{n}"))) for n in range(20)]
        await asyncio.sleep(0)
        assert world.tokens.identify(world.token()).name == "oidc:ann", "tokens of known keys wait for nothing"
        world.gate.set()
        assert {each.name for each in await asyncio.gather(*waiting)} == {f"oidc:u{n}" for n in range(20)}
        assert world.asked["certs"] == 2

    asyncio.run(main())


def test_keys_that_are_not_known_do_not_make_a_flood_of_fetches():
    async def main() -> None:
        world = World("provider")
        await world.provider.refresh()
        for number in range(50):
            world.now += 1
            with pytest.raises(Unauthorized, match=NOT_ACCEPTED):
                await world.identify(world.token(f"stranger-{number % 2}"))
        assert world.asked["certs"] == 1 + 5, "one in ten seconds"

    asyncio.run(main())


def test_a_token_is_forgotten_with_the_key_that_verified_it():
    async def main() -> None:
        world = World("provider", "other")
        token, others = world.token(), world.token("other")
        await world.identify(token)
        await world.identify(others)
        world.keys = ["other"]
        await world.provider.refresh()
        with pytest.raises(Unauthorized, match=NOT_ACCEPTED):
            world.tokens.identify(token)
        assert world.tokens.identify(others).name == "oidc:ann"

    asyncio.run(main())


def test_known_keys_go_on_for_a_bounded_time_while_the_provider_is_down(caplog):
    async def main() -> None:
        world = World("provider")
        early = world.token(exp=int(START_S) + 10_000)
        await world.identify(early)
        world.is_down = True
        for _ in range(3):
            await world.provider.refresh()
        assert not world.provider.is_reachable
        world.now += 599
        assert world.tokens.identify(early).name == "oidc:ann"
        assert world.tokens.identify(world.token()).name == "oidc:ann", "new tokens of known keys too"
        world.now += 1
        for token in (early, world.token()):
            with pytest.raises(Unauthorized, match=UNREACHABLE):
                world.tokens.identify(token)
        assert world.tokens.awaited(world.token()) is None, "nobody waits for a provider that fails"
        world.is_down = False
        await world.provider.refresh()
        assert (await world.identify(world.token())).name == "oidc:ann"
        assert world.provider.is_reachable

    caplog.set_level(logging.INFO, "wherry.oidc")
    asyncio.run(main())
    texts = [record.getMessage() for record in caplog.records if "provider" in record.getMessage()]
    assert len(texts) == 2, "one line when it is lost, one when it is back"


def test_a_provider_that_was_never_reached_refuses_every_token():
    async def main() -> None:
        world = World("provider")
        world.is_down = True
        with pytest.raises(Unauthorized, match=UNREACHABLE):
            await world.identify(world.token())

    asyncio.run(main())


@pytest.mark.parametrize("text", ["a password", "wk_short", "a.b.c", "eyJhbGciOiJub25lIn0.e30.AA", '{"alg":"RS256"}'])
def test_a_text_that_is_no_token_waits_for_no_provider(text):
    async def main() -> None:
        world = World("provider")
        assert not world.provider.has_good_keys
        assert world.tokens.awaited(text) is None
        waiting = world.tokens.awaited(world.token())
        assert waiting is not None, "a token does, while no fetch has failed"
        await waiting

    asyncio.run(main())


def test_after_every_end_of_a_fetch_there_is_an_instant_to_ask_again():
    async def main() -> None:
        asked = 0

        async def get(url: str) -> Fetched:
            nonlocal asked
            asked += 1
            raise KeyError("a fault that nobody thought of")

        now = [START_S]
        provider = IdentityProvider(ISSUER, get=get, clock=lambda: now[0])
        await provider.refresh()
        assert provider.freshness.due_at > now[0]
        assert provider.freshness.failures == 1
        following = asyncio.create_task(provider.follow())
        for _ in range(50):
            await asyncio.sleep(0)
        following.cancel()
        assert asked == 1, "it waits before it asks again"

    asyncio.run(main())


def test_a_provider_without_a_key_that_verifies_does_not_replace_the_keys():
    async def main() -> None:
        world = World("provider")
        await world.identify(world.token())
        world.keys = []
        await world.provider.refresh()
        assert not world.provider.is_reachable
        assert world.tokens.identify(world.token()).name == "oidc:ann"

    asyncio.run(main())


def test_every_forged_token_gets_the_same_text_and_no_log_line_shows_it(caplog):
    async def main() -> None:
        world = World("provider")
        await world.provider.refresh()
        for make in FORGERIES.values():
            token = make(Forger(ISSUER))
            with pytest.raises(Unauthorized) as caught:
                await world.identify(token)
            assert str(caught.value) == NOT_ACCEPTED
            assert vars(caught.value) == {}
            assert caught.value.__cause__ is None
            parts = [part for part in token.split(".") if len(part) > 20]
            assert not any(part[:20] in caplog.text for part in parts)

    caplog.set_level(logging.DEBUG)
    asyncio.run(main())
    assert SECRET_MARK not in caplog.text
