"""Which access tokens are accepted, and which are refused."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import scaled
from tests.oidc.forged import FORGERIES, Forger
from tests.oidc.signing import ALGORITHMS, b64, jwk, number, private_key
from wherry.security.oidc.compact import parse_strictly, pieces
from wherry.security.oidc.key_set import KeySet, parse_key_set
from wherry.security.oidc.refusal import TokenRefusal
from wherry.security.oidc.verifying import Claims, Expectations, key_named, verify

ISSUER = "https://id.example/realms/shop"
EXPECTED = Expectations(issuer=ISSUER, audiences=("wherry",))


REASONS: dict[str, set[Claims | TokenRefusal]] = {
    "no signature": {TokenRefusal.FORM, TokenRefusal.ALGORITHM, TokenRefusal.SIGNATURE},
    "a symmetric key": {TokenRefusal.ALGORITHM},
    "another key": {
        TokenRefusal.SIGNATURE,
        TokenRefusal.UNKNOWN_KEY,
        TokenRefusal.HEADER,
        TokenRefusal.NO_KEY_ID,
        TokenRefusal.KEY_MISMATCH,
    },
    "another algorithm": {
        TokenRefusal.KEY_MISMATCH,
        TokenRefusal.SIGNATURE,
        TokenRefusal.ALGORITHM,
        TokenRefusal.HEADER,
    },
    "a changed token": {TokenRefusal.SIGNATURE, TokenRefusal.FORM},
    "a form that is not allowed": {TokenRefusal.FORM, TokenRefusal.SIZE},
    "a header that is not spoken": {TokenRefusal.HEADER, TokenRefusal.KIND},
    "another kind of token": {TokenRefusal.KIND},
    "another issuer": {TokenRefusal.ISSUER},
    "another audience": {TokenRefusal.AUDIENCE, TokenRefusal.CLAIMS},
    "another time": {TokenRefusal.EXPIRED, TokenRefusal.TOO_EARLY, TokenRefusal.CLAIMS},
    "another subject": {TokenRefusal.SUBJECT},
}
"""By the group of a forged token: what it may be refused for, so that it is not refused for something else first."""


def keys(*more, **changes) -> KeySet:
    listed = [jwk(algorithm, **changes) for algorithm in ALGORITHMS]
    return parse_key_set(json.dumps({"keys": [*listed, *more]}).encode())


@pytest.fixture(scope="module")
def known() -> KeySet:
    return keys()


def outcome(token: str, known: KeySet, expected: Expectations = EXPECTED, now: float = 0.0) -> Claims | TokenRefusal:
    return verify(token, known, expected, now or time.time())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_each_algorithm_is_accepted(algorithm, known):
    found = outcome(Forger(ISSUER, algorithm=algorithm).good(), known)
    assert isinstance(found, Claims)
    assert found.name == "oidc:ann"


def test_ed25519_is_another_name_of_eddsa():
    forger = Forger(ISSUER, algorithm="EdDSA")
    listed = parse_key_set(json.dumps({"keys": [jwk("EdDSA", alg=None)]}).encode())
    assert isinstance(outcome(forger.signed(forger.header(alg="Ed25519")), listed), Claims)


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_token_is_refused(name, known):
    forger = Forger(ISSUER)
    assert isinstance(outcome(forger.good(), known), Claims), "but for the one thing, the token would be good"
    assert outcome(FORGERIES[name](forger), known) in REASONS[name.partition(":")[0]]


@pytest.mark.parametrize(
    "text", ['{"a":"' + r"\"" * 2_000, '{"a":"' + r"\"" * 2_000 + "\\", '"' * 2_001, "[" * 9 + '"']
)
def test_each_sign_of_a_document_is_read_once(text):
    """What matches wherever it begins never starts again behind its first sign: a failure there made it quadratic."""
    spans = [piece.span() for piece in pieces(text)]
    assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(text)
    with pytest.raises(ValueError):
        parse_strictly(text.encode())


@settings(max_examples=scaled(300))
@given(st.text(alphabet='"\\[]{}a,\n'))
def test_no_text_has_a_gap_between_its_pieces(text):
    assert "".join(piece[0] for piece in pieces(text)) == text


def test_claims_are_not_parsed_before_the_signature_is_good(known):
    forger = Forger(ISSUER)
    stranger = forger.signed(claims=b"no JSON", key=private_key("RS256", "stranger"))
    assert outcome(stranger, known) is TokenRefusal.SIGNATURE
    assert outcome(forger.signed(claims=b"no JSON"), known) is TokenRefusal.FORM


@pytest.mark.parametrize("text", ["hello", "a.b", "a.b.c", "eyJhbGciOiJub25lIn0.e30.AA", "x" * 20_000])
def test_a_text_that_cannot_be_a_token_names_no_key(text):
    assert key_named(text) is None


def test_the_key_id_is_read_from_the_header_alone():
    forger = Forger(ISSUER)
    assert key_named(forger.signed(claims=b"no JSON")) == ("RS256", "provider-RS256")
    assert key_named(forger.signed(forger.header(kid=None))) == ("RS256", None)


def test_there_are_more_than_sixty_forged_tokens():
    assert len(FORGERIES) >= 100


@pytest.mark.parametrize(
    "changes",
    [
        *({"aud": "wherry"}, {"aud": ["wherry"]}, {"nbf": 1}, {"iat": None}, {"azp": None}),
        *({"exp": 4e9}, {"exp": 2.0**40 + 0.5}, {"sub": "ünï"}, {"sub": "a" * 251}),
    ],
)
def test_what_a_provider_may_write_is_accepted(changes, known):
    assert isinstance(outcome(Forger(ISSUER).good(**changes), known), Claims)


@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt"])
def test_a_token_that_is_marked_in_its_header_is_accepted(typ, known):
    forger = Forger(ISSUER)
    assert isinstance(outcome(forger.signed(forger.header(typ=typ), forger.claims(typ=None)), known), Claims)


def test_an_unmarked_token_is_accepted_only_where_that_is_configured(known):
    forger, lenient = Forger(ISSUER), Expectations(issuer=ISSUER, audiences=("wherry",), unmarked=True)
    plain = forger.signed(forger.header(typ=None), forger.claims(typ=None))
    assert outcome(plain, known) is TokenRefusal.KIND
    assert isinstance(outcome(plain, known, lenient), Claims)
    for name in ("nonce", "at_hash", "c_hash", "s_hash", "events", "sid", "auth_time", "acr"):
        assert isinstance(outcome(forger.good(**{name: "x"}), known, lenient), Claims), "marked, it may have it"
        assert outcome(forger.good(typ=None, **{name: "x"}), known, lenient) is TokenRefusal.KIND
    assert outcome(forger.good(typ="ID"), known, lenient) is TokenRefusal.KIND


def test_leeway_counts_at_both_ends(known):
    forger, now = Forger(ISSUER), 1_000_000.0
    good = forger.good(exp=1_000_000, nbf=1_000_000, iat=1_000_000)
    assert outcome(good, known, now=now - 30.5) is TokenRefusal.TOO_EARLY
    assert isinstance(outcome(good, known, now=now - 30), Claims)
    last = outcome(good, known, now=now + 29.5)
    assert isinstance(last, Claims)
    assert last.expires_s == now + 30
    assert outcome(good, known, now=now + 30) is TokenRefusal.EXPIRED


def test_only_parties_that_are_named_may_use_their_tokens(known):
    expected = Expectations(issuer=ISSUER, audiences=("wherry",), parties=("shop",))
    forger = Forger(ISSUER)
    assert isinstance(outcome(forger.good(), known, expected), Claims)
    assert isinstance(outcome(forger.good(azp=None, client_id="shop"), known, expected), Claims)
    for changes in ({"azp": "other"}, {"azp": None}, {"azp": "other", "client_id": "shop"}):
        assert outcome(forger.good(**changes), known, expected) is TokenRefusal.PARTY


def test_another_claim_can_name_the_caller(known):
    expected = Expectations(issuer=ISSUER, audiences=("wherry",), name_claim="client_id")
    found = outcome(Forger(ISSUER).good(client_id="shop"), known, expected)
    assert isinstance(found, Claims)
    assert found.name == "oidc:shop"
    assert outcome(Forger(ISSUER).good(), known, expected) is TokenRefusal.SUBJECT


def test_a_token_without_a_key_id_is_accepted_if_there_is_one_key():
    forger = Forger(ISSUER)
    one = parse_key_set(json.dumps({"keys": [jwk("RS256")]}).encode())
    assert isinstance(outcome(forger.signed(forger.header(kid=None)), one), Claims)
    assert (
        outcome(forger.signed(forger.header(kid=None), key=private_key("RS256", "stranger")), one)
        is TokenRefusal.SIGNATURE
    )


@pytest.mark.parametrize(
    "changes",
    [
        *({"use": "enc"}, {"key_ops": ["sign"]}, {"key_ops": "verify"}, {"alg": "RS512"}, {"alg": 1}, {"kid": 1}),
        *({"kid": "k" * 300}, {"kty": "oct"}, {"kty": None}, {"n": "!!"}, {"n": None}, {"e": "AQ"}, {"e": 3}),
        {"e": "_" * 12},
    ],
)
def test_a_key_that_is_not_for_this_verifies_nothing(changes):
    listed = parse_key_set(json.dumps({"keys": [jwk("RS256", **changes), jwk("ES256")]}).encode())
    assert isinstance(outcome(Forger(ISSUER).good(), listed), TokenRefusal)
    assert isinstance(outcome(Forger(ISSUER, algorithm="ES256").good(), listed), Claims), "the other key is good"


def test_a_key_of_less_than_2048_bits_verifies_nothing():
    listed = parse_key_set(json.dumps({"keys": [jwk("RS256", "weak"), jwk("ES256")]}).encode())
    forger = Forger(ISSUER)
    token = forger.signed(forger.header(kid="weak-RS256"), key=private_key("RS256", "weak"))
    assert outcome(token, listed) is TokenRefusal.UNKNOWN_KEY


def _weak_ed(raw: bytes) -> dict[str, str]:
    return {"kty": "OKP", "crv": "Ed25519", "x": b64(raw), "kid": "weak"}


ED25519_P = (1 << 255) - 19
ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7


@pytest.mark.parametrize("y", [0, 1, ED25519_P - 1, ED25519_P, ED25519_P + 1, ORDER_8, ED25519_P - ORDER_8])
@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_a_point_of_small_order_verifies_nothing(y, sign):
    assert not parse_key_set(json.dumps({"keys": [_weak_ed((y | sign).to_bytes(32, "little"))]}).encode()).keys


def test_an_even_modulus_or_exponent_verifies_nothing():
    good = private_key("RS256").public_key().public_numbers()
    for n, e in ((good.n - 1, good.e), (good.n, 65_538), (good.n, 1)):
        listed = {"kty": "RSA", "n": number(n), "e": number(e), "kid": "weak"}
        assert not parse_key_set(json.dumps({"keys": [listed]}).encode()).keys


def test_a_curve_verifies_its_own_algorithm_only():
    listed = parse_key_set(json.dumps({"keys": [jwk("ES384", alg=None)]}).encode())
    forger = Forger(ISSUER, algorithm="ES384")
    wrong = forger.signed(forger.header(alg="ES256"), algorithm="ES256")
    assert outcome(wrong, listed) is TokenRefusal.KEY_MISMATCH
    assert isinstance(outcome(forger.good(), listed), Claims)


def test_two_keys_of_one_id_and_type_are_not_tried_in_turn():
    twins = [jwk("RS256"), jwk("RS256", "stranger", kid="provider-RS256")]
    listed = parse_key_set(json.dumps({"keys": twins}).encode())
    assert outcome(Forger(ISSUER).good(), listed) is TokenRefusal.KEY_MISMATCH


def test_private_members_of_a_published_key_are_not_read():
    listed = parse_key_set(json.dumps({"keys": [jwk("RS256", private=True)]}).encode())
    assert isinstance(outcome(Forger(ISSUER).good(), listed), Claims)
    assert not hasattr(listed.keys[0].public, "private_numbers")


def test_keys_beyond_the_bound_are_left_out():
    others = [jwk("EdDSA", kid=f"other-{number}") for number in range(100)]
    assert len(parse_key_set(json.dumps({"keys": others}).encode())) == 64


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": [], "keys": []}', b"\xff", b"[" * 99])
def test_what_is_no_document_of_keys_is_an_error(raw):
    with pytest.raises(ValueError):
        parse_key_set(raw)


@settings(max_examples=scaled(300))
@given(st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]{0,60}(\.[A-Za-z0-9_-]{0,60}){0,4}", fullmatch=True))
def test_no_text_is_a_fault(text):
    assert isinstance(verify(text, KeySet(), EXPECTED, 0.0), TokenRefusal)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_NAMES = st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "typ", "azp", "alg", "kid", "crit", "realm_access"])


@settings(max_examples=scaled(150))
@given(st.dictionaries(_NAMES, _JSON, min_size=1), st.dictionaries(_NAMES, _JSON))
def test_signed_claims_of_any_type_are_no_fault(claims, header):
    """Whatever comes signed is accepted whole or refused: a claim of another type raises nothing else."""
    forger = Forger(ISSUER, algorithm="EdDSA")
    token = forger.signed(forger.header() | header, forger.claims() | claims)
    listed = parse_key_set(json.dumps({"keys": [jwk("EdDSA")]}).encode())
    assert isinstance(verify(token, listed, EXPECTED, time.time()), Claims | TokenRefusal)


@settings(max_examples=scaled(200))
@given(st.data())
def test_no_flipped_bit_is_accepted(data):
    listed = parse_key_set(json.dumps({"keys": [jwk("EdDSA")]}).encode())
    good = Forger(ISSUER, algorithm="EdDSA").good()
    at = data.draw(st.integers(0, len(good) - 1))
    bit = data.draw(st.integers(0, 6))
    changed = good[:at] + chr(ord(good[at]) ^ (1 << bit)) + good[at + 1 :]
    assert isinstance(verify(changed, listed, EXPECTED, time.time()), TokenRefusal)
