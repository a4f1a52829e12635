"""Every endpoint, asked well and asked badly. An endpoint without both kinds of question fails here."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

from tests.behaviour.web import Web, web
from wherry.model import limits
from wherry.wire.http.endpoints import TABLES
from wherry.wire.http.message import AVRO, OCTETS, PROBLEM

ENDPOINTS = {endpoint.name: endpoint for table in TABLES for endpoint in table.endpoints}
TOPIC, SUB = "/v1/topics/jobs", "/v1/topics/jobs/subscriptions/workers"
FREE = {"GET /healthz", "GET /readyz", "GET /v1", "GET /openapi.json", "GET /docs"}
"""They take nothing, so the only bad question is one with an argument."""


class Good(NamedTuple):
    """A call of an endpoint that succeeds, and some of what it says. Receipts, keys and ids are filled in."""

    endpoint: str
    target: str
    body: Any = None
    status: int = 200
    says: dict[str, Any] | None = None


class Bad(NamedTuple):
    """A call that is refused: its code, and for bad values the field."""

    endpoint: str
    target: str
    body: Any
    code: str
    field: str | None = None


GOOD = [
    Good("GET /v1/topics", "/v1/topics"),
    Good("PUT /v1/topics/{topic}", "/v1/topics/new", {"order": "priority"}, 201),
    Good("PUT /v1/topics/{topic}", "/v1/topics/a%2Fb%20%C3%A9", {}, 201),
    Good("PUT /v1/topics/{topic}", TOPIC, {"partitions": 2, "messages_max": 9}),
    Good("GET /v1/topics/{topic}", TOPIC),
    Good("PATCH /v1/topics/{topic}", TOPIC, {"messages_max": 5, "partitions": 2}),
    Good("DELETE /v1/topics/{topic}", TOPIC, None, 204),
    Good("GET /v1/topics/{topic}/subscriptions", TOPIC + "/subscriptions"),
    Good("PUT /v1/topics/{topic}/subscriptions/{subscription}", TOPIC + "/subscriptions/new", {}, 201),
    Good("PUT /v1/topics/{topic}/subscriptions/{subscription}", SUB, {"lease_ms": 60_000}),
    Good("GET /v1/topics/{topic}/subscriptions/{subscription}", SUB),
    Good("PATCH /v1/topics/{topic}/subscriptions/{subscription}", SUB, {"lease_ms": 5, "retry": {"attempts": 2}}),
    Good("DELETE /v1/topics/{topic}/subscriptions/{subscription}", SUB, None, 204),
    Good("GET /v1/topics/{topic}/subscriptions/{subscription}/consumers", SUB + "/consumers"),
    Good(
        "DELETE /v1/topics/{topic}/subscriptions/{subscription}/consumers/{consumer}", SUB + "/consumers/ann", None, 204
    ),
    Good("POST /v1/topics/{topic}/messages", TOPIC + "/messages", {"payload": "x"}, 201, {"count": 1, "dead": 0}),
    Good("POST /v1/topics/{topic}/messages", TOPIC + "/messages", [{"payload": 1}] * 2, 201, {"count": 2}),
    Good("POST /v1/topics/{topic}/messages", TOPIC + "/messages?ids=false", b"raw", 201, {"durable": True}),
    Good("POST /v1/topics/{topic}/subscriptions/{subscription}/pull", SUB + "/pull"),
    Good("POST /v1/topics/{topic}/subscriptions/{subscription}/ack", SUB + "/ack", {"receipts": ["{receipt}"]}, 204),
    Good("POST /v1/topics/{topic}/subscriptions/{subscription}/nack", SUB + "/nack", {"receipts": ["{receipt}"]}, 204),
    Good(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/reject", SUB + "/reject", {"receipts": ["{lease}"]}, 204
    ),
    Good(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/release", SUB + "/release", {"receipts": ["{lease}"]}, 204
    ),
    Good(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/extend", SUB + "/extend", {"receipts": ["{lease}"]}, 204
    ),
    Good("GET /v1/topics/{topic}/messages", TOPIC + "/messages?start=1&limit=1"),
    Good("GET /v1/topics/{topic}/search", TOPIC + "/search?key=k&header=a:b&header=c:d&from_ms=0"),
    Good("GET /v1/topics/{topic}/subscriptions/{subscription}/scheduled", SUB + "/scheduled?limit=5"),
    Good("GET /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m1"),
    Good("PATCH /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m2", {"payload": "new"}, 200, {"version": 2}),
    Good("PATCH /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m2", {"payload_base64": "/w==", "version": 1}),
    Good("DELETE /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m2", None, 204),
    Good("GET /v1/topics/{topic}/messages/{id}/fate", TOPIC + "/messages/m1/fate", None, 200, {"id": "m1"}),
    Good("GET /v1/topics/{topic}/dead", TOPIC + "/dead?subscription=workers&reason=x"),
    Good("POST /v1/topics/{topic}/dead/redrive", TOPIC + "/dead/redrive", {"by": "ann"}, 200, {"count": 1}),
    Good("POST /v1/topics/{topic}/dead/discard", TOPIC + "/dead/discard", {"filter": {"limit": 5}}, 200, {"count": 1}),
    Good("GET /v1/topics/{topic}/dead/audit", TOPIC + "/dead/audit"),
    Good("GET /v1/routes", "/v1/routes"),
    Good("PUT /v1/routes/{route}", "/v1/routes/new", {"kind": "fanout", "bindings": [{"topic": "jobs"}]}),
    Good("GET /v1/routes/{route}", "/v1/routes/all", None, 200, {"name": "all", "kind": "fanout"}),
    Good("DELETE /v1/routes/{route}", "/v1/routes/all", None, 204),
    Good("POST /v1/routes/{route}/messages", "/v1/routes/all/messages?routing_key=x", {"payload": "x"}, 201),
    Good("POST /v1/transactions/{key}/topics/{topic}/messages", "/v1/transactions/t2/topics/jobs/messages", b"x", 204),
    Good(
        "POST /v1/transactions/{key}/topics/{topic}/subscriptions/{subscription}/ack",
        "/v1/transactions/t1/topics/jobs/subscriptions/workers/ack",
        {"receipts": ["{receipt}"]},
        204,
    ),
    Good(
        "POST /v1/transactions/{key}/commit", "/v1/transactions/t1/commit", None, 200, {"placed": [["jobs", 1, 0, 1]]}
    ),
    Good("DELETE /v1/transactions/{key}", "/v1/transactions/t1", None, 204),
    Good("GET /v1/keys", "/v1/keys"),
    Good("POST /v1/keys", "/v1/keys", {"name": "bob", "rights": [{"verb": "admin", "topics": "*"}]}, 201),
    Good("GET /v1/keys/{id}", "/v1/keys/{key}", None, 200, {"name": "ann"}),
    Good("PATCH /v1/keys/{id}", "/v1/keys/{key}", {"name": "eve", "expires_ms": None}, 200, {"name": "eve"}),
    Good("DELETE /v1/keys/{id}", "/v1/keys/{key}", None, 204),
    Good("GET /v1/schemas/{schema}", "/v1/schemas/message", None, 200, {"type": "record", "name": "Message"}),
    Good("GET /v1", "/v1", None, 200, {"name": "wherry"}),
    Good("GET /healthz", "/healthz"),
    Good("GET /readyz", "/readyz"),
    Good("GET /openapi.json", "/openapi.json", None, 200, {"openapi": "3.1.0"}),
    Good("GET /docs", "/docs"),
    Good("GET /docs/{file}", "/docs/swagger-ui.css"),
]

BAD = [
    Bad("GET /v1/topics", "/v1/topics?x=1", None, "invalid-input", "x"),
    Bad("PUT /v1/topics/{topic}", "/v1/topics/new", {"partitions": 0}, "invalid-input", "partitions"),
    Bad("PUT /v1/topics/{topic}", "/v1/topics/new", {"partitions": "2"}, "invalid-input", "partitions"),
    Bad("PUT /v1/topics/{topic}", "/v1/topics/new", {"partitoins": 2}, "invalid-input", "partitoins"),
    Bad("PUT /v1/topics/{topic}", "/v1/topics/new", {"keep": "age"}, "invalid-input", "keep_ms"),
    Bad("PUT /v1/topics/{topic}", "/v1/topics/new", b'{"partitions": "2", ', "invalid-input", "partitions"),
    Bad("PUT /v1/topics/{topic}", "/v1/topics/new", b"[" * 100_000, "invalid-input", "body"),
    Bad("PUT /v1/topics/{topic}", "/v1/topics/new", b"\xff", "invalid-input", "body"),
    Bad("PUT /v1/topics/{topic}", "/v1/topics/%00", {}, "invalid-input", "topic"),
    Bad("PUT /v1/topics/{topic}", "/v1/topics/%FF", {}, "invalid-input", "topic"),
    Bad("PUT /v1/topics/{topic}", "/v1/topics/" + "x" * 1_025, {}, "invalid-input", "topic"),
    Bad("PUT /v1/topics/{topic}", TOPIC, {"partitions": 3}, "already-exists"),
    Bad("GET /v1/topics/{topic}", "/v1/topics/none", None, "not-found"),
    Bad("PATCH /v1/topics/{topic}", TOPIC, {"order": "priority"}, "invalid-input", "order"),
    Bad("PATCH /v1/topics/{topic}", "/v1/topics/none", {}, "not-found"),
    Bad("DELETE /v1/topics/{topic}", "/v1/topics/none", None, "not-found"),
    Bad("GET /v1/topics/{topic}/subscriptions", "/v1/topics/none/subscriptions", None, "not-found"),
    Bad("PUT /v1/topics/{topic}/subscriptions/{subscription}", SUB, {"lease_ms": 1}, "already-exists"),
    Bad(
        "PUT /v1/topics/{topic}/subscriptions/{subscription}",
        TOPIC + "/subscriptions/new",
        {"retry": {"attempts": 0}},
        "invalid-input",
        "retry.attempts",
    ),
    Bad(
        "PUT /v1/topics/{topic}/subscriptions/{subscription}",
        TOPIC + "/subscriptions/new",
        {"retry": {"tries": 3}},
        "invalid-input",
        "retry.tries",
    ),
    Bad("GET /v1/topics/{topic}/subscriptions/{subscription}", TOPIC + "/subscriptions/none", None, "not-found"),
    Bad("PATCH /v1/topics/{topic}/subscriptions/{subscription}", SUB, {"durable": False}, "invalid-input", "durable"),
    Bad("PATCH /v1/topics/{topic}/subscriptions/{subscription}", SUB, {"lease_ms": 0}, "invalid-input", "lease_ms"),
    Bad("DELETE /v1/topics/{topic}/subscriptions/{subscription}", TOPIC + "/subscriptions/none", None, "not-found"),
    Bad(
        "GET /v1/topics/{topic}/subscriptions/{subscription}/consumers",
        TOPIC + "/subscriptions/none/consumers",
        None,
        "not-found",
    ),
    Bad(
        "DELETE /v1/topics/{topic}/subscriptions/{subscription}/consumers/{consumer}",
        SUB + "/consumers/none",
        None,
        "not-found",
    ),
    Bad("POST /v1/topics/{topic}/messages", "/v1/topics/none/messages", {"payload": "x"}, "not-found"),
    Bad("POST /v1/topics/{topic}/messages", TOPIC + "/messages", [], "invalid-input", "messages"),
    Bad(
        "POST /v1/topics/{topic}/messages",
        TOPIC + "/messages",
        [{"payload": "x"}, {"payload": "x", "priority": -1}],
        "invalid-input",
        "messages[1].priority",
    ),
    Bad(
        "POST /v1/topics/{topic}/messages",
        TOPIC + "/messages?partition=2",
        {"payload": "x"},
        "invalid-input",
        "partition",
    ),
    Bad("POST /v1/topics/{topic}/messages", TOPIC + "/messages?producer=p", b"x", "invalid-input", "sequence"),
    Bad("POST /v1/topics/{topic}/messages", TOPIC + "/messages?partition=null", b"x", "invalid-input", "partition"),
    Bad("POST /v1/topics/{topic}/messages", TOPIC + "/messages?ids=1&ids=0", b"x", "invalid-input", "ids"),
    Bad("POST /v1/topics/{topic}/messages", TOPIC + "/messages?wait=never", b"x", "invalid-input", "wait"),
    Bad("POST /v1/topics/{topic}/messages", TOPIC + "/messages?" + "a&" * 200, b"x", "invalid-input", "query"),
    Bad("POST /v1/topics/{topic}/messages", TOPIC + "/messages", {"payload": "x", "id": "m0"}, "duplicate-id"),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/pull",
        SUB + "/pull?messages=0",
        None,
        "invalid-input",
        "messages",
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/pull",
        SUB + "/pull?bytes=0",
        None,
        "invalid-input",
        "bytes",
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/pull",
        SUB + "/pull?wait_ms=60001",
        None,
        "invalid-input",
        "wait_ms",
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/pull",
        SUB + "/pull?columns=few",
        None,
        "invalid-input",
        "columns",
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/pull",
        SUB + "/pull?consumer=a%20b",
        None,
        "invalid-input",
        "consumer",
    ),
    Bad("POST /v1/topics/{topic}/subscriptions/{subscription}/ack", SUB + "/ack", {}, "invalid-input", "receipts"),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/ack",
        SUB + "/ack",
        {"receipts": ["x"]},
        "invalid-input",
        "receipts[0]",
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/ack", SUB + "/ack", {"receipts": ["77:1"]}, "stale-lease"
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/ack",
        SUB + "/ack",
        {"receipts": ["{lease}:9"]},
        "stale-lease",
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/ack",
        TOPIC + "/subscriptions/others/ack",
        {"receipts": ["{receipt}"]},
        "stale-lease",
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/nack",
        SUB + "/nack",
        {"receipts": ["{receipt}"], "delay_ms": -1},
        "invalid-input",
        "delay_ms",
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/reject",
        SUB + "/reject",
        {"receipts": ["1"]},
        "stale-lease",
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/release",
        SUB + "/release",
        {"receipts": []},
        "invalid-input",
        "receipts",
    ),
    Bad(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/extend",
        SUB + "/extend",
        {"receipts": ["{lease}"], "lease_ms": 0},
        "invalid-input",
        "lease_ms",
    ),
    Bad(
        "GET /v1/topics/{topic}/subscriptions/{subscription}/events",
        SUB + "/events?ack=never",
        None,
        "invalid-input",
        "ack",
    ),
    Bad(
        "GET /v1/topics/{topic}/subscriptions/{subscription}/events",
        TOPIC + "/subscriptions/none/events",
        None,
        "not-found",
    ),
    Bad("GET /v1/topics/{topic}/messages", TOPIC + "/messages?limit=0", None, "invalid-input", "limit"),
    Bad("GET /v1/topics/{topic}/messages", TOPIC + "/messages?start=-1", None, "invalid-input", "start"),
    Bad("GET /v1/topics/{topic}/messages", TOPIC + "/messages?start=%FF", None, "invalid-input", "start"),
    Bad("GET /v1/topics/{topic}/search", TOPIC + "/search?header=plain", None, "invalid-input", "header"),
    Bad(
        "GET /v1/topics/{topic}/search",
        TOPIC + f"/search?to_ms={limits.TIME_MS_MAX + 1}",
        None,
        "invalid-input",
        "to_ms",
    ),
    Bad(
        "GET /v1/topics/{topic}/subscriptions/{subscription}/scheduled",
        SUB + "/scheduled?limit=x",
        None,
        "invalid-input",
        "limit",
    ),
    Bad("GET /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/none", None, "not-found"),
    Bad("PATCH /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m2", {}, "invalid-input", "change"),
    Bad(
        "PATCH /v1/topics/{topic}/messages/{id}",
        TOPIC + "/messages/m2",
        {"priority": -1},
        "invalid-input",
        "messages[0].priority",
    ),
    Bad(
        "PATCH /v1/topics/{topic}/messages/{id}",
        TOPIC + "/messages/m2",
        {"payload_base64": "é"},
        "invalid-input",
        "payload_base64",
    ),
    Bad(
        "PATCH /v1/topics/{topic}/messages/{id}",
        TOPIC + "/messages/m2",
        {"payload": "", "payload_base64": ""},
        "invalid-input",
        "payload",
    ),
    Bad(
        "PATCH /v1/topics/{topic}/messages/{id}",
        TOPIC + "/messages/m2",
        {"priority": 1, "version": 9},
        "version-conflict",
    ),
    Bad("PATCH /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m1", {"priority": 1}, "not-waiting"),
    Bad("DELETE /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m1", None, "not-waiting"),
    Bad("DELETE /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/none", None, "not-found"),
    Bad("GET /v1/topics/{topic}/messages/{id}/fate", TOPIC + "/messages/none/fate", None, "not-found"),
    Bad("GET /v1/topics/{topic}/messages/{id}/fate", "/v1/topics/empty/messages/none/fate", None, "not-found"),
    Bad("GET /v1/topics/{topic}/dead", TOPIC + "/dead?subscription=none", None, "not-found"),
    Bad("POST /v1/topics/{topic}/dead/redrive", TOPIC + "/dead/redrive", {"rate": 0}, "invalid-input", "rate"),
    Bad(
        "POST /v1/topics/{topic}/dead/redrive",
        TOPIC + "/dead/redrive",
        {"filter": {"offsets": [-1]}},
        "invalid-input",
        "offsets",
    ),
    Bad("POST /v1/topics/{topic}/dead/discard", TOPIC + "/dead/discard", {"rate": 5}, "invalid-input", "rate"),
    Bad("GET /v1/topics/{topic}/dead/audit", "/v1/topics/none/dead/audit", None, "not-found"),
    Bad("GET /v1/routes", "/v1/routes?x", None, "invalid-input", "x"),
    Bad("PUT /v1/routes/{route}", "/v1/routes/new", {"kind": "some"}, "invalid-input", "kind"),
    Bad("PUT /v1/routes/{route}", "/v1/routes/new", {"bindings": []}, "invalid-input", "kind"),
    Bad(
        "PUT /v1/routes/{route}",
        "/v1/routes/new",
        {"kind": "fanout", "bindings": [{"topic": "jobs", "key": "x"}]},
        "invalid-input",
        "bindings[0].key",
    ),
    Bad("GET /v1/routes/{route}", "/v1/routes/none", None, "not-found"),
    Bad("DELETE /v1/routes/{route}", "/v1/routes/none", None, "not-found"),
    Bad("POST /v1/routes/{route}/messages", "/v1/routes/none/messages", b"x", "not-found"),
    Bad(
        "POST /v1/transactions/{key}/topics/{topic}/messages",
        "/v1/transactions/t/topics/none/messages",
        b"x",
        "not-found",
    ),
    Bad(
        "POST /v1/transactions/{key}/topics/{topic}/subscriptions/{subscription}/ack",
        "/v1/transactions/t1/topics/jobs/subscriptions/workers/ack",
        {"receipts": ["1"]},
        "stale-lease",
    ),
    Bad("POST /v1/transactions/{key}/commit", "/v1/transactions/none/commit", None, "not-found"),
    Bad("DELETE /v1/transactions/{key}", "/v1/transactions/%01", None, "invalid-input", "key"),
    Bad("GET /v1/keys", "/v1/keys?all=1", None, "invalid-input", "all"),
    Bad("POST /v1/keys", "/v1/keys", {"name": "bob", "rights": []}, "invalid-input", "rights"),
    Bad(
        "POST /v1/keys",
        "/v1/keys",
        {"name": "bob", "rights": [{"verb": "admin", "topic": "*"}]},
        "invalid-input",
        "rights[0].topic",
    ),
    Bad("GET /v1/keys/{id}", "/v1/keys/none", None, "not-found"),
    Bad("PATCH /v1/keys/{id}", "/v1/keys/{key}", {"id": "other"}, "invalid-input", "id"),
    Bad("DELETE /v1/keys/{id}", "/v1/keys/none", None, "not-found"),
    Bad("GET /v1/schemas/{schema}", "/v1/schemas/none", None, "not-found"),
    Bad("GET /metrics", "/metrics", None, "not-found"),
    Bad("GET /docs/{file}", "/docs/none.css", None, "not-found"),
    Bad("GET /docs/{file}", "/docs/..%2F__init__.py", None, "not-found"),
    *(Bad(name, name.partition(" ")[2] + "?x=1", None, "invalid-input", "x") for name in sorted(FREE)),
]

ELSEWHERE = {
    "GET /v1/topics/{topic}/subscriptions/{subscription}/events",  # test_http_consume.py
    "GET /metrics",  # needs a broker that keeps figures
}


@pytest.mark.rows("D10", "G4")
def test_every_endpoint_is_asked_well_and_badly():
    assert {case.endpoint for case in GOOD} | ELSEWHERE == set(ENDPOINTS)
    assert {case.endpoint for case in BAD} == set(ENDPOINTS)


async def prepared(found: Web) -> dict[str, str]:
    """A broker with one of each, and their names."""
    await found.jobs()
    await found.good("PUT /v1/topics/empty", {})
    await found.good("PUT /v1/topics/jobs/subscriptions/others", {})
    receipts = await found.receipts(2, consumer="ann")
    await found.good(f"POST {SUB}/reject", {"receipts": receipts[:1]})
    await found.good("PUT /v1/routes/all", {"kind": "fanout", "bindings": [{"topic": "jobs"}]})
    await found.good("POST /v1/transactions/t1/topics/jobs/messages?partition=1", b"staged")
    made = await found.good("POST /v1/keys", {"name": "ann", "rights": [{"verb": "publish", "topics": "a.*"}]})
    return {"{receipt}": receipts[1], "{lease}": receipts[1].partition(":")[0], "{key}": made["id"]}


def filled(value: Any, names: dict[str, str]) -> Any:
    """With the names in their places."""
    if isinstance(value, str):
        for place, name in names.items():
            value = value.replace(place, name)
    elif isinstance(value, dict):
        return {name: filled(each, names) for name, each in value.items()}
    elif isinstance(value, list):
        return [filled(each, names) for each in value]
    return value


def check_path(case: Good | Bad) -> None:
    """The target is one of the endpoint: a slip would test another."""
    method, _, template = case.endpoint.partition(" ")
    parts, wanted = case.target.partition("?")[0].split("/"), template.split("/")
    assert len(parts) == len(wanted), (case.endpoint, case.target)
    assert all(want.startswith("{") or want == part for part, want in zip(parts, wanted, strict=True))
    assert method in ("GET", "PUT", "POST", "PATCH", "DELETE")


@pytest.mark.rows("D10", "G4")
@pytest.mark.parametrize("case", GOOD, ids=lambda case: f"{case.endpoint} {case.target}"[:150])
def test_what_is_asked_well_is_done(case: Good):
    async def main() -> None:
        async with web() as found:
            names = await prepared(found)
            check_path(case)
            method = case.endpoint.partition(" ")[0]
            reply = await found.ask(f"{method} {filled(case.target, names)}", filled(case.body, names))
            assert reply.status == case.status, reply.body
            assert reply.status in ENDPOINTS[case.endpoint].answers
            if case.says:
                assert case.says.items() <= reply.json().items()
            if method == "GET":
                head = await found.ask(f"HEAD {filled(case.target, names)}")
                assert head.status == reply.status

    asyncio.run(main())


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case.endpoint} {case.code} {case.field} {case.target}"[:150])
def test_what_is_asked_badly_is_refused_by_a_problem_that_names_it(case: Bad):
    async def main() -> None:
        async with web() as found:
            names = await prepared(found)
            check_path(case)
            method = case.endpoint.partition(" ")[0]
            json = {"content_type": "application/json"} if case.endpoint.startswith("PUT") else {}
            reply = await found.ask(f"{method} {filled(case.target, names)}", filled(case.body, names), **json)
            assert reply.kind == PROBLEM
            told = reply.json()
            assert (told["code"], told.get("field")) == (case.code, case.field), told
            assert told["status"] == reply.status
            assert told["type"] == f"urn:wherry:{case.code}"
            if case.field is not None:
                assert told["allowed"]
                assert told["given"]
                assert told["detail"].startswith(f"{case.field}: got ")

    asyncio.run(main())


def ask(line: str, body: Any = None, **headers: str) -> Any:
    async def main() -> Any:
        async with web() as found:
            await found.jobs()
            return await found.ask(line, body, **headers)

    return asyncio.run(main())


def test_the_problem_of_the_docs_is_the_problem_that_comes():
    assert ask("PUT /v1/topics/new", {"partitions": 0}).json() == {
        "type": "urn:wherry:invalid-input",
        "title": "Invalid input",
        "status": 400,
        "code": "invalid-input",
        "detail": "partitions: got 0; allowed: a whole number from 1 to 65535",
        "field": "partitions",
        "given": "0",
        "allowed": "a whole number from 1 to 65535",
    }


def test_a_method_that_is_not_there_is_told_with_those_that_are():
    reply = ask("POST /v1/topics/jobs", {})
    assert (reply.status, reply.headers["allow"]) == (405, "DELETE, GET, HEAD, PATCH, PUT")


@pytest.mark.parametrize("target", ["/", "/v2", "/v1/nothing", "/v1/topics/jobs/messages/m1/fate/more", "*", ""])
def test_a_place_where_nothing_is_is_told_so(target: str):
    assert ask(f"GET {target}").status == 404


def test_a_body_of_another_type_is_refused():
    assert ask("PUT /v1/topics/new", b"<x/>", content_type="text/xml").status == 415


def test_a_listing_that_nobody_can_read_is_refused():
    assert ask("GET /v1/topics/jobs/messages", accept="image/png").status == 406
    assert ask("GET /v1/topics/jobs/messages", accept=OCTETS).status == 406
    assert ask("GET /v1/topics/jobs/messages", accept=AVRO).kind == AVRO


def test_a_page_from_elsewhere_may_not_call():
    here = "localhost:7070"
    assert ask("GET /v1/topics", origin="http://evil.example", host=here).status == 403
    assert ask("GET /v1/topics", origin="null", host=here).status == 403
    assert ask("GET /v1/topics", origin=f"http://{here}", host=here).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7070", "127.0.0.1.evil.example", "[::1].evil", "[", ":"]
)
def test_a_name_that_was_made_to_point_here_opens_nothing(host: str):
    reply = ask("GET /v1/topics", origin=f"http://{host}", host=host)
    assert (reply.status, "server.names" in reply.json()["detail"]) == (403, True)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.7:7070", "[::1]:7070", "[2001:db8::1]", "LocalHost:7070", "localhost."]
)
def test_addresses_and_localhost_are_known(host: str):
    assert ask("GET /v1/topics", host=host).status == 200


def test_names_can_be_added_and_with_keys_any_name_does():
    async def main() -> None:
        async with web() as found:
            found.service.names = frozenset({"wherry.lan"})
            assert (await found.ask("GET /v1/topics", host="Wherry.lan:7070")).status == 200
            assert (await found.ask("GET /v1/topics", host="other.lan")).status == 403
            found.service.names = None
            assert (await found.ask("GET /v1/topics", host="other.lan")).status == 200

    asyncio.run(main())


def test_a_call_for_everyone_takes_no_body():
    assert ask("GET /healthz", content_length="5").status == 413


def test_what_is_busy_says_when_to_come_again():
    async def main() -> None:
        async with web() as found:
            await found.jobs()
            await found.good("PATCH /v1/topics/jobs", {"messages_max": 3})
            reply = await found.ask("POST /v1/topics/jobs/messages", b"x")
            assert (reply.status, reply.headers["retry-after"]) == (429, "1")

    asyncio.run(main())
