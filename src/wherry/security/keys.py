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

_DOTTED = re.compile(r"[0-9A-Za-z_-]++(?:\.[0-9A-Za-z_-]*+)++")
_OPENED = re.compile(r"eyJ[0-9A-Za-z_-]{8}")
"""What the header of a compact JWS nearly always begins with: `{"` in base64url."""

PART_CHARS, SIGNATURE_CHARS = 8, 43
"""Header and claims of a token have more; three parts whose last is so long are a token, whatever they begin with."""


class Made(NamedTuple):
    """A new key, and its token, which cannot be read back later."""

    key: Key
    token: str


def own_name(name: str) -> str:
    """Return the name of a key or a user that is being made; refuse one that would be taken for a token's bearer."""
    if isinstance(name, str) and name.startswith(BEARER_PREFIX):
        raise InvalidInput("name", name, f"a name that does not begin with {BEARER_PREFIX}")
    return name


def make(name: str, rights: Iterable[Right], *, now_ms: int, expires_ms: int | None = None, made_by: str = "") -> Made:
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
        made_by=made_by,
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
    return _DOTTED.sub(_without_tokens, _TOKEN.sub(r"wk_\g<id>_…", text))


def _without_tokens(dotted: re.Match[str]) -> str:
    """Return a run of parts with dots between, with `eyJ…` in the place of each access token."""
    parts, shown, at = dotted[0].split("."), [], 0
    while at < len(parts):
        head, body, end = (*parts[at : at + 3], "", "")[:3]
        opened = _OPENED.search(head)
        is_shaped = len(head) >= PART_CHARS and len(end) >= SIGNATURE_CHARS
        if len(body) >= PART_CHARS and (opened is not None or is_shaped):
            shown.append((head[: opened.start()] if opened is not None else "") + "eyJ…")
            at += 3
        else:
            shown.append(head)
            at += 1
    return ".".join(shown)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
