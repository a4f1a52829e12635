"""Users: keys with a password in place of a token, as AMQP and STOMP log in. The password is kept as a salted hash.

The hash is RabbitMQ's, SHA-256 of a salt of four bytes and the password, so that users come from there and go there
with the passwords that they have. It is quick: whoever reads the journal can guess passwords that people would choose.
A token cannot be guessed, which is why programs should have one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable

import msgspec

from wherry.model.catalog.key import (
    DIGEST_BYTES,
    ID_CHARS,
    Key,
    User,
)
from wherry.model.errors import InvalidInput
from wherry.security.keys import ALPHABET

SALT_BYTES = 4
ALGORITHM = "rabbit_password_hashing_sha256"


def make_user(name: str, password: str | None, tags: Iterable[str], *, now_ms: int) -> Key:
    """A user who may do nothing yet; without a password nobody can log in as it.

    Examples
    --------
    >>> ann = make_user("ann", "secret", [], now_ms=0)
    >>> knows(ann, "secret"), knows(ann, "guess")
    (True, False)
    """
    public_id = "".join(secrets.choice(ALPHABET) for _ in range(ID_CHARS))
    user = User(tags=tuple(tags))
    key = Key(id=public_id, digest=bytes(DIGEST_BYTES), name=name, rights=(), created_ms=now_ms, user=user)
    return with_password(key, password)


def with_password(key: Key, password: str | None) -> Key:
    """A user with another password, or with none."""
    assert key.user is not None
    salt = b"" if password is None else secrets.token_bytes(SALT_BYTES)
    digest = secrets.token_bytes(DIGEST_BYTES) if password is None else _digest(salt, password)
    return msgspec.structs.replace(key, digest=digest, user=msgspec.structs.replace(key.user, salt=salt)).checked()


def with_hash(key: Key, text: str) -> Key:
    """A user with the password that a hash from elsewhere is of; an empty one is of none."""
    assert key.user is not None
    if not text:
        return with_password(key, None)
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != SALT_BYTES + DIGEST_BYTES:
        raise InvalidInput("password_hash", text, f"base64 of {SALT_BYTES} bytes of salt and {DIGEST_BYTES} of SHA-256")
    user = msgspec.structs.replace(key.user, salt=raw[:SALT_BYTES])
    return msgspec.structs.replace(key, digest=raw[SALT_BYTES:], user=user).checked()


def hash_of(key: Key) -> str:
    """The salted hash of a user's password, as `with_hash` takes it."""
    assert key.user is not None
    return base64.b64encode(key.user.salt + key.digest).decode("ascii") if key.user.salt else ""


def knows(key: Key, password: str) -> bool:
    """Whether it is a user's password. Takes as long for a wrong one as for the right one."""
    if key.user is None or not key.user.salt:
        return False
    return hmac.compare_digest(_digest(key.user.salt, password), key.digest)


def _digest(salt: bytes, password: str) -> bytes:
    return hashlib.sha256(salt + password.encode("utf-8", "surrogateescape")).digest()


NOBODY = make_user("nobody", secrets.token_urlsafe(), [], now_ms=0)
"""Whom a password is compared with where no user has the name: that takes as long as with one."""
