"""The public keys of a provider, from its JWKS document, and which of them may verify which algorithm.

A key that this module does not understand, or that is too weak, is left out: a provider may publish keys for others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm, get_default_algorithms
from jwt.exceptions import PyJWTError

from wherry.security.oidc.compact import parse_strictly
from wherry.security.oidc.refusal import TokenRefusal, TokenRefused

KEYS_MAX = 64
"""Of one document; those behind them are left out. A provider has two or three."""

KEY_ID_CHARS_MAX = 256
RSA_BITS_MIN, RSA_BITS_MAX = 2_048, 8_192
"""A smaller key can be broken; a larger one makes each verification a burden."""

RSA_EXPONENT_MIN, RSA_EXPONENT_MAX = 3, 1 << 32

_ED25519_P = (1 << 255) - 19
_ED25519_D = -121_665 * pow(121_666, -1, _ED25519_P) % _ED25519_P
"""The field and the curve of RFC 8032."""

_EC = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ED = ("EdDSA", "Ed25519")
"""`EdDSA`, and what RFC 9864 calls it with the curve of Ed25519."""

ALGORITHMS = (*_RSA, *_EC, *_ED)
"""All that are accepted: every one has a public key, so that what verifies a token cannot make one."""

_VERIFIERS = {name: get_default_algorithms()["EdDSA" if name == "Ed25519" else name] for name in ALGORITHMS}


class ProviderKey(NamedTuple):
    """A public key of a provider."""

    id: str | None
    algorithms: tuple[str, ...]
    """Those that it may verify: by its type and curve, and by its `alg` if it has one."""
    public: Any

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Return whether a signature is of this key; `algorithm` is one of its own."""
        try:
            return bool(_VERIFIERS[algorithm].verify(signed, self.public, signature))
        except (PyJWTError, ValueError):
            return False


class KeySet:
    """The keys of one JWKS document."""

    def __init__(self, keys: tuple[ProviderKey, ...] = ()) -> None:
        self.keys = keys

    def __len__(self) -> int:
        """Return how many keys can verify."""
        return len(self.keys)

    def knows(self, key_id: str) -> bool:
        """Return whether a key has this id."""
        return any(key.id == key_id for key in self.keys)

    def key_for(self, key_id: str | None, algorithm: str) -> ProviderKey:
        """Return the one key that a header names, or raise `TokenRefused`: no key is ever tried at a guess."""
        if not self.keys:
            raise TokenRefused(TokenRefusal.UNKNOWN_KEY)
        if key_id is None and len(self.keys) > 1:
            raise TokenRefused(TokenRefusal.NO_KEY_ID)
        named = [key for key in self.keys if key_id is None or key.id == key_id]
        if not named:
            raise TokenRefused(TokenRefusal.UNKNOWN_KEY)
        fitting = [key for key in named if algorithm in key.algorithms]
        if len(fitting) != 1:  # several keys of one id are told apart by their type, or not at all
            raise TokenRefused(TokenRefusal.KEY_MISMATCH)
        return fitting[0]


def parse_key_set(raw: bytes) -> KeySet:
    """Return the keys of a JWKS document; raise `ValueError` if it is none."""
    document = parse_strictly(raw)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("a JWKS document has a list of keys")
    keys = (_key(each) for each in listed[:KEYS_MAX] if isinstance(each, dict))
    return KeySet(tuple(key for key in keys if key is not None))


def _key(jwk: dict[str, Any]) -> ProviderKey | None:
    """Return a key that verifies signatures; None for any other."""
    key_id, use, operations = jwk.get("kid"), jwk.get("use", "sig"), jwk.get("key_ops", ["verify"])
    if use != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    if key_id is not None and not (isinstance(key_id, str) and 0 < len(key_id) <= KEY_ID_CHARS_MAX):
        return None
    try:
        public, fitting = _public(jwk)
    except (PyJWTError, ValueError, TypeError, KeyError, OverflowError):
        return None
    algorithms = tuple(name for name in fitting if jwk.get("alg", name) == name)
    return ProviderKey(key_id, algorithms, public) if algorithms else None


def _public(jwk: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Return the public key of a JWK and the algorithms of its type; members of a private key are not read."""
    kind = jwk.get("kty")
    if kind == "RSA":
        key = RSAAlgorithm.from_jwk({name: jwk[name] for name in ("kty", "n", "e")})
        numbers = key.public_numbers()  # type: ignore[union-attr]
        is_strong = RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX and numbers.n % 2 == 1
        return (
            key,
            _RSA if is_strong and RSA_EXPONENT_MIN <= numbers.e <= RSA_EXPONENT_MAX and numbers.e % 2 == 1 else (),
        )
    if kind == "EC":
        curve = jwk["crv"]
        key_ec = ECAlgorithm.from_jwk({name: jwk[name] for name in ("kty", "crv", "x", "y")})
        return key_ec, tuple(name for name, needed in _EC.items() if needed == curve)
    if kind == "OKP" and jwk["crv"] == "Ed25519":
        key_ed = OKPAlgorithm.from_jwk({name: jwk[name] for name in ("kty", "crv", "x")})
        return key_ed, () if _is_of_small_order(key_ed.public_bytes_raw()) else _ED  # type: ignore[union-attr]
    return None, ()


def _is_of_small_order(raw: bytes) -> bool:
    """Return whether a point of Ed25519 has an order of 1, 2, 4 or 8: then one signature fits many messages.

    The ordinate of these is 1, -1, 0, or a root of dy⁴ + 2y² - 1, whose double has the ordinate 0.
    """
    y = int.from_bytes(raw, "little") % (1 << 255) % _ED25519_P
    return y * (y * y - 1) * (_ED25519_D * y**4 + 2 * y * y - 1) % _ED25519_P == 0
