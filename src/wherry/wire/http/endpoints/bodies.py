"""JSON bodies made from the model's own structs, so that a field added to the model is a field of the interface."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import NODEFAULT, UNSET, UnsetType

from wherry.model.errors import AlreadyExists
from wherry.wire.http.api.terms import MODEL, json_schema


def fields_of(
    kind: type[msgspec.Struct], name: str, without: set[str], parts: dict[str, Any] | None = None
) -> type[msgspec.Struct]:
    """Make a struct with the fields of another, all optional, in which an unknown field is an error.

    `parts` are structs of the interface that replace nested structs of the model.
    """
    info = [each for each in msgspec.structs.fields(kind) if each.encode_name not in without]
    fields = [(each.encode_name, _described(each, parts or {}) | UnsetType, UNSET) for each in info]
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True, module=__name__)


def part_of(kind: type[msgspec.Struct], name: str) -> type[msgspec.Struct]:
    """Make a struct with the fields and defaults of another, in which an unknown field is an error."""
    fields = []
    for each in msgspec.structs.fields(kind):
        default = each.default if each.default_factory is NODEFAULT else msgspec.field(default_factory=dict)
        fields.append((each.encode_name, _described(each, {}), default))
    given = [field if field[2] is not NODEFAULT else field[:2] for field in fields]
    return msgspec.defstruct(name, given, forbid_unknown_fields=True, frozen=True, kw_only=True, module=__name__)


def _described(each: Any, parts: dict[str, Any]) -> Any:
    """Return the type of a field, with its description for the OpenAPI document."""
    kind = parts.get(each.encode_name, each.type)
    if isinstance(each.default, bool | int | float | str):
        kind = Annotated[kind, json_schema(default=each.default)]
    rule = MODEL.get(each.encode_name)
    return kind if rule is None else Annotated[kind, rule]


def shown(kind: type[msgspec.Struct], name: str, parts: dict[str, Any] | None = None) -> type[msgspec.Struct]:
    """Make a struct that shows every field of another, those with their default value too."""
    kinds = {each.encode_name: each.type for each in msgspec.structs.fields(kind)}
    fields = list((kinds | (parts or {})).items())
    return msgspec.defstruct(name, fields, module=__name__)


def given(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that the caller gave."""
    values = {name: getattr(body, name) for name in body.__struct_fields__}
    return {name: value for name, value in values.items() if value is not UNSET}


def model(kind: Any, part: msgspec.Struct) -> Any:
    """Return the model's struct for a nested struct of a body."""
    return kind(**msgspec.structs.asdict(part))


def changed(kind: str, known: Any, fields: dict[str, Any], fixed: set[str]) -> Any:
    """Return a struct with the given fields changed; `AlreadyExists` for one that cannot change."""
    for name in sorted(fixed & fields.keys()):
        if fields[name] != getattr(known, name):
            raise AlreadyExists(kind, known.name, f"its {name} is {getattr(known, name)!r}, and cannot change")
    return msgspec.structs.replace(known, **fields)
