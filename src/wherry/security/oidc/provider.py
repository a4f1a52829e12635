"""A provider as this process knows it: its endpoints and keys, fetched, kept and renewed.

Several callers that need a fetch share one. Nothing here waits for the provider unless a token names a key that is not
known. While the provider cannot be reached, the keys that it gave stay in use for `keys_kept_s`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from wherry.security.oidc.endpoints import Endpoints, checked_issuer, discovery_url, parse_endpoints
from wherry.security.oidc.fetch import Fetched, FetchFailed, fetch
from wherry.security.oidc.freshness import Freshness
from wherry.security.oidc.key_set import KeySet, parse_key_set

KEYS_KEPT_S = 3_600.0
REFETCH_S = 10.0

Fetch: TypeAlias = Callable[[str], Awaitable[Fetched]]

_log = logging.getLogger("wherry.oidc")


class IdentityProvider:
    """The endpoints and keys of one issuer.

    Parameters
    ----------
    issuer
        The URL of the provider, as it stands in its tokens.
    keys_kept_s
        How long its keys are used while it cannot be reached.
    refetch_s
        The least time between two fetches for keys that are not known.
    tls
        For https: certificates other than the system's.
    """

    def __init__(
        self,
        issuer: str,
        *,
        keys_kept_s: float = KEYS_KEPT_S,
        refetch_s: float = REFETCH_S,
        tls: ssl.SSLContext | None = None,
        get: Fetch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer = checked_issuer(issuer)
        self.keys = KeySet()
        self.endpoints: Endpoints | None = None
        self.changes = 0
        """How often other keys came, so that what was verified with keys that are gone can be forgotten."""
        self.fetches = 0
        self.freshness = Freshness(keys_kept_s, refetch_s)
        self._get: Fetch = get if get is not None else lambda url: fetch(url, tls)
        self._clock = clock
        self._raw = b""
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def is_reachable(self) -> bool:
        """Return whether the last fetch succeeded."""
        return self.freshness.fetched_at is not None and not self.freshness.failures

    @property
    def has_good_keys(self) -> bool:
        """Return whether there are keys that may be used."""
        return self.freshness.is_good(self._clock())

    @property
    def keys_age_s(self) -> float | None:
        """Return how long ago the keys were fetched, None for never."""
        fetched_at = self.freshness.fetched_at
        return None if fetched_at is None else self._clock() - fetched_at

    def may_find(self, key_id: str | None) -> bool:
        """Return whether a fetch now could bring a key that is not known.

        While the provider fails nobody waits for it: it is asked again anyhow, by `follow`.
        """
        if self.freshness.failures:
            return False
        if self.has_good_keys and (key_id is None or self.keys.knows(key_id)):
            return False
        return self._refreshing is not None or self.freshness.may_ask(self._clock())

    async def follow(self) -> None:
        """Fetch the keys whenever they are due, for ever."""
        while True:
            await asyncio.sleep(max(0.0, self.freshness.due_at - self._clock()))
            if self.freshness.due_at <= self._clock():
                await self.refresh()

    async def refresh(self) -> None:
        """Fetch the keys, or wait for the fetch that is under way. Failures are logged and noted, not raised."""
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh(), name="wherry oidc keys")
        await asyncio.wait([self._refreshing])  # which leaves it to others if this caller is cancelled

    async def close(self) -> None:
        """Stop a fetch that is under way."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])

    async def _refresh(self) -> None:
        self.freshness.ask(self._clock())
        self.fetches += 1
        try:
            endpoints = parse_endpoints((await self._get(discovery_url(self.issuer))).body, self.issuer)
            fetched = await self._get(endpoints.keys)
            keys = parse_key_set(fetched.body)
            if not len(keys):
                raise ValueError("the provider has no key that can verify")
        except FetchFailed as fault:
            self._failed(str(fault))
        except Exception as fault:  # whatever it is: without a later instant `follow` would ask again at once, for ever
            self._failed(f"its documents cannot be used: {type(fault).__name__}")
        else:
            self._succeeded(endpoints, keys, fetched)
        finally:
            self._refreshing = None

    def _succeeded(self, endpoints: Endpoints, keys: KeySet, fetched: Fetched) -> None:
        if self.freshness.failures:
            _log.info("the identity provider can be reached again", extra={"issuer": self.issuer})
        if fetched.body != self._raw:
            self._raw, self.keys = fetched.body, keys
            self.changes += 1
        self.endpoints = endpoints
        self.freshness.succeed(self._clock(), fetched.max_age_s)

    def _failed(self, why: str) -> None:
        """Log the first of several failures."""
        if not self.freshness.failures:
            _log.warning(
                "the identity provider cannot be reached; its keys stay in use for a while",
                extra={"issuer": self.issuer, "why": why, "has_keys": self.has_good_keys},
            )
        self.freshness.fail(self._clock())
