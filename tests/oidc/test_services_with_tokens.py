"""Services whose callers show access tokens of a real provider: rights by rules, renewed tokens, forged ones."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.oidc.forged import FORGERIES, Forger, assert_nothing_leaked
from tests.oidc.provider import SECRET
from tests.oidc.services import SERVICE_DOORS, billing, over_frame, over_rest, over_upgrade, providing
from wherry.model.errors import InvalidInput
from wherry.security.oidc.client_credentials import ClientCredentials
from wherry.service.outcomes import RefusalCode, Refused
from wherry.service.peer import peer
from wherry.service.trust import Trust, TrustedIssuer

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def provided(identity):
    with providing(identity.issuer) as found:
        yield found


async def refusal(provided, token, method="billing.total") -> Refused:
    static = provided.url.replace("http://", "static://")
    async with peer(registry=static, trust=Trust(token=token)) as caller:
        with pytest.raises(Refused) as caught:
            await caller.call(method, b"x", timeout_s=PATIENCE_S)
    return caught.value


@pytest.mark.rows("P12")
@pytest.mark.parametrize("door", SERVICE_DOORS)
def test_forged_tokens_are_refused_alike_by_services_and_nothing_leaks(door, provided, identity, caplog):
    caplog.set_level(logging.DEBUG)
    enter, forger = SERVICE_DOORS[door], Forger(identity.issuer)
    good = identity.token("boss")
    assert enter(provided.url, good).is_in
    assert enter(provided.url, forger.good()).is_in, "what is forged from is good"
    forged = {name: make(forger) for name, make in FORGERIES.items()}
    if door == "frame":  # a frame is bounded: one that is longer ends the connection
        forged = {name: token for name, token in forged.items() if len(token) <= 16 << 10}
    assert len(forged) >= len(FORGERIES) - 1 > 60
    answered = provided.answered
    with ThreadPoolExecutor(8) as threads:
        answers = dict(zip(forged, threads.map(lambda token: enter(provided.url, token), forged.values()), strict=True))
    assert [name for name, answer in answers.items() if answer.is_in] == []
    assert provided.answered == answered, "a method was run"
    texts = {answer.text for answer in answers.values()} | {enter(provided.url, "hello").text}
    assert len(texts) == 1, texts
    assert_nothing_leaked(caplog.text + "".join(texts), (good, *forged.values()))
    assert enter(provided.url, good).is_in, "and the service goes on"


@pytest.mark.rows("P12")
def test_a_caller_without_a_token_is_refused(provided):
    for enter in (over_rest, over_upgrade, over_frame):
        assert not enter(provided.url, "").is_in


@pytest.mark.rows("P13")
@pytest.mark.parametrize("enter", [over_rest, over_upgrade, over_frame])
def test_roles_and_scopes_decide_which_methods_are_answered(enter, provided, identity):
    clerk, billed, nobody = identity.token("shop"), identity.token("nobody", scope="bill"), identity.token("nobody")
    tried = [
        [enter(provided.url, token, method).is_in for method in ("total", "refund")]
        for token in (clerk, billed, nobody)
    ]
    assert tried == [[True, False], [True, True], [False, False]]
    text = enter(provided.url, clerk, "refund").text
    assert "forbidden" in text
    assert "no right to call billing.refund" in text


@pytest.mark.rows("P13")
def test_a_right_to_call_all_methods_is_none_to_control_them(provided, identity):
    enter = SERVICE_DOORS["list"]
    text = enter(provided.url, identity.token("nobody", scope="bill")).text
    assert text.startswith("403 ")
    assert "no right to inspect and control billing" in text
    assert enter(provided.url, identity.token("boss")).is_in


@pytest.mark.rows("P12", "P13")
def test_a_caller_fetches_its_token_itself_and_is_refused_at_once_where_it_has_no_right(provided, identity):
    async def main():
        source = ClientCredentials(identity.issuer, "shop", SECRET)
        static = provided.url.replace("http://", "static://")
        async with peer(registry=static, trust=Trust(token=source)) as caller:
            assert await caller.call("billing.total", b"x") == b"x"
            with pytest.raises(Refused) as caught:
                await caller.call("billing.refund", b"x")
            assert caught.value.reason is RefusalCode.FORBIDDEN
            assert source.fetches == 1

    asyncio.run(main())


@pytest.mark.rows("P12")
def test_one_connection_outlives_its_first_token(provided, identity):
    async def main():
        source = ClientCredentials(identity.issuer, "brief", SECRET)  # its tokens live for six seconds
        static = provided.url.replace("http://", "static://")
        async with peer(registry=static, trust=Trust(token=source)) as caller:
            assert await caller.call("billing.total", b"x") == b"x"
            first, (link,) = await source.token(), caller.caller.pool.open.values()
            async with asyncio.timeout(PATIENCE_S):
                while over_rest(provided.url, first).is_in:
                    assert await caller.call("billing.total", b"x") == b"x"
                    await asyncio.sleep(0.05)
            assert await caller.call("billing.total", b"x") == b"x"
            assert list(caller.caller.pool.open.values()) == [link]
            assert source.fetches > 1

    asyncio.run(main())


@pytest.mark.rows("P12")
def test_an_expired_token_is_refused_although_its_connection_is_open(provided, identity):
    async def main():
        token = identity.token("brief")
        static = provided.url.replace("http://", "static://")
        async with peer(registry=static, trust=Trust(token=token)) as caller:
            assert await caller.call("billing.total", b"x") == b"x"
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(Refused) as caught:
                    while True:
                        await caller.call("billing.total", b"x")
                        await asyncio.sleep(0.05)
            assert caught.value.reason is RefusalCode.UNAUTHORIZED

    asyncio.run(main())


class Renewed:
    """A source whose first token is not accepted, such as one of keys that the provider has thrown away."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)
        self.rejected: list[str] = []

    async def token(self) -> str:
        """Return the first."""
        return self.tokens[0]

    def reject(self, token: str, /) -> None:
        """Go on to the next."""
        self.rejected.append(token)
        if len(self.tokens) > 1:
            del self.tokens[0]

    def renew_in_s(self) -> float:
        """Return a time far off."""
        return 600.0


