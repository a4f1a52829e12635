"""One message: its payload is the body, its other fields are headers.

Header values are percent-encoded where they are not visible ASCII, as CloudEvents has it: a value keeps its spaces, its
line ends and its letters, and cannot end its header. Header names lose their case on the way, as they may in HTTP.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote, unquote

import pyarrow as pa

from wherry.model.errors import InvalidInput
from wherry.model.schema import Int64, Message
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.formats.rows import Fields, to_batch, to_fields
from wherry.wire.http.protocol.message import (
    OCTETS,
    Header,
    Request,
    Response,
)

_PREFIX = "wherry-"
_NAMED = "wherry-header-"
_TEXTS = {"wherry-id": "id", "wherry-key": "key"}
_WHOLE = {"wherry-priority": "priority", "wherry-due-ms": "due_ms", "wherry-expires-ms": "expires_ms"}
_PASSED_OVER = frozenset(f"wherry-{n}" for n in ("receipt", "partition", "offset", "attempt", "published-ms"))
"""Headers that a pull adds; they are ignored, so that a pulled message can be published as it is."""

_DIGITS_MAX = 18
_NAME_SAFE = "!#$&'*+^`|"
_VALUE_SAFE = "!\"#$&'()*+,/:;<=>?@[\\]^`{|}"


def read(request: Request) -> pa.RecordBatch:
    """Return the body and headers of a request as a message."""
    fields: Fields = {"payload": [memoryview(request.body)]}
    headers: dict[str, str] = {}
    kind = request.headers.get("content-type", "")
    if kind and request.content_type() != OCTETS:
        headers["content-type"] = kind
    for name, value in request.headers.items():
        if name.startswith(_NAMED):
            headers[decoded(name, name[len(_NAMED) :])] = decoded(name, value)
        elif name in _TEXTS:
            fields[_TEXTS[name]] = [decoded(name, value)]
        elif name in _WHOLE:
            fields[_WHOLE[name]] = [_number(name, value)]
        elif name.startswith(_PREFIX) and name not in _PASSED_OVER:
            raise InvalidInput(name.title(), value, "one of " + ", ".join(map(str.title, (*_TEXTS, *_WHOLE, _NAMED))))
    if headers:
        fields["headers"] = [headers]
    return to_batch(fields)


def read_one(request: Request) -> Message | None:
    """Return a request's body as a message; None where `wherry-` headers have more fields, which `read` decodes."""
    headers = request.headers
    if any(name.startswith(_PREFIX) for name in headers):
        return None
    kind = headers.get("content-type", "")
    described = {"content-type": kind} if kind and request.content_type() != OCTETS else None
    return Message(payload=bytes(request.body), headers=described)


def decoded(name: str, value: str) -> str:
    """Decode a value of the header `name`, or a part of the name: UTF-8, whose bytes a head holds as Latin-1."""
    octets = unquote(value, "latin-1")
    try:
        return octets.encode("latin-1").decode()
    except (UnicodeEncodeError, UnicodeDecodeError):
        raise InvalidInput(name.title(), octets, "text in UTF-8, percent-encoded where it is not ASCII") from None


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX):
        raise InvalidInput(name.title(), value, "a whole number")
    return int(value)


def write(batch: pa.RecordBatch, leases: Int64 | None) -> Response:
    """Return the only message of a batch as an answer; 204 if there is none.

    The type of the answer is octets, whatever the message's own type: else a payload could run as a page of this
    broker.
    """
    if not batch.num_rows:
        return Response(HTTPStatus.NO_CONTENT)
    if batch.num_rows > 1:
        raise HttpError("not-acceptable", f"{OCTETS} carries one message, and there are {batch.num_rows}")
    payload = batch.column("payload")[0].as_buffer()
    fields = to_fields(batch.drop_columns(["payload"]), leases)
    headers: list[Header] = []
    for name, (value,) in fields.items():
        if name == "headers":
            named = ((quote(each, safe=_NAME_SAFE), text) for each, text in value.items())
            headers += [(f"Wherry-Header-{each}", _encoded(text)) for each, text in named]
        else:
            headers.append((f"Wherry-{name.replace('_', '-').title()}", _encoded(str(value))))
    return Response(body=[payload], content_type=OCTETS, headers=headers)


def _encoded(value: str) -> str:
    return quote(value, safe=_VALUE_SAFE)
