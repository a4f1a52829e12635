"""The frames by which a peer calls a method of a service at another peer. docs/wire.md is the specification.

The protocol has a name of its own, `wherry-service/1`, and the header of the native wire. The caller opens the
connection, so it is the client here.

    kind           sent by  id        body
    0x01 HELLO     both     0         JSON
    0x02 PING      both     any       none
    0x03 PONG      both     as PING   none
    0x04 GOODBYE   both     0         JSON: no more calls from here on; those under way are answered
    0x24 CANCEL    client   request   none
    0x50 INVOKE    client   request   what to call, and the argument
    0x51 RESULT    server   request   the result; with flag REFUSED or FAILED a document in MessagePack
    0x52 SEEN      client   0         u32: how many more RESULT frames the client has read
    0x53 TOKEN     client   0         the token of the caller, for the calls behind it

The body of an INVOKE:

    byte    0           4        5          6           8
            │ timeout   │ length │ reserved │ length of │ method │ context │ argument …
            │ ms, u32   │ u8     │ u8 = 0   │ context   │
            │ 0 is none │        │          │ u16       │

`method` is the service and its method, as `billing.total`. The context is a map in MessagePack, or nothing. Flags
MSGPACK and JSON say what the argument or the result is; bytes without one of them.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

import msgspec

from wherry.wire.native.codec.faults import Side, WireFault
from wherry.wire.native.codec.frames import (
    BOTH,
    CLIENT,
    FRAME_BYTES_MAX,
    HEADER,
    SERVER,
    Flag,
    Kind,
    Rules,
    encode_frame,
)

PROTOCOL: Final = "wherry-service/1"
"""The name of the protocol in the header `Upgrade`."""

PATH: Final = "/services"
"""The path that answers the upgrade."""

CONTENT: Final = Flag.MSGPACK | Flag.JSON
OUTCOME: Final = Flag.REFUSED | Flag.FAILED


class CallKind(IntEnum):
    """What a frame is about, beside the kinds that this protocol shares with the native wire."""

    INVOKE = 0x50
    RESULT = 0x51
    SEEN = 0x52
    TOKEN = 0x53


SERVICE_RULES: Final[Rules] = {
    Kind.HELLO: (BOTH, 0, "zero"),
    Kind.PING: (BOTH, 0, "any"),
    Kind.PONG: (BOTH, 0, "any"),
    Kind.GOODBYE: (BOTH, 0, "zero"),
    Kind.CANCEL: (CLIENT, 0, "number"),
    CallKind.INVOKE: (CLIENT, CONTENT, "number"),
    CallKind.RESULT: (SERVER, CONTENT | OUTCOME | Flag.IDEMPOTENT, "number"),
    CallKind.SEEN: (CLIENT, 0, "zero"),
    CallKind.TOKEN: (CLIENT, 0, "zero"),
}
"""By kind, as `frames.RULES`."""

TIMEOUT_MS_MAX: Final = (1 << 32) - 1
METHOD_BYTES_MAX: Final = 255
CONTEXT_BYTES_MAX: Final = 16 << 10
TOKEN_BYTES_MAX: Final = 16 << 10
CALL_ID_CHARS_MAX: Final = 60
"""Visible characters."""

TEXT_CHARS_MAX: Final = 4_096
"""Of the text of an error."""

_U32 = Struct("<I")
_INVOKE = Struct("<IBBHIIBBH")
"""The header, and the beginning of the body."""
_BODY = Struct("<IBBH")
_INVOKE_KIND, _RESULT_KIND = int(CallKind.INVOKE), int(CallKind.RESULT)
"""Plain numbers: an enum is slow to pack."""


class CallContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What travels with a call beside its argument.

    `session` is what the caller chose the instance by, `call_id` tells a repeat from a new call, `attempt` counts from
    0; `hedge` marks a call that another instance was sent before; `traceparent` and `tracestate` are W3C trace context.
    """

    session: str | None = None
    call_id: str | None = None
    attempt: int = 0
    hedge: bool = False
    traceparent: str | None = None
    tracestate: str | None = None


