"""Signatures of webhooks: they prove that the broker made a call, recently, and that its body was not changed.

    Wherry-Signature: t=1763211600,v1=5257a8…(64 hex digits)
                      Unix seconds    HMAC-SHA256 of "t.body" with the secret

The time is signed too, so that a recorded call cannot be sent again later.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time

HEADER = "Wherry-Signature"
TOLERANCE_S = 300

_SIGNATURE = re.compile(r"t=(?P<t>[0-9]{1,12}),v1=(?P<v1>[0-9a-f]{64})")


def sign(secret: str, body: bytes, now_s: int) -> str:
    """Return the value of the header."""
    return f"t={now_s},v1={_digest(secret, now_s, body)}"


def verify_webhook(
    secret: str, signature: str | None, body: bytes, *, tolerance_s: float = TOLERANCE_S, now_s: float | None = None
) -> bool:
    """Return whether a call came from a broker that knows the secret, no longer ago than `tolerance_s`.

    Parameters
    ----------
    secret
        The secret of the webhook.
    signature
        The header `Wherry-Signature` of the call, None if there was none.
    body
        The body of the call, byte for byte, before it is decoded.
    now_s
        The time, in Unix seconds; by default that of this machine.

    Examples
    --------
    >>> signature = sign("a secret of 16+ characters", b"{}", 1_000)
    >>> verify_webhook("a secret of 16+ characters", signature, b"{}", now_s=1_002)
    True
    >>> verify_webhook("a secret of 16+ characters", signature, b"{}", now_s=2_000)
    False
    """
    found = _SIGNATURE.fullmatch(signature or "")
    if found is None:
        return False
    right = hmac.compare_digest(found["v1"], _digest(secret, int(found["t"]), body))
    now = time.time() if now_s is None else now_s
    return right and abs(now - int(found["t"])) <= tolerance_s


def _digest(secret: str, now_s: int, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{now_s}.".encode() + body, hashlib.sha256).hexdigest()
