"""Signatures of webhooks, from the side of the receiver."""

import hashlib
import hmac

import pytest

import wherry
from wherry.security.signing import sign

SECRET = "a secret of 26 characters."


def test_the_signature_is_what_the_page_documents():
    digest = hmac.new(SECRET.encode(), b'1000.{"a":1}', hashlib.sha256).hexdigest()
    assert sign(SECRET, b'{"a":1}', 1_000) == f"t=1000,v1={digest}"


@pytest.mark.parametrize(
    ("secret", "body", "now_s", "is_good"),
    [
        (SECRET, b"body", 1_000, True),
        (SECRET, b"body", 1_300, True),
        (SECRET, b"body", 700, True),
        (SECRET, b"body", 1_301, False),
        (SECRET, b"body", 699, False),
        (SECRET, b"body ", 1_000, False),
        (SECRET + " ", b"body", 1_000, False),
    ],
)
def test_a_signature_holds_for_one_secret_one_body_and_one_time(secret, body, now_s, is_good):
    assert wherry.verify_webhook(secret, sign(SECRET, b"body", 1_000), body, now_s=now_s) is is_good


@pytest.mark.parametrize("signature", [None, "", "t=1000", "v1=" + "0" * 64, "t=1000,v1=00", "t=-1,v1=" + "0" * 64])
def test_what_is_no_signature_proves_nothing(signature):
    assert not wherry.verify_webhook(SECRET, signature, b"body", now_s=1_000)


def test_the_time_cannot_be_changed_without_the_secret():
    later = sign(SECRET, b"body", 1_000).replace("t=1000", "t=9000")
    assert not wherry.verify_webhook(SECRET, later, b"body", now_s=9_000)