@pytest.mark.rows("P12")
def test_a_token_that_is_refused_is_replaced_once(provided, identity):
    async def main():
        source = Renewed("hello", identity.token("shop"))
        static = provided.url.replace("http://", "static://")
        async with peer(registry=static, trust=Trust(token=source)) as caller:
            assert await caller.call("billing.total", b"x") == b"x"
            assert source.rejected == ["hello"]
        source = Renewed("hello")
        refused = await refusal(provided, source)
        assert (refused.reason, source.rejected) == (RefusalCode.UNAUTHORIZED, ["hello"])

    asyncio.run(main())


@pytest.mark.rows("P12")
def test_a_call_without_a_token_to_be_had_is_refused_with_the_reason(provided, identity):
    refused = asyncio.run(refusal(provided, ClientCredentials(identity.issuer, "shop", "a wrong secret")))
    assert refused.reason is RefusalCode.UNAUTHORIZED
    assert "no token to call with" in str(refused)
    assert "a wrong secret" not in str(refused)


@pytest.mark.parametrize(
    ("issuer", "authorize", "field"),
    [
        ({"audiences": ()}, None, "trust.issuer.audiences"),
        ({"audiences": "wherry"}, None, "trust.issuer.audiences"),
        ({"audiences": ("wherry",), "rules": ("nonsense",)}, None, "oidc.rules"),
        ({"audiences": ("wherry",), "leeway_s": 1e6}, None, "trust.issuer.leeway_s"),
        ({"audiences": ("wherry",)}, lambda *_: "ann", "trust.authorize"),
    ],
)
def test_wrong_settings_are_refused_by_field(issuer, authorize, field, identity):
    async def main():
        found = TrustedIssuer(issuer=identity.issuer, **issuer)
        with pytest.raises(InvalidInput) as caught:
            async with peer(provides=[billing()], trust=Trust(issuer=found, authorize=authorize)):
                pass
        assert caught.value.field == field

    asyncio.run(main())
