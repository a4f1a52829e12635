"""Tokens that nobody may accept. Each is right but for one thing, so that no other check can refuse it first.

Many are signed with the provider's own key: those for other audiences, of other kinds and times are real tokens of a
provider, only not for this node, or not now.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.oidc.signing import b64, encoded, jwk, private_key, token

Forgery = Callable[["Forger"], str]
FORGERIES: dict[str, Forgery] = {}

SECRET_MARK = "tell-no-one"
"""In a claim of every token: an error or a log line that shows a token's content would show it."""


class Forger:
    """Makes tokens as the provider would, with changes."""

    def __init__(self, issuer: str, audience: str = "wherry", algorithm: str = "RS256") -> None:
        self.issuer, self.audience, self.algorithm = issuer, audience, algorithm

    def header(self, **changes: Any) -> dict[str, Any]:
        usual = {"alg": self.algorithm, "typ": "JWT", "kid": f"provider-{self.algorithm}"}
        return {name: value for name, value in (usual | changes).items() if value is not None}

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        usual = {
            "iss": self.issuer,
            "aud": ["account", self.audience],
            "sub": "ann",
            "azp": "shop",
            "typ": "Bearer",
            "jti": SECRET_MARK,
            "iat": now,
            "exp": now + 600,
            "scope": "openid orders",
            "realm_access": {"roles": ["clerk", "root"]},
            "resource_access": {"wherry": {"roles": ["reader"]}},
        }
        return {name: value for name, value in (usual | changes).items() if value is not None}

    def good(self, **changes: Any) -> str:
        return self.signed(claims=self.claims(**changes))

    def signed(self, header: Any = None, claims: Any = None, *, key: Any = None, algorithm: str = "") -> str:
        algorithm = algorithm or self.algorithm
        made = self.header() if header is None else header
        said = self.claims() if claims is None else claims
        return token(made, said, private_key(self.algorithm) if key is None else key, algorithm)

    def raw(self) -> bytes:
        return json.dumps(self.claims()).encode()

    def pem(self) -> bytes:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return private_key(self.algorithm).public_key().public_bytes(serialization.Encoding.PEM, form)


def forged(name: str) -> Callable[[Forgery], Forgery]:
    def keep(make: Forgery) -> Forgery:
        assert name not in FORGERIES
        FORGERIES[name] = make
        return make

    return keep


def each(prefix: str, cases: dict[str, Forgery]) -> None:
    for name, make in cases.items():
        forged(f"{prefix}: {name}")(make)


def unsigned(forger: Forger, algorithm: str, end: str = "") -> str:
    return f"{encoded(forger.header(alg=algorithm))}.{encoded(forger.claims())}.{end}"


def _der(forger: Forger) -> str:
    signed = f"{encoded(forger.header(alg='ES256', kid='provider-ES256'))}.{encoded(forger.claims())}"
    return f"{signed}.{b64(private_key('ES256').sign(signed.encode(), ec.ECDSA(hashes.SHA256())))}"


def _with_claims(forger: Forger, claims: dict[str, Any]) -> str:
    header, _, end = forger.signed().split(".")
    return f"{header}.{encoded(claims)}.{end}"


def _with_header(forger: Forger, header: dict[str, Any]) -> str:
    _, claims, end = forger.signed().split(".")
    return f"{encoded(header)}.{claims}.{end}"


