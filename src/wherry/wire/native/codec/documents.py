"""Frames whose body is a JSON document: HELLO, GOODBYE, MOVED, SUBSCRIBE, SUBSCRIBED.

The body of an ERROR is a problem document as HTTP has it (RFC 9457); the application writes it, clients read it with
`ProblemDocument`.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from wherry.wire.native.codec.faults import Side, WireFault
from wherry.wire.native.codec.frames import FRAME_BYTES_MAX, VERSION, Flag, Kind, encode_frame

DOCUMENT_BYTES_MAX: Final = 64 << 10
"""Most bytes of a document of the client."""

D = TypeVar("D", bound=msgspec.Struct)


class ClientHello(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame of a client. Fields that a server does not know are ignored.

    `features` that a client may name: `arrow`, if it takes DELIVER frames with an Arrow stream. `heartbeat_ms` 0 leaves
    the choice to the server.
    """

    versions: tuple[int, ...] = (VERSION,)
    name: str = ""
    features: tuple[str, ...] = ()
    heartbeat_ms: int = 0
    frame_bytes_max: int = FRAME_BYTES_MAX


class ServerHello(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame of a server: the version that counts from now on, and the bounds of the connection."""

    version: int = VERSION
    name: str = ""
    features: tuple[str, ...] = ()
    heartbeat_ms: int
    frame_bytes_max: int = FRAME_BYTES_MAX
    limits: dict[str, int] = {}


class GoodbyeDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a side ends the connection."""

    reason: str = ""


class MovedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The address that a request about a topic is to be sent to: nothing was done here."""

    topic: str
    url: str


class SubscribeTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a stream pushes. `credit` is the first grant; with `create`, the subscription is created if it is missing.

    `create` has the fields of the body of `PUT /v1/topics/{topic}/subscriptions/{subscription}`.
    """

    topic: str
    subscription: str
    consumer: str | None = None
    credit: int = 0
    buffer_messages: int | None = None
    buffer_bytes: int | None = None
    create: dict[str, Any] | None = None


class StreamTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to SUBSCRIBE: the consumer's name, how long a lease lasts, and whether messages are to be settled."""

    consumer: str
    lease_ms: int
    acks: bool = True


class ProblemDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An error as a client reads it."""

    code: str
    detail: str
    status: int = 500
    title: str = ""
    type: str = ""
    field: str | None = None
    given: str | None = None
    allowed: str | None = None


_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_NAMED = re.compile(r"Object (?:contains unknown|missing required) field `(?P<name>.*)`")
"""Faults of msgspec: which field is wrong."""

_ENCODER = msgspec.json.Encoder()
_DECODERS: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {}


def encode_hello(hello: ClientHello | ServerHello) -> bytes:
    """Return a HELLO."""
    return encode_frame(Kind.HELLO, 0, _ENCODER.encode(hello))


def encode_goodbye(reason: str) -> bytes:
    """Return a GOODBYE."""
    return encode_frame(Kind.GOODBYE, 0, _ENCODER.encode(GoodbyeDocument(reason=reason)))


def encode_moved(number: int, topic: str, url: str, *, stream: bool = False) -> bytes:
    """Return a MOVED in answer to a request, or for a stream."""
    body = _ENCODER.encode(MovedDocument(topic=topic, url=url))
    return encode_frame(Kind.MOVED, number, body, Flag.STREAM if stream else 0)


def encode_error(number: int, problem: bytes, *, stream: bool = False) -> bytes:
    """Return an ERROR with a problem document; number 0 is the connection."""
    return encode_frame(Kind.ERROR, number, problem, Flag.STREAM if stream else 0)


def encode_subscribe(stream: int, terms: SubscribeTerms) -> bytes:
    """Return a SUBSCRIBE."""
    return encode_frame(Kind.SUBSCRIBE, stream, _ENCODER.encode(terms))


def encode_subscribed(stream: int, terms: StreamTerms) -> bytes:
    """Return a SUBSCRIBED."""
    return encode_frame(Kind.SUBSCRIBED, stream, _ENCODER.encode(terms))


def encode_cancel(number: int, *, stream: bool) -> bytes:
    """Return a CANCEL of a stream, or of a CALL under way."""
    return encode_frame(Kind.CANCEL, number, b"", Flag.STREAM if stream else 0)


def encode_options(options: msgspec.Struct) -> bytes:
    """Return options of PUBLISH or SETTLE as JSON; empty bytes if all have their defaults."""
    text = _ENCODER.encode(options)
    return b"" if text == b"{}" else text


def decode_document(side: Side, kind: type[D], body: bytes, field: str = "body") -> D:
    """Return the document of a frame, or options; a fault names the part that is wrong."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    if side == "client" and len(body) > DOCUMENT_BYTES_MAX:
        raise WireFault(side, field, f"{len(body)} bytes", f"at most {DOCUMENT_BYTES_MAX} bytes")
    try:
        document: D = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        allowed = "a JSON object with " + ", ".join(kind.__struct_fields__)
        raise WireFault(side, _field_of(fault, field), body[:80], f"{allowed} ({fault})") from None
    return document


def _field_of(fault: Exception, field: str) -> str:
    """Return the field of a document that msgspec found wrong; `field` if the document itself is."""
    found = _PLACE.fullmatch(str(fault))
    if not isinstance(fault, msgspec.ValidationError) or found is None:
        return field
    named = _NAMED.match(found["what"])
    return ".".join(part for part in (found["path"], named and named["name"]) if part) or field
