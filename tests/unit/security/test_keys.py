"""Keys and rights: what a token is, what the broker keeps of it, what it opens."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.model.catalog.key import (
    RIGHTS_MAX,
    Key,
    Right,
    fits,
    parse_right,
)
from wherry.model.errors import InvalidInput
from wherry.security.keys import make, masked, proves, public_id

ALL = [Right("admin", "*")]


@pytest.mark.rows("D27")
def test_a_token_proves_its_key_and_no_other():
    one, other = make("ann", ALL, now_ms=5), make("ann", ALL, now_ms=5)
    assert re.fullmatch(r"wk_[0-9a-z]{8}_[\w-]{43}", one.token)
    assert proves(one.token, one.key)
    assert not proves(other.token, one.key)
    assert not proves(f"wk_{one.key.id}_{other.token[12:]}", one.key)
    assert public_id(one.token) == one.key.id


@pytest.mark.rows("D27")
def test_the_key_that_is_kept_does_not_hold_the_secret():
    made = make("ann", ALL, now_ms=5)
    assert made.token[12:] not in repr(made.key)
    assert len(made.key.digest) == 32


@pytest.mark.parametrize("token", ["", "wk_", "wk_12345678_", "wk_12345678_" + "a" * 42, "xk_12345678_" + "a" * 43])
def test_what_is_no_token_has_no_public_id(token):
    made = make("ann", ALL, now_ms=5)
    assert public_id(token) is None
    assert not proves(token, made.key)
    assert public_id(made.token + "a") is None
    assert public_id(made.token + "\n") is None


def test_a_secret_is_masked_wherever_it_stands():
    made = make("ann", ALL, now_ms=5)
    text = masked(f"got {made.token}, and {made.token!r}")
    assert text == f"got wk_{made.key.id}_…, and 'wk_{made.key.id}_…'"


@pytest.mark.rows("D27")
@pytest.mark.parametrize(
    ("right", "verb", "topic", "allowed"),
    [
        ("publish:orders", "publish", "orders", True),
        ("publish:orders", "publish", "orders.eu", False),
        ("publish:orders", "consume", "orders", False),
        ("publish:orders", "admin", "orders", False),
        ("consume:orders.*", "consume", "orders.eu", True),
        ("consume:orders.*", "consume", "orders", False),
        ("admin:*.eu", "publish", "orders.eu", True),
        ("admin:*.eu", "consume", "orders.eu", True),
        ("admin:*.eu", "admin", "orders.us", False),
        ("admin:orders.*", "admin", "*", False),  # a call about all topics takes a right on all topics
        ("admin", "admin", "*", True),
    ],
)
def test_a_right_covers_its_verb_on_its_topics(right, verb, topic, allowed):
    assert parse_right(right).allows(verb, topic) is allowed


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_a_pattern_fits_what_the_same_regular_expression_does(pattern, name):
    wanted = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
    assert fits(pattern, name) is wanted


def test_a_pattern_of_many_stars_costs_nothing():
    assert not fits("a*" * 500 + "b", "a" * 1_000)


def fields(**more):
    known = {"id": "abcdefgh", "digest": bytes(32), "name": "n", "rights": (Right("admin", "*"),), "created_ms": 0}
    return {**known, **more}


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("key", {"id": "short"}),
        ("key", {"id": "abcdefg/"}),
        ("key", {"id": "äbcdefgh"}),
        ("digest", {"digest": b"x"}),
        ("name", {"name": ""}),
        ("name", {"name": "n" * 257}),
        ("name", {"name": "a\nb"}),
        ("rights", {"rights": ()}),
        ("rights", {"rights": [Right("admin", "*")]}),
        ("rights", {"rights": (Right("admin", "*"),) * (RIGHTS_MAX + 1)}),
        ("rights", {"rights": ("admin",)}),
        ("right.verb", {"rights": (Right("own", "*"),)}),  # type: ignore[arg-type]
        ("right.topics", {"rights": (Right("admin", ""),)}),
        ("created_ms", {"created_ms": -1}),
        ("expires_ms", {"expires_ms": 1 << 43}),
    ],
)
def test_a_key_that_breaks_a_rule_is_refused_by_field(field, more):
    with pytest.raises(InvalidInput) as caught:
        Key(**fields(**more)).checked()
    assert caught.value.field == field


def test_both_ends_of_what_is_allowed():
    Key(**fields(name="n" * 256, rights=(Right("admin", "t" * 1024),) * RIGHTS_MAX, expires_ms=0)).checked()


@pytest.mark.parametrize("text", ["", "own:*", ":jobs", "admin :x"])
def test_a_right_that_is_none_is_refused(text):
    with pytest.raises(InvalidInput, match="publish, consume or admin"):
        parse_right(text)


def test_of_an_access_token_nothing_is_left_in_a_log_line():
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"
    assert masked(f"header {token}, and more") == "header eyJ…, and more"
    assert masked(token.rpartition(".")[0]) == "eyJ…"
    for opened in ("eyAiYWxnIjoiUlMyNTYifQ", "ewoiYWxnIjoiUlMyNTYifQ", "IHsiYWxnIjoiUlMyNTYifQ"):
        assert masked(f"got {opened}.eyJzdWIiOiJhbm4ifQ.{'A' * 86}.") == "got eyJ….", "JSON may begin with blanks"
    assert masked(f"{token}.{token}") == "eyJ….eyJ…"
    assert masked("wherry.security.oidc.verifying refused frameworks.module") == (
        "wherry.security.oidc.verifying refused frameworks.module"
    )
    assert masked("eyJ is no token. Nor is eyJhbGciOiJ.") == "eyJ is no token. Nor is eyJhbGciOiJ."
