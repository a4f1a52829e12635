"""Why an access token is refused. The reason is for logs and figures: a client gets one text for all of them."""

from __future__ import annotations

from enum import StrEnum


class TokenRefusal(StrEnum):
    """The first rule that a token breaks. No value has a part of the token in it."""

    SIZE = "larger than a token may be"
    FORM = "no compact JWS"
    HEADER = "header that is not allowed"
    ALGORITHM = "algorithm that is not allowed"
    KIND = "another kind of token"
    NO_KEY_ID = "no key id, and the provider has several keys"
    UNKNOWN_KEY = "key that the provider does not have"
    KEY_MISMATCH = "key that is not for this algorithm"
    SIGNATURE = "signature"
    CLAIMS = "claims of a wrong type"
    ISSUER = "issuer"
    AUDIENCE = "audience"
    PARTY = "party that it was issued to"
    EXPIRED = "expired"
    TOO_EARLY = "not valid yet"
    SUBJECT = "no subject"
    NO_KEYS = "provider not reachable"


class TokenRefused(Exception):
    """Carries the reason out of the steps of a verification; never leaves this folder."""

    def __init__(self, reason: TokenRefusal) -> None:
        super().__init__(reason.value)
        self.reason = reason