class Trouble(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a call was refused, or how it failed.

    `code` is a code of refusal, or that of an error of Wherry; `kind` the class of the error; `field`, `given` and
    `allowed` belong to bad input.
    """

    code: str
    text: str
    kind: str = ""
    field: str | None = None
    given: str | None = None
    allowed: str | None = None


class Invoke(NamedTuple):
    """A decoded INVOKE."""

    timeout_ms: int
    method: bytes
    context: bytes
    argument: bytes


_ENCODER = msgspec.msgpack.Encoder()
_CONTEXTS = msgspec.msgpack.Decoder(CallContext)
_TROUBLES = msgspec.msgpack.Decoder(Trouble)


def encode_context(context: CallContext) -> bytes:
    """Return a context; raise `WireFault` for one that is too long."""
    found = _ENCODER.encode(context)
    if len(found) > CONTEXT_BYTES_MAX:
        raise WireFault("client", "context", f"{len(found)} bytes", f"at most {CONTEXT_BYTES_MAX} bytes")
    return found


def decode_context(context: bytes) -> CallContext:
    """Return the context of an INVOKE."""
    try:
        found = _CONTEXTS.decode(context)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise WireFault("client", "context", context[:80], f"a map in MessagePack ({fault})") from None
    call_id = found.call_id
    if call_id is not None and not (
        0 < len(call_id) <= CALL_ID_CHARS_MAX and call_id.isprintable() and " " not in call_id
    ):
        raise WireFault("client", "call_id", call_id, f"1 to {CALL_ID_CHARS_MAX} graphic characters (no spaces)")
    return found


def encode_invoke(
    number: int, method: bytes, argument: bytes, *, flags: int = 0, timeout_ms: int = 0, context: bytes = b""
) -> bytes:
    """Return an INVOKE.

    Examples
    --------
    >>> encode_invoke(1, b"a.b", b"hi", timeout_ms=2000).hex(" ")
    '0d 00 00 00 50 00 00 00 01 00 00 00 d0 07 00 00 03 00 00 00 61 2e 62 68 69'
    """
    name, more = len(method), len(context)
    length = 8 + name + more + len(argument)
    if length > FRAME_BYTES_MAX:
        raise WireFault("client", "length", length, f"at most {FRAME_BYTES_MAX} bytes in a frame")
    return (
        _INVOKE.pack(length, CallKind.INVOKE, flags, 0, number, timeout_ms, name, 0, more) + method + context + argument
    )


def decode_invoke(body: bytes) -> Invoke:
    """Return what an INVOKE asks for."""
    try:
        timeout_ms, name, reserved, more = _BODY.unpack_from(body)
    except struct_error:
        raise WireFault("client", "body", f"{len(body)} bytes", "a timeout, lengths and a method") from None
    stop = 8 + name
    start = stop + more
    if not name or reserved or more > CONTEXT_BYTES_MAX or start > len(body):
        raise WireFault(
            "client",
            "body",
            (name, reserved, more),
            f"a method, 0 in the reserved byte, and a context of at most {CONTEXT_BYTES_MAX} bytes, within the body",
        )
    return Invoke(timeout_ms, body[8:stop], body[stop:start], body[start:])


def encode_result(number: int, result: bytes, flags: int = 0) -> bytes:
    """Return a RESULT.

    Examples
    --------
    >>> encode_result(1, b"hi").hex(" ")
    '02 00 00 00 51 00 00 00 01 00 00 00 68 69'
    """
    length = len(result)
    if length > FRAME_BYTES_MAX:
        raise WireFault("server", "length", length, f"at most {FRAME_BYTES_MAX} bytes in a frame")
    return HEADER.pack(length, _RESULT_KIND, flags, 0, number) + result


def encode_trouble(number: int, outcome: int, trouble: Trouble) -> bytes:
    """Return a RESULT that says why there is none; `outcome` is the flag REFUSED or FAILED."""
    return encode_result(number, _ENCODER.encode(trouble), outcome | Flag.MSGPACK)


def decode_trouble(body: bytes) -> Trouble:
    """Return why there is no result."""
    try:
        return _TROUBLES.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise WireFault("server", "body", body[:80], f"a code and a text in MessagePack ({fault})") from None


def encode_seen(results: int) -> bytes:
    """Return a SEEN."""
    return encode_frame(CallKind.SEEN, 0, _U32.pack(results))


def decode_seen(body: bytes) -> int:
    """Return how many more results the caller has read."""
    if len(body) != _U32.size:
        raise WireFault("client", "results", f"{len(body)} bytes", "a number of 4 bytes")
    return int(_U32.unpack(body)[0])


def check_content(side: Side, flags: int) -> None:
    """Raise `WireFault` for flags that contradict each other."""
    if flags & CONTENT == CONTENT:
        raise WireFault(side, "flags", flags, "MSGPACK or JSON, not both")
    if flags & OUTCOME == OUTCOME:
        raise WireFault(side, "flags", flags, "REFUSED or FAILED, not both")


class PeerHello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first frame of each side. Fields that the other does not know are ignored.

    `version` is the highest that the side knows; `calls_max` is how many calls the provider accepts at once on this
    connection, where it says so.
    """

    version: int = 1
    name: str = ""
    calls_max: int = 0
