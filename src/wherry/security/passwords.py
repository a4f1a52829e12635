"""Users: keys with a password in place of a token, as AMQP and STOMP log in. The password is kept as a salted hash.

The hash is RabbitMQ's, SHA-256 of a salt of four bytes and the password, so that users can be imported and exported
with their passwords. The hash is quick: an attacker who reads the journal can guess passwords that people would choose.
A token cannot be guessed, which is why programs should use one.
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
from wherry.security.keys import ALPHABET, own_name

SALT_BYTES = 4
ALGORITHM = "rabbit_password_hashing_sha256"


def make_user(name: str, password: str | None, tags: Iterable[str], *, now_ms: int, made_by: str = "") -> Key:
    """Make a user with these rights; without a password, no client can log in as this user.

    Examples
    --------
    >>> ann = make_user("ann", "secret", [], now_ms=0)
    >>> knows(ann, "secret"), knows(ann, "guess")
    (True, False)
    """
    public_id = "".join(secrets.choice(ALPHABET) for _ in range(ID_CHARS))
    user = User(tags=tuple(tags))
    key = Key(
        id=public_id,
        digest=bytes(DIGEST_BYTES),
        name=own_name(name),
        rights=(),
        created_ms=now_ms,
        user=user,
        made_by=made_by,
    )
    return with_password(key, password)


def with_password(key: Key, password: str | None) -> Key:
    """Return the user with another password, or with none."""
    assert key.user is not None
    salt = b"" if password is None else secrets.token_bytes(SALT_BYTES)
    digest = secrets.token_bytes(DIGEST_BYTES) if password is None else _digest(salt, password)
    return msgspec.structs.replace(key, digest=digest, user=msgspec.structs.replace(key.user, salt=salt)).checked()


def with_hash(key: Key, text: str) -> Key:
    """Return the user with the password hash of another broker; an empty hash means no password."""
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
    """Return the salted hash of a user's password, as `with_hash` takes it."""
    assert key.user is not None
    return base64.b64encode(key.user.salt + key.digest).decode("ascii") if key.user.salt else ""


def knows(key: Key, password: str) -> bool:
    """Return whether a password is the user's; takes as long for a wrong password as for the right one."""
    if key.user is None or not key.user.salt:
        return False
    return hmac.compare_digest(_digest(key.user.salt, password), key.digest)


def _digest(salt: bytes, password: str) -> bytes:
    return hashlib.sha256(salt + password.encode("utf-8", "surrogateescape")).digest()


NOBODY = make_user("nobody", secrets.token_urlsafe(), [], now_ms=0)
"""The user to compare a password with when the name is unknown, so that the answer takes as long."""
