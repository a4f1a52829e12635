"""Query strings and JSON bodies as checked structs; a refusal names the field, the value and the rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from wherry.model import check
from wherry.model.errors import InvalidInput
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.protocol.message import JSON, Bytes, Request

NAMED_BYTES_MAX = 64 << 10
"""Largest body for which a refusal names the wrong value: to find it, the whole body is decoded into objects."""

TOO_LARGE_TO_NAME = "(not shown for a body this large)"

_QUOTE = ord('"')
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_FLOAT = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `float`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)


def decode_query(kind: type[msgspec.Struct] | None, arguments: list[tuple[str, str]]) -> Any:
    """Decode a query string into a struct."""
    if kind is None:
        if arguments:
            raise InvalidInput(arguments[0][0], arguments[0][1], "no query: this call takes none")
        return None
    fields = _fields(kind)
    values: dict[str, object] = {}
    for name, text in arguments:
        if name not in fields:
            raise InvalidInput(name, text, "one of " + ", ".join(fields))
        if not text.isascii():
            check.text(name, text)
        if text == "null" and fields[name] is not ArgumentForm.TEXT:  # msgspec would read it as None
            raise InvalidInput(name, text, "a value, or no such argument")
        if fields[name] is ArgumentForm.SEVERAL:
            listed = values.setdefault(name, [])
            assert isinstance(listed, list)
            listed.append(text)
        elif name in values:
            raise InvalidInput(name, text, f"{name} once")
        else:
            values[name] = text
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as fault:
        raise refused(fault, values) from None


def decode_body(kind: Any, request: Request) -> Any:
    """Decode a JSON body into a struct; no body at all counts as `{}`."""
    given = request.content_type()
    if given not in ("", JSON) and request.body:
        raise HttpError("unsupported-media-type", f"{given} is not understood here; {JSON} is")
    if hasattr(kind, "texts_max") and len(request.body) > NAMED_BYTES_MAX:
        _check_texts(request.body, kind.texts_max)
    return decode_json(kind, request.body or b"{}")


def _check_texts(body: Bytes, texts_max: int) -> None:
    """Refuse a body with too many texts by counting its quotation marks, before it is decoded."""
    marks = int(np.count_nonzero(np.frombuffer(body, np.uint8) == _QUOTE))
    if marks > 2 * texts_max:
        raise InvalidInput("body", f"{marks // 2} texts", f"at most {texts_max} in one call")


def decode_json(kind: Any, data: Any) -> Any:
    """Decode JSON into a value of a type."""
    try:
        return whole_numbers(_decoder(kind).decode, _decoder(kind, strict=False).decode, data)
    except msgspec.ValidationError as fault:
        raise refused(fault, _plain(data)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise InvalidInput("body", bytes(memoryview(data)[:80]), f"valid JSON ({fault})") from None


def whole_numbers(strict: Callable[[Any], Any], lax: Callable[[Any], Any], data: Any) -> Any:
    """Decode JSON in which a whole number may have a point, as in `1495.0`: to JSON Schema that is an integer."""
    try:
        return strict(data)
    except msgspec.ValidationError as fault:
        if not _FLOAT.search(str(fault)):
            raise
        try:
            return lax(data)
        except msgspec.ValidationError:
            raise fault from None


def _plain(data: Any) -> object:
    """Decode JSON into plain values; `TOO_LARGE_TO_NAME` if it is large, None if it is broken after the first fault."""
    if len(memoryview(data)) > NAMED_BYTES_MAX:
        return TOO_LARGE_TO_NAME
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def refused(fault: msgspec.ValidationError, given: object) -> InvalidInput:
    """Translate a fault of msgspec: name the field, the value given and what is allowed."""
    found = _PLACE.match(str(fault))
    assert found is not None
    what, path = found["what"], found["path"] or ""
    for pattern, allowed in ((_UNKNOWN, "no field of this name"), (_MISSING, "this field, which is required")):
        named = pattern.match(what)
        if named is not None:
            field = f"{path}.{named['name']}".lstrip(".")
            return InvalidInput(field, _at(given, field), allowed)
    return InvalidInput(path or "body", _at(given, path), what[:1].lower() + what[1:])


def _at(value: Any, path: str) -> object:
    """Return the value at a place such as `retry.attempts` or `[3].key`; None if there is none."""
    if value is TOO_LARGE_TO_NAME:
        return value
    for step in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        try:
            value = value[int(step[1:-1])] if step.startswith("[") else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


@lru_cache(maxsize=256)
def _decoder(kind: Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, strict=strict)


class ArgumentForm(Enum):
    """The form in which an argument of a query comes."""

    TEXT = auto()
    SEVERAL = auto()
    OTHER = auto()


@lru_cache(maxsize=256)
def _fields(kind: type[msgspec.Struct]) -> dict[str, ArgumentForm]:
    """Return the arguments of a query by name."""
    return {each.encode_name: _shape(msgspec.inspect.type_info(each.type)) for each in msgspec.structs.fields(kind)}


def _shape(info: msgspec.inspect.Type) -> ArgumentForm:
    kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    plain = [each.type if isinstance(each, msgspec.inspect.Metadata) else each for each in kinds]
    if any(isinstance(each, msgspec.inspect.CollectionType) for each in plain):
        return ArgumentForm.SEVERAL
    return ArgumentForm.TEXT if any(isinstance(each, msgspec.inspect.StrType) for each in plain) else ArgumentForm.OTHER
