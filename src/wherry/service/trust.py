"""Who a peer is to others, and who others must be to it: tokens that it calls with, and what tokens of callers allow.

Rights come from a function of the program, or from access tokens of an identity provider by rules. A token that is not
accepted has one text, whatever is wrong with it.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from wherry.client.link.credential import KeyOrSource
from wherry.model import check
from wherry.model.errors import Forbidden, InvalidInput, WherryError
from wherry.service.rights import Authorize

if TYPE_CHECKING:
    from wherry.security.oidc.access_tokens import AccessTokens

CONTROL: Final = "*"
"""Stands for inspecting and controlling a service, where a method would be named."""

AUDIENCES_MAX: Final = 64
LEEWAY_S_MAX: Final = 300.0


class TrustedIssuer(msgspec.Struct, frozen=True, kw_only=True):
    """An identity provider whose access tokens callers show, and what they may call with them.

    Parameters
    ----------
    issuer
        Its URL, as it stands in its tokens.
    audiences
        One of them is in `aud` of a token.
    rules
        Such as `realm:clerk -> call:billing.*` and `realm:operator -> admin:billing`; without a rule nobody may call.
        `call` is for methods, `admin` to inspect and control a service.
    parties, name_claim, unmarked_tokens, leeway_s
        As for a node: which clients, the claim that names a caller, tokens without a mark, how far clocks may differ.
    keys_kept_s, refetch_s
        How long known keys are used while the provider is down; the least time between fetches for unknown keys.
    tls
        For `https`: certificates other than the system's.
    """

    issuer: str
    audiences: tuple[str, ...] | list[str]
    rules: tuple[str, ...] | list[str] = ()
    parties: tuple[str, ...] | list[str] = ()
    name_claim: str = "sub"
    unmarked_tokens: bool = False
    leeway_s: float = 30.0
    keys_kept_s: float = 3_600.0
    refetch_s: float = 10.0
    tls: ssl.SSLContext | None = None


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """Who this process is to others, and who others must be to it.

    Parameters
    ----------
    token
        What calls are made with: a text, a source that renews it such as `ClientCredentials`, or a function that
        returns it, which is called with each call.
    issuer
        The identity provider whose tokens callers have to show.
    authorize
        In place of an issuer: called with the token of a caller, a service and a method (`*` to inspect and control
        it), returns the name of the caller, or raises `Unauthorized` or `Forbidden`; it may be a coroutine function.
    tls
        The certificates to trust at `https` instances.
    """

    token: KeyOrSource = None
    issuer: TrustedIssuer | None = None
    authorize: Authorize | None = None
    tls: ssl.SSLContext | None = None


class NoRight(Forbidden):
    """The token is good, and gives no right to this call."""

    def __init__(self, name: str, service: str, method: str) -> None:
        self.name, self.verb, self.topic = name, "call", f"{service}.{method}"
        what = f"inspect and control {service}" if method == CONTROL else f"call {service}.{method}"
        WherryError.__init__(self, f"{name} has no right to {what}")


class TokenRights:
    """What the access tokens of one provider allow."""

    def __init__(self, tokens: AccessTokens) -> None:
        self.tokens = tokens

    def authorize(self, token: str, service: str, method: str) -> str | Awaitable[str]:
        """Return the name of a caller that may call; an awaitable if the provider has to be asked for a key first."""
        waiting = self.tokens.awaited(token)
        if waiting is None:
            return self._name(token, service, method)
        return self._name_after(waiting, token, service, method)

    async def _name_after(self, waiting: Awaitable[None], token: str, service: str, method: str) -> str:
        await waiting
        return self._name(token, service, method)

    def _name(self, token: str, service: str, method: str) -> str:
        identity = self.tokens.identify(token)
        # A right to call every method is none to pause them.
        is_control = method == CONTROL
        if not (identity.key.allows("admin", service) if is_control else identity.may_call(f"{service}.{method}")):
            raise NoRight(identity.name, service, method)
        return identity.name


@asynccontextmanager
async def authorizing(trust: Trust) -> AsyncIterator[Authorize | None]:
    """Return what checks the callers of a peer, until the context ends; None if everyone may call."""
    found = trust.issuer
    if found is None:
        yield trust.authorize
        return
    if trust.authorize is not None:
        raise InvalidInput("trust.authorize", "a function", "an issuer or a function, not both")
    for name, value in (("audiences", found.audiences), ("rules", found.rules), ("parties", found.parties)):
        if isinstance(value, str):
            raise InvalidInput(f"trust.issuer.{name}", value, "a list of texts")
    check.integer("trust.issuer.audiences", len(found.audiences), 1, AUDIENCES_MAX)
    check.number("trust.issuer.leeway_s", found.leeway_s, 0.0, LEEWAY_S_MAX)
    try:
        from wherry.security.oidc import opening  # noqa: PLC0415  an extra
        from wherry.security.oidc.rules import Rules  # noqa: PLC0415
        from wherry.security.oidc.verifying import Expectations  # noqa: PLC0415
    except ImportError as fault:
        raise InvalidInput("trust.issuer", found.issuer, f"none, or pip install 'wherry[oidc]' ({fault})") from None
    expected = Expectations(
        issuer=found.issuer,
        audiences=tuple(found.audiences),
        parties=tuple(found.parties),
        unmarked=found.unmarked_tokens,
        name_claim=found.name_claim,
        leeway_s=found.leeway_s,
    )
    kept_s, refetch_s = found.keys_kept_s, found.refetch_s
    async with opening.access_tokens(
        expected, Rules(found.rules), keys_kept_s=kept_s, refetch_s=refetch_s, tls=found.tls
    ) as tokens:
        yield TokenRights(tokens).authorize
