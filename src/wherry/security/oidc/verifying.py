"""The verification of an access token: a pure decision over the token, the keys, the expectations and the time.

Each step raises at the first rule that is broken; `verify` returns the reason. The order is: size and form, header,
key, signature, then the claims, so that nothing is believed, nor even parsed, that is not signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from wherry.model import check, limits
from wherry.model.errors import InvalidInput
from wherry.security.keys import BEARER_PREFIX
from wherry.security.oidc.compact import taken_apart
from wherry.security.oidc.key_set import ALGORITHMS, KEY_ID_CHARS_MAX, KeySet
from wherry.security.oidc.refusal import TokenRefusal, TokenRefused

LEEWAY_S_MAX = 300.0
AUDIENCES_MAX = 64
TIME_S_MAX = float(1 << 53)

_TYPES = ("at+jwt", "application/at+jwt", "jwt", "application/jwt")
_MARKED_TYPES = _TYPES[:2]
_EMBEDDED_KEYS = ("jku", "x5u", "jwk", "x5c")
_NOT_SPOKEN = ("crit", "b64", "cty", "zip", "enc")
_OF_OTHER_TOKENS = ("nonce", "at_hash", "c_hash", "s_hash", "events", "sid", "auth_time", "acr")
"""Claims of ID tokens and logout tokens; some providers write the last three into access tokens, but mark these."""


class Expectations(msgspec.Struct, frozen=True, kw_only=True):
    """What a token must say.

    Parameters
    ----------
    issuer
        Equal to `iss`, character by character.
    audiences
        One of them is in `aud`.
    parties
        If any are given, `azp` (or `client_id`, where there is no `azp`) is one of them.
    unmarked
        Whether to accept a token that does not say that it is an access token, by `typ` of its header (`at+jwt`) or
        by Keycloak's claim `typ` (`Bearer`). One that looks like an ID token is refused even so.
    name_claim
        The claim that names the caller.
    leeway_s
        How far clocks may differ.
    """

    issuer: str
    audiences: tuple[str, ...]
    parties: tuple[str, ...] = ()
    unmarked: bool = False
    name_claim: str = "sub"
    leeway_s: float = 30.0


class Claims(msgspec.Struct, frozen=True):
    """The claims of a token that was verified."""

    name: str
    """`oidc:` and the subject."""
    expires_s: float
    """Unix time until which the token is good, leeway included."""
    values: Mapping[str, Any]


def verify(token: str, keys: KeySet, expected: Expectations, now_s: float) -> Claims | TokenRefusal:
    """Return the claims of an access token that may be believed, else the reason why not."""
    try:
        parts = taken_apart(token)
        header = parts.header()
        algorithm, key_id = _header(header)
        key = keys.key_for(key_id, algorithm)
        if not key.verifies(algorithm, parts.signed, parts.signature):
            raise TokenRefused(TokenRefusal.SIGNATURE)
        return _claims(header, parts.claims(), expected, now_s)
    except TokenRefused as refused:
        return refused.reason


def key_named(token: str) -> tuple[str, str | None] | None:
    """Return the algorithm and the key id of a token; None if its form or its header cannot be accepted.

    Nothing is verified, and only the header is read.
    """
    try:
        return _header(taken_apart(token).header())
    except TokenRefused:
        return None


def _header(header: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the algorithm and the key id."""
    if any(name in header for name in (*_EMBEDDED_KEYS, *_NOT_SPOKEN)):
        raise TokenRefused(TokenRefusal.HEADER)
    algorithm, key_id, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefused(TokenRefusal.ALGORITHM)
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenRefused(TokenRefusal.KIND)
    if "kid" in header and not (isinstance(key_id, str) and 0 < len(key_id) <= KEY_ID_CHARS_MAX):
        raise TokenRefused(TokenRefusal.HEADER)
    return algorithm, key_id


def _claims(header: Mapping[str, Any], claims: dict[str, Any], expected: Expectations, now_s: float) -> Claims:
    if claims.get("iss") != expected.issuer:
        raise TokenRefused(TokenRefusal.ISSUER)
    _check_kind(header, claims, unmarked=expected.unmarked)
    _check_audience(claims, expected)
    expires_s = _check_times(claims, expected.leeway_s, now_s)
    try:
        subject = check.name("sub", claims.get(expected.name_claim), limits.KEY_NAME_BYTES_MAX - len(BEARER_PREFIX))
    except InvalidInput:
        raise TokenRefused(TokenRefusal.SUBJECT) from None
    if not subject.isprintable():  # signs that turn or end a line in a log, or cannot be seen
        raise TokenRefused(TokenRefusal.SUBJECT)
    return Claims(BEARER_PREFIX + subject, expires_s, claims)


def _check_kind(header: Mapping[str, Any], claims: Mapping[str, Any], *, unmarked: bool) -> None:
    """Refuse ID tokens, refresh tokens and the like, which the same provider signs with the same key."""
    claimed = claims.get("typ")
    if claimed is not None and not (isinstance(claimed, str) and claimed.lower() == "bearer"):
        raise TokenRefused(TokenRefusal.KIND)
    if claimed is not None or str(header.get("typ", "")).lower() in _MARKED_TYPES:
        return
    if not unmarked or any(name in claims for name in _OF_OTHER_TOKENS):
        raise TokenRefused(TokenRefusal.KIND)


def _check_audience(claims: Mapping[str, Any], expected: Expectations) -> None:
    given = claims.get("aud")
    audiences = [given] if isinstance(given, str) else given
    if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
        raise TokenRefused(TokenRefusal.AUDIENCE)
    if len(audiences) > AUDIENCES_MAX or not any(each in expected.audiences for each in audiences):
        raise TokenRefused(TokenRefusal.AUDIENCE)
    party = claims.get("azp", claims.get("client_id"))
    if party is not None and not isinstance(party, str):
        raise TokenRefused(TokenRefusal.CLAIMS)
    if expected.parties and party not in expected.parties:
        raise TokenRefused(TokenRefusal.PARTY)


def _check_times(claims: Mapping[str, Any], leeway_s: float, now_s: float) -> float:
    """Return until when the token is good."""
    expires_s = _instant(claims, "exp")
    if expires_s is None:
        raise TokenRefused(TokenRefusal.CLAIMS)
    if now_s >= expires_s + leeway_s:
        raise TokenRefused(TokenRefusal.EXPIRED)
    for name in ("nbf", "iat"):
        begins_s = _instant(claims, name)
        if begins_s is not None and begins_s > now_s + leeway_s:
            raise TokenRefused(TokenRefusal.TOO_EARLY)
    return expires_s + leeway_s


def _instant(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a claim in Unix seconds, None if it is not there; `1e999` is infinite, and no instant."""
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(TokenRefusal.CLAIMS)
    if not 0 <= value <= TIME_S_MAX:  # compared as it is: a whole number of 400 digits is no float
        raise TokenRefused(TokenRefusal.CLAIMS)
    return float(value)
