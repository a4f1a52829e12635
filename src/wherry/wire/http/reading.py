"""Query strings and JSON bodies as checked structs; what does not fit is named by field, value and rule."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache
from typing import Any

import msgspec

from wherry.model import check
from wherry.model.errors import InvalidInput
from wherry.wire.http.message import JSON, Request
from wherry.wire.http.problem import HttpError

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)


def decode_query(kind: type[msgspec.Struct] | None, arguments: list[tuple[str, str]]) -> Any:
    """The query string as a struct."""
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
        if text == "null" and fields[name] is not Shape.TEXT:  # msgspec would take it for None
            raise InvalidInput(name, text, "a value, or no such argument")
        if fields[name] is Shape.SEVERAL:
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
    """A JSON body as a struct; no body at all counts as `{}`."""
    given = request.content_type()
    if given not in ("", JSON) and request.body:
        raise HttpError("unsupported-media-type", f"{given} is not understood here; {JSON} is")
    return decode_json(kind, request.body or b"{}")


def decode_json(kind: Any, data: Any) -> Any:
    """JSON as a value of a type."""
    try:
        return _decoder(kind).decode(data)
    except msgspec.ValidationError as fault:
        raise refused(fault, _plain(data)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise InvalidInput("body", bytes(memoryview(data)[:80]), f"valid JSON ({fault})") from None


def _plain(data: Any) -> object:
    """JSON as it is; None if it is broken behind the fault that was found first."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def refused(fault: msgspec.ValidationError, given: object) -> InvalidInput:
    """A fault of msgspec in our words: which field, what was given, what is allowed."""
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
    """The value at a place such as `retry.attempts` or `[3].key`; None if there is none."""
    for step in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        try:
            value = value[int(step[1:-1])] if step.startswith("[") else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


class Shape(Enum):
    """How an argument of a query may come."""

    TEXT = auto()
    SEVERAL = auto()
    OTHER = auto()


@lru_cache(maxsize=256)
def _fields(kind: type[msgspec.Struct]) -> dict[str, Shape]:
    """The arguments of a query by name."""
    return {each.encode_name: _shape(msgspec.inspect.type_info(each.type)) for each in msgspec.structs.fields(kind)}


def _shape(info: msgspec.inspect.Type) -> Shape:
    kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    plain = [each.type if isinstance(each, msgspec.inspect.Metadata) else each for each in kinds]
    if any(isinstance(each, msgspec.inspect.CollectionType) for each in plain):
        return Shape.SEVERAL
    return Shape.TEXT if any(isinstance(each, msgspec.inspect.StrType) for each in plain) else Shape.OTHER
