"""Access: which API key or access token a request has, and whether it may do what is asked. Every wire asks here.

An access token of an identity provider becomes a key while it is good: with a name, rights and an expiry, and nothing
stored. So every wire that takes an API key takes an access token in its place.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from wherry.model.catalog.key import Key, Verb
from wherry.model.errors import Forbidden, Unauthorized
from wherry.security.attempts import Attempts
from wherry.security.keys import proves, public_id
from wherry.security.passwords import NOBODY, knows

ALL_TOPICS = "*"
"""The topic of a call that is about no single topic, such as making a key: it takes a right on every topic."""


SHARED = "spark/"
"""Stages whose key begins so belong to a query or job of Spark, not to a caller: a job that is run again under another
API key has to find what it committed. The caller needs rights on the topics of what is staged."""


def own_key(caller: str, key: str) -> str:
    """Return the key of a stage as the broker has it: with API keys, each caller has stages of its own.

    Only stages of Spark are shared. No name of a caller leads to such a key, since a slash in a name is escaped.
    """
    if not caller or key.startswith(SHARED):
        return key
    return f"{caller.replace('%', '%25').replace(':', '%3A').replace('/', '%2F')}:{key}"


def signed(caller: str, by: str) -> str:
    """Return the name for an audit: the caller, where API keys are on, and behind it the name that it gave."""
    return by if not caller else f"{caller} (by: {by})" if by not in ("", caller) else caller


class Keyring(Protocol):
    """Finds keys; a broker is one."""

    def key(self, public_id: str, /) -> Key | None:
        """Return the key with this public id."""

    def user(self, name: str, /) -> Key | None:
        """Return the key that is the user of this name."""


class TokenBearer(Protocol):
    """The bearer of an access token that was verified."""

    @property
    def key(self) -> Key:
        """Return the key that stands for the token."""

    def may_call(self, method: str, /) -> bool:
        """Return whether a method of a service may be called."""


class TokenVerifier(Protocol):
    """Verifies access tokens; `wherry.security.oidc` has one, which needs an extra."""

    def identify(self, token: str, /) -> TokenBearer:
        """Return the bearer of a token, or raise `Unauthorized`."""

    def awaited(self, token: str, /) -> Awaitable[None] | None:
        """Return what to wait for before `identify`; nearly always None."""


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Access:
    """Checks keys and rights, or lets every request in when keys are off."""

    def __init__(
        self,
        keys_on: bool,
        keyring: Keyring,
        now_ms: Callable[[], int] = _wall_ms,
        tokens: TokenVerifier | None = None,
    ) -> None:
        self.keys_on = keys_on
        self._keyring = keyring
        self._now_ms = now_ms
        self._tokens = tokens
        self.attempts = Attempts()
        """Logins that failed, on any wire."""

    @property
    def takes_tokens(self) -> bool:
        """Whether access tokens of an identity provider are accepted."""
        return self._tokens is not None

    def awaited(self, token: str) -> Awaitable[None] | None:
        """Return what to wait for before this token is checked; None for all but tokens of keys that are not known.

        Where a wire can wait it does, so that the first token of a new key of the provider is accepted too.
        """
        if self._tokens is None or not token or public_id(token) is not None:
            return None
        return self._tokens.awaited(token)

    def awaited_in(self, headers: Mapping[str, str]) -> Awaitable[None] | None:
        """Do the same for the token in the headers of a request."""
        return None if self._tokens is None else self.awaited(_token_in(headers))

    def check(self, headers: Mapping[str, str], verb: Verb, topic: str = ALL_TOPICS) -> str:
        """Return the name of the caller (empty with keys off), or raise `Unauthorized` or `Forbidden`."""
        return _allowed(self.caller(headers), verb, topic) if self.keys_on else ""

    def caller(self, headers: Mapping[str, str]) -> Key:
        """Return the key in the headers of a request, or raise `Unauthorized`."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not scheme:
            raise Unauthorized("this broker asks for a key: send the header 'Authorization: Bearer wk_…'")
        if scheme.lower() != "bearer":
            raise Unauthorized(f"the scheme of Authorization is {scheme[:20]!r}; allowed: Bearer, and a key after it")
        return self.authenticate(token.strip())

    def check_token(self, token: str, verb: Verb, topic: str = ALL_TOPICS) -> str:
        """Do the same for a protocol that carries the bare token."""
        return _allowed(self.authenticate(token), verb, topic) if self.keys_on else ""

    def authenticate(self, token: str) -> Key:
        """Return the key of a token, or raise `Unauthorized`: the same for an unknown id and for a wrong secret."""
        known = public_id(token)
        if known is None and self._tokens is not None:
            return self._tokens.identify(token).key
        if known is None:
            raise Unauthorized("this is no key: a key is wk_, 8 characters, _, 43 characters")
        key = self._keyring.key(known)
        if key is None or not proves(token, key):
            raise Unauthorized("this key is not known here: it was deleted, or belongs to another broker")
        self._check_time(key)
        return key

    def _check_time(self, key: Key) -> None:
        if key.expires_ms is not None and key.expires_ms <= self._now_ms():
            raise Unauthorized(f"the key of {key.name!r} expired at {key.expires_ms} (Unix milliseconds)")

    def user(self, name: str, password: str) -> Key | None:
        """Return the user of a name and a password, or None; takes as long for an unknown name as for a known one."""
        key = self._keyring.user(name)
        if not knows(key or NOBODY, password) or key is None:
            return None
        self._check_time(key)
        return key

    def has_user(self, name: str) -> bool:
        """Return whether there is a user of this name."""
        return self._keyring.user(name) is not None

    def as_it_is(self, key: Key) -> Key:
        """Return a key with its rights of now; raise `Unauthorized` if it is gone, or has another secret."""
        known = self._keyring.key(key.id)
        if known is None or known.digest != key.digest:
            raise Unauthorized(f"{key.name!r} is not known here any more, or has another password")
        self._check_time(known)
        return known


def _allowed(key: Key, verb: Verb, topic: str) -> str:
    if not key.allows(verb, topic):
        raise Forbidden(key.name, verb, topic)
    return key.name


def _token_in(headers: Mapping[str, str]) -> str:
    """Return the token of a request: behind `Bearer`, or as the password behind `Basic`, as over the management API."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
