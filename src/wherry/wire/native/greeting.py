"""What a HELLO agrees on: the version, the heartbeat, and what each side can read."""

from __future__ import annotations

from importlib.metadata import version

from wherry.wire.native.codec.documents import ClientHello, ServerHello
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import VERSION
from wherry.wire.native.codec.rows import ROWS_MAX

VERSIONS = (VERSION,)
"""Versions that this server speaks."""

FEATURES = ("arrow",)
HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 1_000, 600_000
NAME_CHARS_MAX = 256
"""Of the name of a client; the rest is cut off."""


def answer(hello: ClientHello, heartbeat_ms: int, limits: dict[str, int]) -> ServerHello:
    """Return the HELLO of the server; `heartbeat_ms` is its own wish. Raise `WireFault` without a common version."""
    common = set(hello.versions) & set(VERSIONS)
    if not common:
        allowed = "one of " + ", ".join(map(str, VERSIONS))
        raise WireFault("client", "versions", hello.versions, allowed)
    wished = hello.heartbeat_ms or heartbeat_ms
    return ServerHello(
        version=max(common),
        name=f"wherry/{version('wherry')}",
        features=FEATURES,
        heartbeat_ms=min(max(wished, HEARTBEAT_MS_MIN), HEARTBEAT_MS_MAX),
        limits={"rows": ROWS_MAX, **limits},
    )
