"""Arguments and results as bytes: MessagePack, JSON, or bytes as they are. A fault names the field that is wrong."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from wherry.model.errors import InvalidInput
from wherry.wire.native.codec.frames import Flag

BYTES: Final = bytes
"""The type of a value that is passed on as it is."""

_MSGPACK = msgspec.msgpack.Encoder()
_JSON = msgspec.json.Encoder()
_ANY_MSGPACK: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
_ANY_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class ValueCodec:
    """Encodes and decodes the values of one type."""

    __slots__ = ("_json", "_msgpack", "is_bytes", "kind")

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.is_bytes = kind is BYTES
        self._msgpack: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Any if self.is_bytes else kind)
        self._json: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any if self.is_bytes else kind)

    def decode(self, body: bytes, flags: int, field: str = "argument") -> Any:
        """Return a value of the type; raise `InvalidInput` that names the field within it, or `field` itself."""
        if self.is_bytes:
            if flags & (Flag.MSGPACK | Flag.JSON):
                raise InvalidInput(field, "an encoded value", "bytes as they are")
            return body
        try:
            if flags & Flag.MSGPACK:
                return self._msgpack.decode(body)
            if flags & Flag.JSON:
                return self._json.decode(body)
        except msgspec.ValidationError as fault:
            raise invalid(fault, body, flags, field) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            raise InvalidInput(field, body[:80], f"a whole value ({fault})") from None
        raise InvalidInput(field, "bytes", f"a value of type {type_name(self.kind)}")

    def schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the type; None for bytes, or where msgspec knows none."""
        if self.is_bytes:
            return None
        try:
            return msgspec.json.schema(self.kind)
        except TypeError:
            return None


def encode(value: object) -> tuple[int, bytes]:
    """Return the content flag and the bytes of a value.

    Examples
    --------
    >>> encode(b"as it is")
    (0, b'as it is')
    """
    if type(value) is bytes:
        return 0, value
    if isinstance(value, bytearray | memoryview):
        return 0, bytes(value)
    return Flag.MSGPACK, encode_msgpack(value)


def encode_msgpack(value: object) -> bytes:
    """Return a value as MessagePack."""
    try:
        return _MSGPACK.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise InvalidInput("value", type(value).__name__, f"what msgspec can encode ({fault})") from None


def encode_json(value: object) -> bytes:
    """Return a value as JSON, as REST has it."""
    try:
        return _JSON.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise InvalidInput("value", type(value).__name__, f"what msgspec can encode ({fault})") from None


def decode_plain(body: bytes, flags: int) -> Any:
    """Return a value of which no type is known: dicts, lists, texts and numbers; or bytes."""
    try:
        if flags & Flag.MSGPACK:
            return _ANY_MSGPACK.decode(body)
        if flags & Flag.JSON:
            return _ANY_JSON.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise InvalidInput("result", body[:80], f"a whole value ({fault})") from None
    return body


def invalid(fault: msgspec.ValidationError, body: bytes, flags: int, field: str = "argument") -> InvalidInput:
    """Return a fault of msgspec as bad input: the field by its path, the value given, and what is allowed."""
    what, _, place = str(fault).partition(" - at `$")
    path = place.rstrip("`").lstrip(".") or field
    given: Any = None
    try:
        given = decode_plain(body, flags)
        for step in place.rstrip("`").replace("[", ".[").split("."):
            if step:
                given = given[int(step[1:-1])] if step.startswith("[") else given[step]
    except (InvalidInput, KeyError, IndexError, TypeError, ValueError):
        given = None
    return InvalidInput(path, given, what[:1].lower() + what[1:])


def type_name(kind: Any) -> str:
    """Return the name of a type, as people read it."""
    return getattr(kind, "__name__", None) or str(kind)


def codec_of(kind: Any) -> ValueCodec:
    """Return the codec of a type."""
    try:
        return _codec_of(kind)
    except (TypeError, ValueError) as fault:
        raise InvalidInput("returns", type_name(kind), f"a type that msgspec can decode ({fault})") from None


@lru_cache(maxsize=1024)
def _codec_of(kind: Any) -> ValueCodec:
    return ValueCodec(kind)
