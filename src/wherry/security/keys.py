"""API keys: how one is made, written, read and checked. The secret is shown once; the broker keeps its hash.

    wk_ 7f3k9q2m _ kq0Vd…(43 characters)
        public id  secret: 32 random bytes in base64url

A plain SHA-256 is enough, and costs a microsecond a request: a slow hash is for secrets that can be guessed, and 256
random bits cannot.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Iterable
from typing import NamedTuple

from wherry.model.catalog.key import (
    ID_CHARS,
    Key,
    Right,
)
from wherry.model.errors import InvalidInput

ALPHABET = string.digits + string.ascii_lowercase
SECRET_BYTES = 32

_TOKEN = re.compile(r"wk_(?P<id>[0-9A-Za-z]{8})_(?P<secret>[0-9A-Za-z_-]{43})")

BEARER_PREFIX = "oidc:"
"""Before the subject of an access token, in the name of its caller. No key and no user has such a name."""

_ACCESS_TOKEN = re.compile(r"eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}(?:\.[0-9A-Za-z_-]*)?")
"""A compact JWS: its header and its claims begin with `{"`, which is `eyJ` in base64url."""


class Made(NamedTuple):
    """A new key, and its token, which cannot be read back later."""

    key: Key
    token: str


def own_name(name: str) -> str:
    """Return the name of a key or a user that is being made; refuse one that would be taken for a token's bearer."""
    if isinstance(name, str) and name.startswith(BEARER_PREFIX):
        raise InvalidInput("name", name, f"a name that does not begin with {BEARER_PREFIX}")
    return name


def make(name: str, rights: Iterable[Right], *, now_ms: int, expires_ms: int | None = None) -> Made:
    """Make a key with a secret of its own.

    Examples
    --------
    >>> made = make("ann", [Right("publish", "orders.*")], now_ms=0)
    >>> proves(made.token, made.key)
    True
    """
    public_id = "".join(secrets.choice(ALPHABET) for _ in range(ID_CHARS))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    key = Key(
        id=public_id,
        digest=_digest(secret),
        name=own_name(name),
        rights=tuple(rights),
        created_ms=now_ms,
        expires_ms=expires_ms,
    ).checked()
    return Made(key, f"wk_{public_id}_{secret}")


def public_id(token: str) -> str | None:
    """Return the public id of a token; None if the text is no token."""
    found = _TOKEN.fullmatch(token)
    return found["id"] if found is not None else None


def proves(token: str, key: Key) -> bool:
    """Return whether a token belongs to a key; takes as long for a wrong secret as for the right one."""
    found = _TOKEN.fullmatch(token)
    if found is None or key.user is not None:
        return False
    return found["id"] == key.id and hmac.compare_digest(_digest(found["secret"]), key.digest)


def masked(text: str) -> str:
    """Return a text without the secrets of the tokens in it, for logs; of an access token nothing is left."""
    return _ACCESS_TOKEN.sub("eyJ…", _TOKEN.sub(r"wk_\g<id>_…", text))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
