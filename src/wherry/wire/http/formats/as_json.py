"""Messages as JSON and NDJSON.

A text payload is a JSON string, which is by far the most common case and has a decoder of its own; any other JSON value
is kept as the producer wrote it, numbers to the last digit, without the space between its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Meta, Raw

from wherry.model import limits
from wherry.model.errors import InvalidInput
from wherry.model.schema import Int64, Message
from wherry.wire.http.api.reading import (
    NAMED_BYTES_MAX,
    TOO_LARGE_TO_NAME,
    refused,
    whole_numbers,
)
from wherry.wire.http.formats.pieces import SCAN_BYTES, elements, lines
from wherry.wire.http.formats.rows import COLUMN_OF, Fields, counted_from, to_batch, to_fields
from wherry.wire.http.protocol.message import (
    JSON,
    NDJSON,
    Bytes,
    Response,
    json_response,
)

TimeMs: TypeAlias = Annotated[int, Meta(ge=0, le=limits.TIME_MS_MAX)]
Priority: TypeAlias = Annotated[int, Meta(ge=0, le=limits.PRIORITY_MAX)]

LINE_BYTES_MIN = len('{"payload":""}\n')

_MISSING = Raw()
_QUOTE = ord('"')


class _Usual(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message whose payload is text."""

    payload: str
    id: str | None = None
    key: str | None = None
    priority: Priority | None = None
    due_ms: TimeMs | None = None
    expires_ms: TimeMs | None = None
    headers: dict[str, str] | None = None


class DecodedMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message as a producer gives it: `payload` (any JSON value) or `payload_base64`, and never both."""

    payload: Raw = _MISSING
    payload_base64: bytes | None = None
    id: str | None = None
    key: str | None = None
    priority: Priority | None = None
    due_ms: TimeMs | None = None
    expires_ms: TimeMs | None = None
    headers: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if (self.payload is _MISSING) == (self.payload_base64 is None):
            raise ValueError("one of payload and payload_base64")


class _Parts(msgspec.Struct, gc=False):
    """The payload and headers of a message, undecoded, for their size alone."""

    payload: Raw = _MISSING
    headers: Raw = _MISSING


HEADERS_JSON_MAX = 6 * limits.HEADERS_BYTES_MAX + 8 * limits.HEADERS_MAX
"""Most bytes of headers as JSON: a character may take six bytes, and each header needs some marks."""

_LARGE = msgspec.json.Decoder(list[_Parts] | _Parts)
_LARGE_LINES = msgspec.json.Decoder(_Parts)
_USUAL = msgspec.json.Decoder(list[_Usual] | _Usual)
_GIVEN = msgspec.json.Decoder(list[DecodedMessage] | DecodedMessage)
_GIVEN_LAX = msgspec.json.Decoder(list[DecodedMessage] | DecodedMessage, strict=False)
_USUAL_ONE = msgspec.json.Decoder(_Usual)
_GIVEN_ONE = msgspec.json.Decoder(DecodedMessage)
_USUAL_LINES = msgspec.json.Decoder(_Usual)
_GIVEN_LINES = msgspec.json.Decoder(DecodedMessage)
_GIVEN_LINES_LAX = msgspec.json.Decoder(DecodedMessage, strict=False)
_TEXT = msgspec.json.Decoder(str)
_ENCODER = msgspec.json.Encoder()


def _given(body: Any) -> Any:
    return whole_numbers(_GIVEN.decode, _GIVEN_LAX.decode, body)


def _given_lines(body: Any) -> Any:
    return whole_numbers(_GIVEN_LINES.decode_lines, _GIVEN_LINES_LAX.decode_lines, body)


def read(body: Bytes) -> pa.RecordBatch:
    """Read one message, or a list of them."""
    return _read(body, _USUAL.decode, _given)


def read_one(body: Bytes) -> Message | None:
    """Return the message of a body that is one; None for a list, and for bodies that `read` refuses with a reason."""
    try:
        try:
            usual = _USUAL_ONE.decode(body)
            return _message(usual, usual.payload)
        except msgspec.ValidationError:
            given = _GIVEN_ONE.decode(body)
            return _message(given, _payload(0, given))
    except (msgspec.DecodeError, UnicodeError, RecursionError, InvalidInput):
        return None


def _message(found: _Usual | DecodedMessage, payload: bytes | str) -> Message:
    raw = payload.encode() if isinstance(payload, str) else payload
    return Message(
        payload=raw,
        id=found.id,
        key=found.key,
        priority=found.priority,
        due_ms=found.due_ms,
        expires_ms=found.expires_ms,
        headers=found.headers,
    )


def read_lines(body: Bytes) -> pa.RecordBatch:
    """Read one message a line; empty lines are ignored."""
    if len(memoryview(body)) > LINE_BYTES_MIN * limits.BATCH_MESSAGES_MAX:  # refuse too many before decoding them
        lines = 1 + bytes(memoryview(body)).count(b"\n{")
        if lines > limits.BATCH_MESSAGES_MAX:
            raise InvalidInput("messages", lines, f"1 to {limits.BATCH_MESSAGES_MAX} messages in one call")
    return _read(body, _USUAL_LINES.decode_lines, _given_lines)


def read_pieces(body: Bytes) -> Iterator[pa.RecordBatch | None]:
    """Read as `read` does, some messages at a time; None where other tasks may run meanwhile."""
    base = 0
    for piece in elements(body):
        if piece is None:
            yield None
            continue
        if len(memoryview(piece)) > SCAN_BYTES:
            _check_large(_LARGE.decode, piece, base)
            yield None
        batch = _part(piece, _USUAL.decode, _given, base)
        base = _counted(base, batch)
        yield batch


def read_line_pieces(body: Bytes) -> Iterator[pa.RecordBatch | None]:
    """Read as `read_lines` does, some lines at a time."""
    base = 0
    for piece in lines(body):
        if len(piece) > SCAN_BYTES:
            _check_large(_LARGE_LINES.decode_lines, piece, base)
            yield None
        if bytes(piece).isspace():
            continue
        batch = _part(piece, _USUAL_LINES.decode_lines, _given_lines, base)
        base = _counted(base, batch)
        yield batch


def _counted(base: int, batch: pa.RecordBatch) -> int:
    count = base + int(batch.num_rows)
    if count > limits.BATCH_MESSAGES_MAX:
        raise InvalidInput("messages", count, f"1 to {limits.BATCH_MESSAGES_MAX} messages in one call")
    return count


def _part(text: Bytes, usual: Callable[[Any], Any], given: Callable[[Any], Any], before: int) -> pa.RecordBatch:
    """Return the messages of a piece, which follows `before` other messages."""
    try:
        with counted_from(before):
            return _read(text, usual, given)
    except InvalidInput as fault:
        if before and fault.field == "messages":  # an empty piece: two commas, or one before the end
            raise InvalidInput("body", _start(text), f"valid JSON (nothing at messages[{before}])") from None
        raise


def _check_large(decode: Callable[[Any], Any], text: Bytes, base: int) -> None:
    """Refuse parts that are too large before decoding them: to skip them costs a twentieth of that."""
    try:
        parts = decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # the decoder that follows refuses it with the reason
    for index, part in enumerate(parts if isinstance(parts, list) else [parts]):
        headers, payload = memoryview(part.headers), memoryview(part.payload)
        if len(headers) > HEADERS_JSON_MAX:
            allowed = f"at most {limits.HEADERS_BYTES_MAX} bytes of names and values"
            raise InvalidInput(f"messages[{base + index}].headers", f"{len(headers)} bytes of JSON", allowed)
        size = len(payload) - 2
        if size > limits.PAYLOAD_BYTES_MAX and payload[0] == _QUOTE and not _has_escapes(payload):
            allowed = f"0 to {limits.PAYLOAD_BYTES_MAX} bytes"
            raise InvalidInput(f"messages[{base + index}].payload", f"{size} bytes", allowed)


def _has_escapes(text: memoryview) -> bool:
    """Return whether a JSON text has escapes, and so is shorter decoded; by parts, to copy less."""
    return any(b"\\" in bytes(text[at : at + SCAN_BYTES]) for at in range(0, len(text), SCAN_BYTES))


def _read(body: Bytes, usual: Callable[[Any], Any], given: Callable[[Any], Any]) -> pa.RecordBatch:
    try:
        try:
            messages = usual(body)
        except msgspec.ValidationError:
            messages = given(body)
    except msgspec.ValidationError as fault:
        raise _named(fault, body) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise InvalidInput("body", _start(body), f"valid JSON ({fault})") from None
    if not isinstance(messages, list):
        messages = [messages]
    if not 1 <= len(messages) <= limits.BATCH_MESSAGES_MAX:
        raise InvalidInput("messages", len(messages), f"1 to {limits.BATCH_MESSAGES_MAX} messages in one call")
    fields: Fields = {name: [getattr(message, name) for message in messages] for name in COLUMN_OF}
    if isinstance(messages[0], DecodedMessage):
        fields["payload"] = [_payload(index, message) for index, message in enumerate(messages)]
    return to_batch(fields)


def _payload(index: int, message: DecodedMessage) -> bytes | str:
    if message.payload_base64 is not None:
        return message.payload_base64
    raw = bytes(message.payload)
    try:
        if raw[0] == _QUOTE:
            return _TEXT.decode(raw)
        raw.decode()  # the decoder does not check UTF-8 in what it skips
        return msgspec.json.format(raw, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise InvalidInput(f"messages[{index}].payload", raw[:80], f"valid JSON ({fault})") from None


def _named(fault: msgspec.ValidationError, body: Bytes) -> InvalidInput:
    """Return the fault with its place: `messages[2].prio`, and `messages[0]` for a message that came alone."""
    try:
        large = len(memoryview(body)) > NAMED_BYTES_MAX
        found = refused(fault, TOO_LARGE_TO_NAME if large else msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # lines, or broken further on
        found = refused(fault, _start(body))
    if found.field == "body":
        whole = "Expected `object | array`" in str(fault)
        return InvalidInput("body" if whole else "messages[0]", found.given, found.allowed)
    place = found.field if found.field.startswith("[") else f"[0].{found.field}"
    return InvalidInput(f"messages{place}", found.given, found.allowed)


def _start(body: Bytes) -> bytes:
    return bytes(memoryview(body)[:80])


def write(batch: pa.RecordBatch, leases: Int64 | None) -> Response:
    """Return `{"messages": […]}` as an answer."""
    return json_response({"messages": _rows(batch, leases)})


def write_lines(batch: pa.RecordBatch, leases: Int64 | None) -> Response:
    """Return an answer with one message a line."""
    return Response(body=[_ENCODER.encode_lines(_rows(batch, leases))], content_type=NDJSON)


class PageWriter:
    """Writes `{"messages": […], "next": …}` block by block."""

    def __init__(self, following: str | None) -> None:
        self._parts: list[bytes] = [b'{"messages":[']
        self._end = b"]}" if following is None else b'],"next":%b}' % _ENCODER.encode(following)

    def add(self, block: pa.RecordBatch, leases: Int64 | None = None) -> None:
        """Append messages."""
        if len(self._parts) > 1:
            self._parts.append(b",")
        self._parts.append(_ENCODER.encode(_rows(block, leases))[1:-1])

    def response(self) -> Response:
        """Return all that was added as an answer."""
        return Response(body=[*self._parts, self._end], content_type=JSON)


class Lines:
    """Writes one message a line, block by block."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, block: pa.RecordBatch, leases: Int64 | None = None) -> None:
        """Append messages."""
        self._parts.append(_ENCODER.encode_lines(_rows(block, leases)))

    def response(self) -> Response:
        """Return all that was added as an answer."""
        return Response(body=self._parts, content_type=NDJSON)


def _rows(batch: pa.RecordBatch, leases: Int64 | None) -> list[msgspec.Struct]:
    fields = to_fields(_with_text(batch), leases)
    if batch.num_rows and isinstance(fields["payload"][0], bytes):
        pairs = [_text_or_bytes(payload) for payload in fields.pop("payload")]
        fields["payload"] = [text for text, _ in pairs]
        fields["payload_base64"] = [data for _, data in pairs]
    return list(map(_row_type(tuple(fields)), *fields.values()))


def _with_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with payloads as text, if all of them are."""
    place = batch.schema.get_field_index("payload")
    try:
        return batch.set_column(place, "payload", batch.column(place).cast(pa.string()))
    except pa.ArrowInvalid:
        return batch


def _text_or_bytes(payload: bytes) -> tuple[str | None, bytes | None]:
    try:
        return payload.decode(), None
    except UnicodeDecodeError:
        return None, payload


@lru_cache(maxsize=1024)
def _row_type(names: tuple[str, ...]) -> type[msgspec.Struct]:
    """Return a struct type of these fields, which leaves out those that are None."""
    return msgspec.defstruct("Row", [(name, Any, None) for name in names], omit_defaults=True, gc=False)
