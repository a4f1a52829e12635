"""Frames of the protocol of services, version 1: by name, the side that sends each, and its bytes as encoded now."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from wherry.wire.native.codec import invokes
from wherry.wire.native.codec.documents import encode_goodbye
from wherry.wire.native.codec.frames import Flag, Kind, encode_frame
from wherry.wire.native.codec.invokes import CallContext, CallKind, PeerHello, Trouble

FILE = Path(__file__).parent / "service_wire_v1.txt"
"""A line for each frame: its name, and its bytes in hex."""

CONTEXT = CallContext(
    session="customer-7", call_id="c1", attempt=1, traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
)
FULL = Trouble("full", "8 of 8 calls run")
INVALID = Trouble("invalid-input", "count: got 'x'; allowed: int", "", "count", "'x'", "int")
FAILED = Trouble("failed", "no such order", "KeyError")


class ServiceFrame(NamedTuple):
    """A frame, and the value of its body."""

    side: Any
    data: bytes
    value: Any = None


def _hello(name: str, calls_max: int = 0) -> bytes:
    return encode_frame(Kind.HELLO, 0, msgspec.json.encode(PeerHello(name=name, calls_max=calls_max)))


FRAMES = {
    "hello": ServiceFrame("client", _hello("example")),
    "hello-provider": ServiceFrame("server", _hello("b7", 16_384)),
    "token": ServiceFrame("client", encode_frame(CallKind.TOKEN, 0, b"abc")),
    "invoke": ServiceFrame(
        "client",
        invokes.encode_invoke(1, b"billing.total", b"\x81\xa2id\x07", flags=Flag.MSGPACK, timeout_ms=2000),
        invokes.Invoke(2000, b"billing.total", b"", b"\x81\xa2id\x07"),
    ),
    "invoke-context": ServiceFrame(
        "client",
        invokes.encode_invoke(2, b"a.b", b"hi", context=invokes.encode_context(CONTEXT)),
        invokes.Invoke(0, b"a.b", invokes.encode_context(CONTEXT), b"hi"),
    ),
    "result": ServiceFrame("server", invokes.encode_result(1, b"\x2a", Flag.MSGPACK), b"\x2a"),
    "refused": ServiceFrame("server", invokes.encode_trouble(2, Flag.REFUSED, FULL), FULL),
    "refused-input": ServiceFrame("server", invokes.encode_trouble(2, Flag.REFUSED, INVALID), INVALID),
    "failed": ServiceFrame("server", invokes.encode_trouble(3, Flag.FAILED, FAILED), FAILED),
    "seen": ServiceFrame("client", invokes.encode_seen(3), 3),
    "cancel": ServiceFrame("client", encode_frame(Kind.CANCEL, 3)),
    "goodbye": ServiceFrame("server", encode_goodbye("the instance is draining")),
}

if __name__ == "__main__":
    FILE.write_text("".join(f"{name} {frame.data.hex()}\n" for name, frame in FRAMES.items()), encoding="utf-8")
