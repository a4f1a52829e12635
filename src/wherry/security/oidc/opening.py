"""Opens the verification of access tokens, for a node or a service: the keys are there at once, and are renewed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wherry.security.oidc.access_tokens import AccessTokens
from wherry.security.oidc.provider import KEYS_KEPT_S, REFETCH_S, IdentityProvider
from wherry.security.oidc.rules import Rules
from wherry.security.oidc.verifying import Expectations


@asynccontextmanager
async def access_tokens(
    expected: Expectations,
    rules: Rules,
    *,
    keys_kept_s: float = KEYS_KEPT_S,
    refetch_s: float = REFETCH_S,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[AccessTokens]:
    """Verify access tokens until the context ends. A provider that is down does not keep it from beginning.

    Examples
    --------
    >>> expected = Expectations(issuer="https://id.example.org/realms/shop", audiences=("billing",))
    >>> async def main(token):
    ...     async with access_tokens(expected, Rules(["realm:clerk -> call:billing.*"])) as tokens:
    ...         if (waiting := tokens.awaited(token)) is not None:
    ...             await waiting
    ...         return tokens.identify(token).may_call("billing.total")
    """
    provider = IdentityProvider(expected.issuer, keys_kept_s=keys_kept_s, refetch_s=refetch_s, tls=tls)
    await provider.refresh()
    following = asyncio.create_task(provider.follow(), name="wherry oidc")
    try:
        yield AccessTokens(provider, expected, rules)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await provider.close()
