"""Access tokens of one provider: who shows one, and what it gives. Every wire, and every service, asks here.

A token that was verified is kept by its hash until it expires, so that the next call costs a look-up. It is forgotten
with the keys that verified it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from wherry.model.catalog.key import Key
from wherry.model.errors import Unauthorized
from wherry.security.oidc.compact import TOKEN_CHARS_MAX
from wherry.security.oidc.provider import IdentityProvider
from wherry.security.oidc.refusal import TokenRefusal
from wherry.security.oidc.rules import Granted, Rules
from wherry.security.oidc.verifying import Expectations, key_named, verify

KEPT_MAX = 10_000
"""Tokens that are remembered as verified; beyond them, the one that was verified longest ago is verified anew."""

KEY_ID = "oidctokn"
"""The id of the key that stands for a token; an API key has a random one."""

NOT_ACCEPTED = "this token is not accepted here: it is no access token for this node that is valid now, and no API key"
UNREACHABLE = "the identity provider cannot be reached, so this access token cannot be checked now"

_log = logging.getLogger("wherry.oidc")


class Identity(NamedTuple):
    """The bearer of a token that was verified."""

    key: Key
    """Its name and rights, as the wires check those of an API key."""
    granted: Granted
    expires_s: float

    @property
    def name(self) -> str:
        """Return the name of the caller, `oidc:` and the subject."""
        return self.key.name

    def may_call(self, method: str) -> bool:
        """Return whether a method of a service, `service.method`, may be called."""
        return self.granted.may_call(method)


class AccessTokens:
    """Verifies access tokens, and keeps the answers."""

    def __init__(
        self,
        provider: IdentityProvider,
        expected: Expectations,
        rules: Rules,
        *,
        kept_max: int = KEPT_MAX,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.provider = provider
        self._expected, self._rules = expected, rules
        self._kept_max, self._now_s = kept_max, now_s
        self._kept: dict[bytes, tuple[int, Identity]] = {}
        """By the hash of a token: its bearer, and the number of the key set that verified it."""
        self._lock = threading.Lock()  # the calls of Flight come from threads
        self.outcomes: Counter[str] = Counter()
        """Verifications since the start, by how they ended: `accepted` or a `TokenRefusal`."""

    def __len__(self) -> int:
        """Return how many tokens are remembered."""
        return len(self._kept)

    def identify(self, token: str) -> Identity:
        """Return the bearer of a token, or raise `Unauthorized`: the same text for whatever is wrong with a token.

        This never waits. A token of a key that the provider has only just made is refused, unless the caller let
        `awaited` fetch the keys first.
        """
        if len(token) > TOKEN_CHARS_MAX:
            raise self._refused(TokenRefusal.SIZE)
        digest = _digest(token)
        if not self.provider.has_good_keys:
            raise self._refused(TokenRefusal.NO_KEYS)
        changes, now_s = self.provider.changes, self._now_s()
        kept = self._kept.get(digest)
        if kept is not None and kept[0] == changes and now_s < kept[1].expires_s:
            return kept[1]
        return self._verified(token, digest, changes, now_s)

    def awaited(self, token: str) -> Awaitable[None] | None:
        """Return what to wait for before `identify`, if a token names a key that is not known; nearly always None.

        A text that has not the form and the header of an access token waits for nothing. The provider is asked at most
        once in a while, whatever tokens come.
        """
        if len(token) > TOKEN_CHARS_MAX:
            return None
        kept = self._kept.get(_digest(token))
        if kept is not None and kept[0] == self.provider.changes and self.provider.has_good_keys:
            return None
        named = key_named(token)
        if named is None:
            return None
        return self.provider.refresh() if self.provider.may_find(named[1]) else None

    def _verified(self, token: str, digest: bytes, changes: int, now_s: float) -> Identity:
        claims = verify(token, self.provider.keys, self._expected, now_s)
        if isinstance(claims, TokenRefusal):
            with self._lock:
                self._kept.pop(digest, None)
            raise self._refused(claims)
        granted = self._rules.granted(claims.values)
        key = Key(
            id=KEY_ID,
            digest=digest,
            name=claims.name,
            rights=granted.rights,
            created_ms=0,
            expires_ms=int(claims.expires_s * 1_000),
        )
        identity = Identity(key, granted, claims.expires_s)
        with self._lock:
            self.outcomes["accepted"] += 1
            self._kept.pop(digest, None)
            if len(self._kept) >= self._kept_max:
                del self._kept[next(iter(self._kept))]
            self._kept[digest] = changes, identity  # a newer key set may be there by now: then this counts for nothing
        return identity

    def _refused(self, reason: TokenRefusal) -> Unauthorized:
        with self._lock:
            self.outcomes[reason] += 1
        _log.info("access token refused", extra={"why": reason.value})
        return Unauthorized(UNREACHABLE if reason is TokenRefusal.NO_KEYS else NOT_ACCEPTED)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
