"""Calls of endpoints as rows of a table, and the broker that they are made to."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.behaviour.web import Web
from wherry.wire.http.endpoints import TABLES

ENDPOINTS = {endpoint.name: endpoint for table in TABLES for endpoint in table.endpoints}
TOPIC, SUB = "/v1/topics/jobs", "/v1/topics/jobs/subscriptions/workers"


class Good(NamedTuple):
    """A call of an endpoint that succeeds, and some of its answer. Receipts, keys and ids are filled in."""

    endpoint: str
    target: str
    body: Any = None
    status: int = 200
    answer: dict[str, Any] | None = None


class Bad(NamedTuple):
    """A call that is refused: its code, and for bad values the field."""

    endpoint: str
    target: str
    body: Any
    code: str
    field: str | None = None


async def prepared(found: Web) -> dict[str, str]:
    """Prepare a broker with one of each, and return their names."""
    await found.jobs()
    await found.good("PUT /v1/topics/empty", {})
    await found.good("PUT /v1/topics/jobs/subscriptions/others", {})
    receipts = await found.receipts(2, consumer="ann")
    await found.good(f"POST {SUB}/dead-letter", {"receipts": receipts[:1]})
    await found.good("PUT /v1/routes/all", {"kind": "fanout", "bindings": [{"topic": "jobs"}]})
    await found.good("POST /v1/transactions/t1/topics/jobs/messages?partition=1", b"staged")
    made = await found.good("POST /v1/keys", {"name": "ann", "rights": [{"verb": "publish", "topics": "a.*"}]})
    return {"{receipt}": receipts[1], "{lease}": receipts[1].partition(":")[0], "{key}": made["id"]}


def filled(value: Any, names: dict[str, str]) -> Any:
    """Return a value with the names in their places."""
    if isinstance(value, str):
        for place, name in names.items():
            value = value.replace(place, name)
    elif isinstance(value, dict):
        return {name: filled(each, names) for name, each in value.items()}
    elif isinstance(value, list):
        return [filled(each, names) for each in value]
    return value


def check_path(case: Good | Bad) -> None:
    """Check that the target is one of the endpoint: a slip would test another."""
    method, _, template = case.endpoint.partition(" ")
    parts, wanted = case.target.partition("?")[0].split("/"), template.split("/")
    assert len(parts) == len(wanted), (case.endpoint, case.target)
    assert all(want.startswith("{") or want == part for part, want in zip(parts, wanted, strict=True))
    assert method in ("GET", "PUT", "POST", "PATCH", "DELETE")
