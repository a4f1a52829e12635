"""The verification without a node, as a service uses it: methods by rules, forged tokens refused alike."""

from __future__ import annotations

import asyncio

import pytest

from tests.oidc.forged import FORGERIES, Forger
from tests.oidc.nodes import RULES
from wherry.model.errors import Unauthorized
from wherry.security.oidc.opening import access_tokens
from wherry.security.oidc.rules import Rules
from wherry.security.oidc.verifying import Expectations


@pytest.mark.rows("P13")
def test_roles_and_scopes_decide_which_methods_may_be_called(identity):
    async def main() -> None:
        expected = Expectations(issuer=identity.issuer, audiences=("wherry",))
        async with access_tokens(expected, Rules(RULES)) as tokens:
            shop, billed = (
                tokens.identify(identity.token("shop")),
                tokens.identify(identity.token("shop", scope="bill")),
            )
            nobody = tokens.identify(identity.token("nobody"))
            methods = ("billing.total", "billing.refund", "stock.count", "stock.set")
            assert [shop.may_call(each) for each in methods] == [True, True, False, False]
            assert [billed.may_call(each) for each in methods] == [True, True, True, False]
            assert [nobody.may_call(each) for each in methods] == [False] * 4

    asyncio.run(main())


@pytest.mark.rows("P12")
def test_forged_tokens_are_refused_alike_without_a_node(identity):
    async def main() -> None:
        forger, texts = Forger(identity.issuer), set()
        async with access_tokens(Expectations(issuer=identity.issuer, audiences=("wherry",)), Rules()) as tokens:
            assert tokens.identify(forger.good()).name == "oidc:ann"
            for make in FORGERIES.values():
                token = make(forger)
                if (waiting := tokens.awaited(token)) is not None:
                    await waiting
                with pytest.raises(Unauthorized) as caught:
                    tokens.identify(token)
                texts.add(str(caught.value))
        assert len(texts) == 1

    asyncio.run(main())


@pytest.mark.rows("P12")
def test_the_wrong_issuer_has_no_keys_for_us(identity):
    """The discovery document names another issuer than the one that was configured: nothing of it is used."""

    async def main() -> None:
        expected = Expectations(issuer=identity.issuer + "/", audiences=("wherry",))
        async with access_tokens(expected, Rules()) as tokens:
            assert not tokens.provider.has_good_keys
            with pytest.raises(Unauthorized, match="cannot be reached"):
                tokens.identify(identity.token("shop"))

    asyncio.run(main())
