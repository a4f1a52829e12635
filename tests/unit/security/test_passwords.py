"""Users: passwords and their hashes, and what a user's rights cover."""

import base64
import hashlib

import msgspec
import pytest

from wherry.model.catalog.key import Grant, Key, Right
from wherry.model.errors import InvalidInput, Unauthorized
from wherry.security.access import Access
from wherry.security.keys import proves
from wherry.security.passwords import hash_of, knows, make_user, with_hash, with_password


class Ring:
    def __init__(self, *keys: Key) -> None:
        self.known = {key.id: key for key in keys}

    def key(self, public_id: str) -> Key | None:
        return self.known.get(public_id)

    def user(self, name: str) -> Key | None:
        return next((key for key in self.known.values() if key.user is not None and key.name == name), None)


def test_a_password_is_known_and_nothing_else_is():
    ann = make_user("ann", "sécret", ["management"], now_ms=0)
    assert [knows(ann, word) for word in ("sécret", "secret", "")] == [True, False, False]
    assert not knows(with_password(ann, None), "")
    assert not proves(f"wk_{ann.id}_{'a' * 43}", ann)


def test_the_hash_is_that_of_rabbitmq():
    raw = b"salt" + hashlib.sha256(b"salt" + b"secret").digest()
    text = base64.b64encode(raw).decode()
    ann = with_hash(make_user("ann", None, [], now_ms=0), text)
    assert (knows(ann, "secret"), hash_of(ann)) == (True, text)
    assert hash_of(with_hash(ann, "")) == ""
    for wrong in ("odd", "!", base64.b64encode(b"short").decode()):
        with pytest.raises(InvalidInput):
            with_hash(ann, wrong)


def test_a_token_that_hashes_to_the_same_is_no_key():
    """Check that this token proves nothing: 43 letters that a client chose for salt and password would give one."""
    secret = "a" * 43
    raw = secret[:4].encode() + hashlib.sha256(secret.encode()).digest()
    ann = with_hash(make_user("ann", None, [], now_ms=0), base64.b64encode(raw).decode())
    assert knows(ann, secret[4:])
    assert not proves(f"wk_{ann.id}_{secret}", ann)


def test_rights_of_a_user_are_of_a_host():
    ann = make_user("ann", "x", [], now_ms=0)
    ann = msgspec.structs.replace(ann, rights=(Right("consume", "@%2F/*"), Right("publish", "@v/jobs")))
    assert ann.allows("consume", "jobs")
    assert not ann.allows("consume", "@v/jobs")
    assert (ann.allows("publish", "@v/jobs"), ann.allows("publish", "jobs")) == (True, False)
    assert not ann.allows("consume", "*")
    boss = make_user("boss", "x", ["administrator"], now_ms=0)
    assert (boss.allows("admin", "*"), boss.allows("admin", "jobs")) == (True, False)


def test_access_finds_a_user_by_name_and_forgets_it_with_its_password():
    ann = make_user("ann", "secret", [], now_ms=0)
    door = Access(False, Ring(ann), lambda: 10)
    assert door.user("nobody", "secret") is None
    assert door.user("ann", "secret") == ann
    assert door.user("ann", "wrong") is None
    other = Access(False, Ring(with_password(ann, "other")), lambda: 10)
    with pytest.raises(Unauthorized):
        other.as_it_is(ann)
    over = Access(False, Ring(msgspec.structs.replace(ann, expires_ms=10)), lambda: 10)
    with pytest.raises(Unauthorized):
        over.user("ann", "secret")


def test_bounds_of_the_fields_of_a_user():
    ann = make_user("ann", "x", [], now_ms=0)
    assert ann.user is not None
    grants = tuple(Grant(str(number), "", "", "") for number in range(65))
    for user in (
        msgspec.structs.replace(ann.user, tags=("t",) * 17),
        msgspec.structs.replace(ann.user, tags=("t" * 1_025,)),
        msgspec.structs.replace(ann.user, grants=grants),
        msgspec.structs.replace(ann.user, salt=b"s" * 65),
    ):
        with pytest.raises(InvalidInput):
            msgspec.structs.replace(ann, user=user).checked()