def _last_letter(text: str) -> str:
    """Spell the same bytes otherwise: the last letter of 256 bytes has four bits that say nothing."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return text[:-1] + letters[letters.index(text[-1]) ^ 1]


def _as_json(forger: Forger) -> str:
    header, claims, end = forger.signed().split(".")
    return json.dumps({"payload": claims, "protected": header, "signature": end}).replace(" ", "")


each(
    "no signature",
    {
        "alg none, nothing behind the dot": lambda f: unsigned(f, "none"),
        "alg None in capitals": lambda f: unsigned(f, "NoNe"),
        "alg none with a signature": lambda f: f.signed(f.header(alg="none")),
        "alg none and a letter behind the dot": lambda f: unsigned(f, "none", "AA"),
        "the right alg, nothing behind the dot": lambda f: unsigned(f, f.algorithm),
        "the right alg, a signature of zeros": lambda f: unsigned(f, f.algorithm, b64(bytes(256))),
        "no alg at all": lambda f: f.signed(f.header(alg=None)),
        "alg is a number": lambda f: f.signed(f.header(alg=256)),
        "alg is a list": lambda f: f.signed(f.header(alg=["RS256"])),
    },
)
each(
    "a symmetric key",
    {
        "HS256 with the public key as PEM": lambda f: f.signed(f.header(alg="HS256"), key=f.pem(), algorithm="HS256"),
        "HS384 with the public key as PEM": lambda f: f.signed(f.header(alg="HS384"), key=f.pem(), algorithm="HS384"),
        "HS512 with the modulus": lambda f: f.signed(
            f.header(alg="HS512"), key=jwk(f.algorithm)["n"].encode(), algorithm="HS512"
        ),
        "HS256 with an empty key": lambda f: f.signed(f.header(alg="HS256"), key=b"", algorithm="HS256"),
        "HS256 without a key id": lambda f: f.signed(f.header(alg="HS256", kid=None), key=f.pem(), algorithm="HS256"),
    },
)
each(
    "another key",
    {
        "of a stranger, under the provider's key id": lambda f: f.signed(key=private_key("RS256", "stranger")),
        "of a stranger, under an own key id": lambda f: f.signed(
            f.header(kid="stranger-RS256"), key=private_key("RS256", "stranger")
        ),
        "in the header as jwk": lambda f: f.signed(
            f.header(jwk=jwk("RS256", "stranger")), key=private_key("RS256", "stranger")
        ),
        "behind jku": lambda f: f.signed(
            f.header(jku="https://evil.example/keys"), key=private_key("RS256", "stranger")
        ),
        "jku and the right signature": lambda f: f.signed(f.header(jku=f"{f.issuer}/jwks")),
        "behind x5u": lambda f: f.signed(f.header(x5u="https://evil.example/chain")),
        "in the header as x5c": lambda f: f.signed(f.header(x5c=["MIIB"])),
        "the right jwk in the header": lambda f: f.signed(f.header(jwk=jwk("RS256"))),
        "no key id, though there are several keys": lambda f: f.signed(f.header(kid=None)),
        "an empty key id": lambda f: f.signed(f.header(kid="")),
        "a key id that is a number": lambda f: f.signed(f.header(kid=1)),
        "a key id that is null": lambda f: f.signed({**f.header(), "kid": None}),
        "a key id that is a path": lambda f: f.signed(f.header(kid="../../../../dev/null")),
        "a key id that is SQL": lambda f: f.signed(f.header(kid="x' OR '1'='1")),
        "a key id of a thousand letters": lambda f: f.signed(f.header(kid="k" * 1_000)),
        "the provider's key of another type": lambda f: f.signed(
            f.header(kid="provider-ES256"), key=private_key("ES256"), algorithm="ES256"
        ),
    },
)
each(
    "another algorithm",
    {
        "RS512 with a key for RS256": lambda f: f.signed(f.header(alg="RS512"), algorithm="RS512"),
        "PS256 with a key for RS256": lambda f: f.signed(f.header(alg="PS256"), algorithm="PS256"),
        "PS256 named, RS256 signed": lambda f: f.signed(
            f.header(alg="PS256", kid="provider-PS256"), key=private_key("PS256"), algorithm="RS256"
        ),
        "ES256 named, for the key of RSA": lambda f: f.signed(f.header(alg="ES256")),
        "RS256 named, for the key of EC": lambda f: f.signed(f.header(kid="provider-ES256")),
        "EdDSA named, for the key of RSA": lambda f: f.signed(f.header(alg="EdDSA")),
        "rs256 in small letters": lambda f: f.signed(f.header(alg="rs256")),
        "ES256 with r and s of zero": lambda f: (
            f"{encoded(f.header(alg='ES256', kid='provider-ES256'))}.{encoded(f.claims())}.{b64(bytes(64))}"
        ),
        "ES256 as DER, not as r and s": _der,
        "an encrypted token's algorithm": lambda f: f.signed(f.header(alg="RSA-OAEP", enc="A256GCM")),
    },
)
each(
    "a changed token",
    {
        "other claims under the signature": lambda f: _with_claims(f, f.claims(sub="root")),
        "a claim more under the signature": lambda f: _with_claims(f, f.claims(admin=True)),
        "another header under the signature": lambda f: _with_header(f, f.header(typ="at+jwt")),
        "the last letter of the signature": lambda f: _last_letter(f.signed()),
        "a signature cut short": lambda f: f.signed()[:-4],
        "a signature with more behind it": lambda f: f.signed() + "AAAA",
        "padding behind the signature": lambda f: f.signed() + "==",
    },
)
each(
    "a form that is not allowed",
    {
        "two parts": lambda f: f.signed().rpartition(".")[0],
        "four parts": lambda f: f.signed() + ".AAAA",
        "five parts, as an encrypted token has": lambda f: ".".join([*f.signed().split("."), "AAAA", "AAAA"]),
        "a JWS as JSON": _as_json,
        "a blank inside": lambda f: f.signed().replace(".", ". ", 1),
        "standard base64": lambda f: f.signed(claims=f.claims(x="???>>>~~~")).replace("_", "/").replace("-", "+") + "+",
        "the header twice over": lambda f: f.signed(encoded(f.header()).encode()),
        "a header that is a list": lambda f: f.signed([f.header()]),
        "claims that are a list": lambda f: f.signed(claims=[f.claims()]),
        "claims that are text": lambda f: f.signed(claims="ann"),
        "claims that are no JSON": lambda f: f.signed(claims=b"sub=ann"),
        "claims that are no UTF-8": lambda f: f.signed(claims=b'{"sub":"\xff"}'),
        "a member of the header twice": lambda f: f.signed(b'{"alg":"none",' + json.dumps(f.header()).encode()[1:]),
        "a claim twice": lambda f: f.signed(claims=b'{"sub":"root",' + f.raw()[1:]),
        "a claim of a nested object twice": lambda f: f.signed(claims=f.raw()[:-1] + b',"a":{"b":1,"b":2}}'),
        "NaN": lambda f: f.signed(claims=f.raw()[:-1] + b',"a":NaN}'),
        "lists in lists in lists": lambda f: f.signed(claims=f.raw()[:-1] + b',"a":' + b"[" * 50 + b"]" * 50 + b"}"),
        "a claim that has no end": lambda f: f.signed(claims=b'{"a":"' + rb"\"" * 2_000),
        "a claim that has no end, and a backslash": lambda f: f.signed(claims=b'{"a":"' + rb"\"" * 2_000 + b"\\"),
        "a header that has no end": lambda f: f.signed(b'{"alg":"' + rb"\"" * 600),
        "larger than 16 KiB": lambda f: f.signed(claims=f.claims(a="a" * 13_000)),
        "a header of 3 KiB": lambda f: f.signed(f.header(a="a" * 3_000)),
    },
)
each(
    "a header that is not spoken",
    {
        "crit with a name": lambda f: f.signed(f.header(crit=["exp"], exp=1)),
        "crit, empty": lambda f: f.signed(f.header(crit=[])),
        "b64 false": lambda f: f.signed(f.header(b64=False, crit=["b64"])),
        "a token in a token": lambda f: f.signed(f.header(cty="JWT")),
        "compressed": lambda f: f.signed(f.header(zip="DEF")),
        "typ of a logout token": lambda f: f.signed(f.header(typ="logout+jwt")),
        "typ of a proof of possession": lambda f: f.signed(f.header(typ="dpop+jwt")),
        "typ that is a number": lambda f: f.signed(f.header(typ=1)),
    },
)
each(
    "another kind of token",
    {
        "Keycloak's ID token": lambda f: f.good(typ="ID"),
        "Keycloak's refresh token": lambda f: f.good(typ="Refresh"),
        "Keycloak's offline token": lambda f: f.good(typ="Offline"),
        "Keycloak's logout token": lambda f: f.good(typ="Logout"),
        "a plain token without a mark": lambda f: f.good(typ=None),
        "an ID token of others": lambda f: f.good(typ=None, nonce="n", at_hash="h"),
        "a typ that is a list": lambda f: f.good(typ=["Bearer"]),
    },
)
each(
    "another issuer",
    {
        "of another realm": lambda f: f.good(iss=f.issuer + "2"),
        "with a slash more": lambda f: f.good(iss=f.issuer + "/"),
        "in capitals": lambda f: f.good(iss=f.issuer.upper()),
        "none": lambda f: f.good(iss=None),
        "in a list": lambda f: f.good(iss=[f.issuer]),
    },
)
each(
    "another audience",
    {
        "of another client": lambda f: f.good(aud="account"),
        "that begins alike": lambda f: f.good(aud=f.audience + "2"),
        "none": lambda f: f.good(aud=None),
        "an empty list": lambda f: f.good(aud=[]),
        "a number among them": lambda f: f.good(aud=[f.audience, 1]),
        "an object": lambda f: f.good(aud={f.audience: True}),
        "a hundred of them": lambda f: f.good(aud=[f.audience] * 100),
        "azp that is a list": lambda f: f.good(azp=["shop"]),
    },
)
each(
    "another time",
    {
        "expired an hour ago": lambda f: f.good(exp=int(time.time()) - 3_600),
        "expired in 1970": lambda f: f.good(exp=0),
        "that never expires": lambda f: f.good(exp=None),
        "exp as text": lambda f: f.good(exp=str(int(time.time()) + 600)),
        "exp that is true": lambda f: f.good(exp=True),
        "exp that is infinite": lambda f: f.signed(claims=f.raw().replace(b'"exp": 1', b'"exp": 1e999, "x": 1')),
        "exp of four hundred digits": lambda f: f.good(exp=10**400),
        "exp below zero": lambda f: f.good(exp=-1),
        "nbf in an hour": lambda f: f.good(nbf=int(time.time()) + 3_600),
        "nbf as text": lambda f: f.good(nbf="0"),
        "iat in an hour": lambda f: f.good(iat=int(time.time()) + 3_600),
        "iat that is an object": lambda f: f.good(iat={}),
    },
)
each(
    "another subject",
    {
        "none": lambda f: f.good(sub=None),
        "empty": lambda f: f.good(sub=""),
        "a number": lambda f: f.good(sub=7),
        "with a control character of C1": lambda f: f.good(sub="ann\x85root"),
        "with a mark that turns the line": lambda f: f.good(sub="ann\u202etoor"),
        "with a letter that is not seen": lambda f: f.good(sub="an\u200bn"),
        "with a line break of Unicode": lambda f: f.good(sub="ann\u2028root"),
        "with a line break": lambda f: f.good(sub="ann\r\nroot"),
        "of a thousand letters": lambda f: f.good(sub="a" * 1_000),
    },
)


def assert_nothing_leaked(seen: str, tokens: Iterable[str]) -> None:
    """Fail if a text has a claim that only tokens have, or a part of one of the tokens."""
    assert SECRET_MARK not in seen
    for each in tokens:
        assert not any(part[:24] in seen for part in each.split(".") if len(part) >= 24)
