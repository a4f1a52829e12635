"""The document: valid, complete, and true to the table that serves."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.behaviour.web import web
from wherry.node.native.endpoints import NativeEndpoints
from wherry.node.stomp.endpoints import StompEndpoints
from wherry.node.stomp.transports import HttpTransports
from wherry.wire.http import app
from wherry.wire.http.api.openapi import RULES, describe
from wherry.wire.http.api.problem import STATUS_OF
from wherry.wire.http.endpoints import TABLES

STOMP = StompEndpoints(HttpTransports(None)).table()  # type: ignore[arg-type]  # nothing is called
NATIVE = NativeEndpoints(None, None).table()  # type: ignore[arg-type]  # nothing is called
ENDPOINTS = [endpoint for table in (*TABLES, NATIVE, STOMP) for endpoint in table.endpoints]
DOCUMENT: dict[str, Any] = msgspec.json.decode(describe(ENDPOINTS))
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}


@pytest.mark.rows("D10", "G4")
def test_the_document_is_valid():
    OpenAPIV31SpecValidator(DOCUMENT).validate()


@pytest.mark.rows("D10", "G4")
def test_every_endpoint_is_documented_once_and_in_words():
    assert set(OPERATIONS) == {endpoint.name for endpoint in ENDPOINTS}
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(ids)) == len(ids)
    assert all(operation["summary"] for operation in OPERATIONS.values())


def test_answers_and_problems_are_documented():
    for endpoint in ENDPOINTS:
        responses = OPERATIONS[endpoint.name]["responses"]
        assert {str(status) for status in endpoint.answers} <= set(responses)
        assert {str(int(STATUS_OF[code])) for code in endpoint.codes} <= set(responses)
        assert ("401" in responses) == ("security" in OPERATIONS[endpoint.name]) == (endpoint.right != "none")
        assert ("415" in responses) == ("requestBody" in OPERATIONS[endpoint.name])
    shared = DOCUMENT["components"]["responses"]
    assert "Retry-After" in shared["503"]["headers"]
    assert "Retry-After" in shared["429"]["headers"]
    assert "Allow" in shared["405"]["headers"]
    assert "WWW-Authenticate" in shared["401"]["headers"]


def test_ranges_are_documented_of_every_number_that_comes_in():
    for name, operation in OPERATIONS.items():
        for parameter in operation["parameters"]:
            schema = parameter["schema"]
            if schema.get("type") == "integer" and parameter["name"] != "timeout_ms":
                assert {"minimum", "maximum"} <= schema.keys(), (name, parameter)
            if parameter["in"] == "path":
                assert {"pattern", "enum", "format"} & schema.keys(), (name, parameter)


def test_rules_between_fields_are_of_bodies_that_are_there():
    assert set(RULES) <= set(DOCUMENT["components"]["schemas"])


def test_a_body_takes_no_field_that_is_not_documented():
    schemas = DOCUMENT["components"]["schemas"]
    for operation in OPERATIONS.values():
        for content in operation.get("requestBody", {}).get("content", {}).values():
            name = content["schema"].get("$ref", "").rpartition("/")[2]
            if name:
                assert schemas[name]["additionalProperties"] is False, name


def test_the_document_is_made_for_the_first_request(monkeypatch: pytest.MonkeyPatch):
    made: list[bytes] = []

    def describe_once(endpoints: Any) -> bytes:
        made.append(b"{}")
        return made[-1]

    async def main() -> None:
        async with web() as found:
            assert not made
            for _ in range(2):
                assert (await found.ask("GET /openapi.json")).body == b"{}"

    monkeypatch.setattr(app, "describe", describe_once)
    asyncio.run(main())
    assert len(made) == 1
