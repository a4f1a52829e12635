"""Keys and signatures of tokens for tests, by `cryptography` alone: not by the library that is under test."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
CURVES = {"ES256": ("P-256", ec.SECP256R1(), 32), "ES384": ("P-384", ec.SECP384R1(), 48)}
CURVES["ES512"] = ("P-521", ec.SECP521R1(), 66)
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def number(value: int, size: int | None = None) -> str:
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def private_key(algorithm: str, name: str = "provider") -> Any:
    """Return a key, the same for the same algorithm and name in one process."""
    return _made(algorithm, name)


@cache
def _made(algorithm: str, name: str) -> Any:
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm][1])
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65_537, 1_024 if name == "weak" else 2_048)


def jwk(algorithm: str, name: str = "provider", *, private: bool = False, **more: Any) -> dict[str, Any]:
    """Return a key as JWK, with `kid`, `alg` and `use`."""
    key = private_key(algorithm, name)
    known = {"kid": f"{name}-{algorithm}", "alg": algorithm, "use": "sig"} | more
    if algorithm == "EdDSA":
        raw = serialization.Encoding.Raw
        public = key.public_key().public_bytes(raw, serialization.PublicFormat.Raw)
        secret = key.private_bytes(raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
        shape = {"kty": "OKP", "crv": "Ed25519", "x": b64(public)} | ({"d": b64(secret)} if private else {})
    elif algorithm in CURVES:
        curve, _, size = CURVES[algorithm]
        at = key.public_key().public_numbers()
        shape = {"kty": "EC", "crv": curve, "x": number(at.x, size), "y": number(at.y, size)}
        shape |= {"d": number(key.private_numbers().private_value, size)} if private else {}
    else:
        shape = _rsa(key, private=private)
    return {name: value for name, value in (shape | known).items() if value is not None}


def _rsa(key: Any, *, private: bool) -> dict[str, str]:
    numbers = key.private_numbers()
    shown = {"n": numbers.public_numbers.n, "e": numbers.public_numbers.e}
    if private:
        shown |= {"d": numbers.d, "p": numbers.p, "q": numbers.q}
        shown |= {"dp": numbers.dmp1, "dq": numbers.dmq1, "qi": numbers.iqmp}
    return {"kty": "RSA"} | {name: number(value) for name, value in shown.items()}


def signature(key: Any, algorithm: str, signed: bytes) -> bytes:
    if algorithm.startswith("HS"):
        return hmac.new(key, signed, getattr(hashlib, f"sha{algorithm[2:]}")).digest()
    if algorithm in ("EdDSA", "Ed25519"):
        return key.sign(signed)
    digest = HASHES[algorithm[2:]]
    if algorithm.startswith("RS"):
        return key.sign(signed, padding.PKCS1v15(), digest)
    if algorithm.startswith("PS"):
        return key.sign(signed, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)
    size = (key.curve.key_size + 7) // 8
    return b"".join(
        part.to_bytes(size, "big") for part in utils.decode_dss_signature(key.sign(signed, ec.ECDSA(digest)))
    )


def encoded(value: Any) -> str:
    return b64(value if isinstance(value, bytes) else json.dumps(value).encode())


def token(header: Any, claims: Any, key: Any, algorithm: str) -> str:
    """Return a compact JWS; header and claims may be bytes, to be anything."""
    signed = f"{encoded(header)}.{encoded(claims)}"
    return f"{signed}.{b64(signature(key, algorithm, signed.encode()))}"
