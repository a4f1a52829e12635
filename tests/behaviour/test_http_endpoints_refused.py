"""Every endpoint, asked badly. An endpoint without such a question fails here."""

from __future__ import annotations

import asyncio

import pytest

from tests.behaviour.http_cases import ENDPOINTS, SUB, TOPIC, Bad, check_path, filled, prepared
from tests.behaviour.web import web
from wherry.model import limits
from wherry.wire.http.protocol.message import PROBLEM

FREE = {"GET /healthz", "GET /readyz", "GET /v1", "GET /openapi.json", "GET /docs", "GET /console"}
FREE |= {"GET /wherry.js", "GET /wherry.d.ts", "GET /v1/sign-in"}
"""They take nothing, so the only bad question is one with an argument."""


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
    Bad("PUT /v1/topics/{topic}", TOPIC, {"order": "priority"}, "already-exists"),
    Bad("GET /v1/topics/{topic}", "/v1/topics/none", None, "not-found"),
    Bad("PATCH /v1/topics/{topic}", TOPIC, {"order": "priority"}, "already-exists"),
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
    Bad("PATCH /v1/topics/{topic}/subscriptions/{subscription}", SUB, {"durable": False}, "already-exists"),
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
        "POST /v1/topics/{topic}/subscriptions/{subscription}/dead-letter",
        SUB + "/dead-letter",
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
        "POST /v1/topics/{topic}/subscriptions/{subscription}/renew",
        SUB + "/renew",
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
    Bad("GET /console/{file}", "/console/none.js", None, "not-found"),
    Bad("GET /console/{file}", "/console/..%2F__init__.py", None, "not-found"),
    Bad("GET /console/{folder}/{file}", "/console/pages/none.js", None, "not-found"),
    Bad("GET /console/{folder}/{file}", "/console/pages/..%2Fstart.js", None, "not-found"),
    Bad("GET /v1/figures", "/v1/figures?all=1", None, "invalid-input", "all"),
    Bad("GET /v1/topics/{topic}/partitions", "/v1/topics/none/partitions", None, "not-found"),
    Bad("GET /v1/topics/{topic}/partitions", TOPIC + "/partitions?limit=0", None, "invalid-input", "limit"),
    Bad("GET /v1/topics/{topic}/partitions", TOPIC + "/partitions?first=-1", None, "invalid-input", "first"),
    Bad("GET /v1/topics/{topic}/dead/reasons", "/v1/topics/none/dead/reasons", None, "not-found"),
    Bad("GET /v1/topics/{topic}/dead/reasons", TOPIC + "/dead/reasons?from_ms=-1", None, "invalid-input", "from_ms"),
    Bad("GET /docs/{file}", "/docs/..%2F__init__.py", None, "not-found"),
    *(Bad(name, name.partition(" ")[2] + "?x=1", None, "invalid-input", "x") for name in sorted(FREE)),
]


@pytest.mark.rows("D10", "G4")
def test_every_endpoint_is_asked_badly():
    assert {case.endpoint for case in BAD} == set(ENDPOINTS)


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case.endpoint} {case.code} {case.field} {case.target}"[:150])
def test_a_bad_call_is_refused_by_a_problem_that_names_the_field(case: Bad):
    async def main() -> None:
        async with web() as found:
            names = await prepared(found)
            check_path(case)
            method = case.endpoint.partition(" ")[0]
            json = {"content_type": "application/json"} if case.endpoint.startswith("PUT") else {}
            reply = await found.ask(f"{method} {filled(case.target, names)}", filled(case.body, names), **json)
            assert reply.kind == PROBLEM
            problem = reply.json()
            assert (problem["code"], problem.get("field")) == (case.code, case.field), problem
            assert problem["status"] == reply.status
            assert problem["type"] == f"urn:wherry:{case.code}"
            if case.field is not None:
                assert problem["allowed"]
                assert problem["given"]
                assert problem["detail"].startswith(f"{case.field}: got ")

    asyncio.run(main())
