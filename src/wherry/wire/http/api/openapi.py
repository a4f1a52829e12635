"""The OpenAPI 3.1 document of the interface, made from the same table that serves it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, TypeAlias

import msgspec

from wherry.model import limits
from wherry.model.catalog.key import ID_CHARS
from wherry.wire.http.api.problem import RETRY_AFTER_S, STATUS_OF, Problem
from wherry.wire.http.api.routing import Endpoint
from wherry.wire.http.api.terms import EXAMPLES, PATH
from wherry.wire.http.endpoints.views import GivenMessage
from wherry.wire.http.protocol.message import EVENTS, JSON, PROBLEM

Schema: TypeAlias = dict[str, Any]

_REF = "#/components/schemas/{name}"

ALWAYS = ("invalid-input", "forbidden", "timeout", "headers-too-large", "internal", "busy", "closed")
"""Problems of any request: bad heads, pages of other origins, bounds, faults."""

WITH_BODY = ("too-large", "unsupported-media-type", "disk-full")

NULL = {"type": "null"}
WHOLE = {"type": "integer"}


def _together(**fields: Any) -> Schema:
    """Return a schema of fields that belong together: a value or schema for each, None for one that must be absent."""
    wanted = {
        name: NULL if value is None else value if isinstance(value, dict) else {"const": value}
        for name, value in fields.items()
    }
    return {"required": [name for name, value in fields.items() if value is not None], "properties": wanted}


def _unless(**fields: Any) -> Schema:
    """Return the same schema for fields that may be left out, since the value is their default."""
    return {**_together(**fields), "required": []}


AMENDABLE = ("payload", "payload_base64", "priority", "due_ms", "expires_ms", "headers")

RULES: dict[str, Schema] = {
    "TopicFields": {
        "anyOf": [
            _unless(keep="settled", keep_ms=None, keep_bytes=None),
            _together(keep="age", keep_ms=WHOLE, keep_bytes=None),
            _together(keep="bytes", keep_ms=None, keep_bytes=WHOLE),
        ]
    },
    "SubscriptionFields": {
        "allOf": [
            {
                "anyOf": [
                    _unless(start={"enum": ["earliest", "latest", None]}, start_offset=None, start_ms=None),
                    _together(start="offset", start_offset=WHOLE, start_ms=None),
                    _together(start="time", start_offset=None, start_ms=WHOLE),
                ]
            },
            {"anyOf": [_unless(key_order=False), _unless(acks=True)]},
        ]
    },
    "BindingFields": {
        "anyOf": [
            _together(topic={"type": "string"}, route=None),
            _together(route={"type": "string"}, topic=None),
        ]
    },
    "AmendBody": {
        "anyOf": [{"required": [name]} for name in AMENDABLE],
        "not": {"required": ["payload", "payload_base64"]},
    },
    "GivenMessage": {
        "anyOf": [
            {"required": ["payload"], "properties": {"payload_base64": NULL}},
            {
                "required": ["payload_base64"],
                "properties": {"payload_base64": {"type": "string"}},
                "not": {"required": ["payload"]},
            },
        ]
    },
}
"""Rules between the fields of a body."""


def describe(endpoints: Sequence[Endpoint]) -> bytes:
    """Return the document as JSON."""
    kinds = _kinds(endpoints)
    schemas, components = msgspec.json.schema_components(list(kinds), ref_template=_REF)
    schema_of = dict(zip(kinds, schemas, strict=True))
    for name, rule in RULES.items():
        components[name] |= rule
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, schema_of, components)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    for endpoint in endpoints:  # a query is described argument by argument
        if endpoint.query is not None:
            components.pop(endpoint.query.__name__, None)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Wherry",
            "version": version("wherry"),
            "summary": "A message queue whose log is Apache Arrow",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": _problems(schema_of[Problem]),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key, wk_…"}},
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(endpoint.tag for endpoint in endpoints)],
    }
    return msgspec.json.encode(document)


def _kinds(endpoints: Sequence[Endpoint]) -> dict[Any, None]:
    """Return every type that has a schema, once, in order."""
    kinds: dict[Any, None] = {Problem: None, GivenMessage: None}
    for endpoint in endpoints:
        wanted = [endpoint.query, endpoint.body]
        for answer in endpoint.answers.values():
            wanted += answer.values() if isinstance(answer, Mapping) else [answer]
        kinds |= {kind: None for kind in wanted if kind is not None and not isinstance(kind, tuple)}
    return kinds


def _operation(endpoint: Endpoint, schema_of: dict[Any, Any], components: Schema) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [
            *_path_parameters(endpoint),
            *_query_parameters(endpoint, schema_of, components),
            *_header_parameters(endpoint),
        ],
        "responses": _responses(endpoint, schema_of),
    }
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.body is not None:
        needed = _is_needed(components[endpoint.body.__name__])
        operation["requestBody"] = {"required": needed, "content": {JSON: {"schema": schema_of[endpoint.body]}}}
    elif endpoint.takes:
        given = schema_of[GivenMessage]
        several = {"type": "array", "minItems": 1, "maxItems": limits.BATCH_MESSAGES_MAX, "items": given}
        messages = {JSON: {"schema": {"anyOf": [given, several]}, "examples": _example({"payload": "hello"})}}
        content = {kind: messages.get(kind, _BYTES) for kind in endpoint.takes}
        operation["requestBody"] = {"required": False, "content": content}  # no body is an empty payload
    if endpoint.right != "none":
        operation["security"] = [{"key": []}, {}]
    return operation


def _example(value: object) -> dict[str, Any]:
    return {"one": {"value": value}}


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    parameters = []
    for name in re.findall(r"{(\w+)}", endpoint.path):
        schema = {"type": "string", **(PATH[name].extra_json_schema or {})}
        if endpoint.tag == "keys":
            schema |= {"pattern": f"^[0-9A-Za-z]{{{ID_CHARS}}}$"}
        parameter = {"name": name, "in": "path", "required": True, "schema": schema}
        parameters.append(parameter | ({"example": EXAMPLES[name]} if name in EXAMPLES else {}))
    return parameters


def _query_parameters(endpoint: Endpoint, schema_of: dict[Any, Any], components: Schema) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    schema = components[schema_of[endpoint.query]["$ref"].rpartition("/")[2]]
    required = set(schema.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _plain(each)}
        for name, each in schema["properties"].items()
    ]


def _header_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": True, "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.headers.items()
    ]


def _plain(schema: Schema) -> Schema:
    """Return a schema without null: in a query, null is expressed by leaving the argument out."""
    if "anyOf" in schema:
        rest = [each for each in schema["anyOf"] if each.get("type") != "null"]
        kept = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
        return {**rest[0], **kept} if len(rest) == 1 else {"anyOf": rest, **kept}
    return schema


def _responses(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in endpoint.answers.items():
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if isinstance(kind, tuple | Mapping):
            kinds = kind if isinstance(kind, Mapping) else dict.fromkeys(kind)
            answer["content"] = {
                media: _media(media) if each is None else {"schema": schema_of[each]} for media, each in kinds.items()
            }
        elif kind is not None:
            answer["content"] = {JSON: {"schema": schema_of[kind]}}
        responses[str(status)] = answer
    for status in sorted({int(STATUS_OF[code]) for code in _codes(endpoint)}):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return responses


def _codes(endpoint: Endpoint) -> set[str]:
    """Return the problems that a call can meet."""
    codes = {*ALWAYS, *endpoint.codes}
    if endpoint.right != "none":
        codes.add("unauthorized")
    if "{" in endpoint.path or endpoint.tag == "system":
        codes.add("not-found")
    if endpoint.gives:
        codes.add("not-acceptable")
    if endpoint.body is not None or endpoint.takes:
        codes.update(WITH_BODY)
    if endpoint.method != "GET":
        codes.add("disk-full")
    return codes


_BYTES: Schema = {"schema": {"type": "string", "format": "binary"}}


def _media(kind: str) -> Schema:
    """Describe a body without a schema of its own; a stream of events is no single value."""
    return {} if kind == EVENTS else _BYTES


_HEADERS: dict[str, tuple[str, Schema]] = {
    "Retry-After": ("Seconds after which trying again makes sense", {"type": "integer", "minimum": 1}),
    "Allow": ("The methods that there are", {"type": "string"}),
    "WWW-Authenticate": ("How to say who asks", {"const": "Bearer"}),
}


def _problems(schema: Schema) -> dict[str, Any]:
    """Describe every problem once, by status."""
    codes: dict[int, list[str]] = {}
    for code, status in STATUS_OF.items():
        codes.setdefault(int(status), []).append(code)
    return {str(status): _problem(status, listed, schema) for status, listed in sorted(codes.items())}


def _is_needed(schema: dict[str, Any]) -> bool:
    """Return whether a body is required: whether `{}` would be refused."""
    ways = schema.get("anyOf", [])
    return bool(schema.get("required")) or (bool(ways) and all(way.get("required") for way in ways))


def _problem(status: int, codes: list[str], schema: Schema) -> dict[str, Any]:
    tight = {"allOf": [schema, {"properties": {"status": {"const": status}, "code": {"enum": codes}}}]}
    described: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(codes)}",
        "content": {PROBLEM: {"schema": tight}},
    }
    names = [name for name, where in _SENT.items() if status in where]
    if names:
        sent = {name: _HEADERS[name] for name in names}
        described["headers"] = {name: {"description": text, "schema": kind} for name, (text, kind) in sent.items()}
    return described


_SENT: dict[str, set[int]] = {
    "Retry-After": {int(STATUS_OF[code]) for code in RETRY_AFTER_S},
    "Allow": {int(HTTPStatus.METHOD_NOT_ALLOWED)},
    "WWW-Authenticate": {int(HTTPStatus.UNAUTHORIZED)},
}
