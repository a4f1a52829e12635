"""CALL and ANSWER: a request to the HTTP interface and its answer, without HTTP.

CALL      head length u32 · head as JSON · zero bytes up to a multiple of 8 · body
ANSWER    the same
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeVar

import msgspec

from wherry.wire.native.codec.documents import decode_document
from wherry.wire.native.codec.faults import Side, WireFault
from wherry.wire.native.codec.frames import FRAME_BYTES_MAX, HEADER, Chunk, Kind, chunk_bytes, padding

CALL_HEAD_BYTES_MAX: Final = 32 << 10
_U32 = Struct("<I")
H = TypeVar("H", bound=msgspec.Struct)


class CallHead(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The head of a CALL. `path` has the query too, percent-encoded as in HTTP; names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str] = {}


class AnswerHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """The head of an ANSWER: the status of HTTP, and headers by their names in lower case."""

    status: int
    headers: dict[str, str] = {}


_ENCODER = msgspec.json.Encoder()


def encode_call(number: int, head: CallHead, body: list[Chunk] | None = None) -> list[Chunk]:
    """Return a CALL as chunks, without a copy of its body."""
    return _encode("client", Kind.CALL, number, head, body or [])


def encode_answer(number: int, head: AnswerHead, body: list[Chunk] | None = None) -> list[Chunk]:
    """Return an ANSWER as chunks, without a copy of its body."""
    return _encode("server", Kind.ANSWER, number, head, body or [])


def decode_call(body: bytes) -> tuple[CallHead, memoryview]:
    """Return the head and the body of a CALL."""
    return _decode("client", CallHead, body)


def decode_answer(body: bytes) -> tuple[AnswerHead, memoryview]:
    """Return the head and the body of an ANSWER."""
    return _decode("server", AnswerHead, body)


def _encode(side: Side, kind: Kind, number: int, head: msgspec.Struct, body: list[Chunk]) -> list[Chunk]:
    text = _ENCODER.encode(head)
    if side == "client" and len(text) > CALL_HEAD_BYTES_MAX:
        raise WireFault(side, "head", f"{len(text)} bytes", f"at most {CALL_HEAD_BYTES_MAX} bytes")
    start = _U32.pack(len(text)) + text
    if body:
        start += padding(len(start))
    length = len(start) + chunk_bytes(body)
    if length > FRAME_BYTES_MAX:
        raise WireFault(side, "length", length, f"at most {FRAME_BYTES_MAX} bytes in a frame")
    return [HEADER.pack(length, kind, 0, 0, number) + start, *body]


def _decode(side: Side, kind: type[H], body: bytes) -> tuple[H, memoryview]:
    size = _U32.unpack_from(body)[0] if len(body) >= _U32.size else 0
    stop = _U32.size + size
    if not size or stop > len(body):
        raise WireFault(side, "head", f"{size} of {len(body)} bytes", "a head of JSON within the body")
    if side == "client" and size > CALL_HEAD_BYTES_MAX:
        raise WireFault(side, "head", f"{size} bytes", f"at most {CALL_HEAD_BYTES_MAX} bytes")
    head = decode_document(side, kind, body[_U32.size : stop], "head")
    start = min(stop + -stop % 8, len(body))
    if any(body[stop:start]):
        raise WireFault(side, "padding", body[stop:start], "zero bytes up to a multiple of 8")
    return head, memoryview(body)[start:]
