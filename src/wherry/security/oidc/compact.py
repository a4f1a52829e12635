"""Takes a compact JWS apart, strictly: what two readers could understand differently is refused.

    header . claims . signature        each base64url without padding; header and claims are JSON objects

It verifies nothing. Whoever signed a token chose every byte here, so each size is bounded before it is read.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Never

from wherry.security.oidc.refusal import TokenRefusal, TokenRefused

TOKEN_CHARS_MAX = 16 << 10
HEADER_CHARS_MAX = 2 << 10
"""Of the header as base64url: `alg`, `typ` and `kid` take some 100."""

DEPTH_MAX = 8
"""Of nested objects and lists; Keycloak's roles take 3."""

_PART = re.compile(r"[A-Za-z0-9_-]+")
_PIECE = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[^"\[\]{}]++|([\[\]{}])', re.DOTALL)
"""A string, what stands between, or a bracket. It matches wherever it begins, also at a string that has no end, and is
possessive: so each sign is read a fixed number of times, whatever was sent."""


class Compact(NamedTuple):
    """The parts of a token as they are written, nothing of it verified."""

    head: str
    body: str
    end: str

    def header(self) -> dict[str, Any]:
        """Return the header; nothing else is looked at."""
        return _object(_bytes(self.head))

    def claims(self) -> dict[str, Any]:
        """Return the claims; only of a token whose signature was found good."""
        return _object(_bytes(self.body))

    @property
    def signed(self) -> bytes:
        """Return what the signature is over."""
        return f"{self.head}.{self.body}".encode("ascii")

    @property
    def signature(self) -> bytes:
        """Return the signature."""
        return _bytes(self.end)


def taken_apart(token: str) -> Compact:
    """Return the parts of a token, or raise `TokenRefused`.

    Examples
    --------
    >>> taken_apart("eyJhbGciOiJub25lIn0.e30.")
    Traceback (most recent call last):
    wherry.security.oidc.refusal.TokenRefused: no compact JWS
    """
    if len(token) > TOKEN_CHARS_MAX:
        raise TokenRefused(TokenRefusal.SIZE)
    parts = token.split(".", 3)
    if len(parts) != 3 or not all(_PART.fullmatch(part) for part in parts):
        raise TokenRefused(TokenRefusal.FORM)
    if len(parts[0]) > HEADER_CHARS_MAX:
        raise TokenRefused(TokenRefusal.SIZE)
    return Compact(*parts)


def _bytes(part: str) -> bytes:
    """Return the bytes of base64url; refuse a spelling that is not the only one of its bytes."""
    try:
        raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        raise TokenRefused(TokenRefusal.FORM) from None
    if base64.urlsafe_b64encode(raw).rstrip(b"=") != part.encode("ascii"):
        raise TokenRefused(TokenRefusal.FORM)
    return raw


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = parse_strictly(raw)
    except ValueError:
        raise TokenRefused(TokenRefusal.FORM) from None
    if not isinstance(value, dict):
        raise TokenRefused(TokenRefusal.FORM)
    return value


def parse_strictly(raw: bytes, depth_max: int = DEPTH_MAX) -> Any:
    """Return JSON as values, or raise `ValueError`: also for a member twice, NaN, and more nesting than allowed."""
    text = raw.decode("utf-8")
    _check_depth(text, depth_max)
    return json.loads(text, object_pairs_hook=_members, parse_constant=_no_constant)


def _check_depth(text: str, depth_max: int) -> None:
    depth = 0
    for piece in pieces(text):
        if (mark := piece[1]) is not None:
            depth += 1 if mark in "[{" else -1
            if depth > depth_max:
                raise ValueError("nested too deep")


def pieces(text: str) -> Iterator[re.Match[str]]:
    """Yield what a JSON text is made of, without gaps; the first group of a bracket outside of strings is set."""
    return _PIECE.finditer(text)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member twice")
    return members


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON")
