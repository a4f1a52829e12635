"""Every endpoint, asked well. An endpoint without such a question fails here."""

from __future__ import annotations

import asyncio

import pytest

from tests.behaviour.http_cases import ENDPOINTS, SUB, TOPIC, Good, check_path, filled, prepared
from tests.behaviour.web import web

GOOD = [
    Good("GET /v1/topics", "/v1/topics"),
    Good("PUT /v1/topics/{topic}", "/v1/topics/new", {"order": "priority"}, 201),
    Good("PUT /v1/topics/{topic}", "/v1/topics/a%2Fb%20%C3%A9", {}, 201),
    Good("PUT /v1/topics/{topic}", TOPIC, {"partitions": 2, "messages_max": 9}),
    Good("GET /v1/topics/{topic}", TOPIC),
    Good("PATCH /v1/topics/{topic}", TOPIC, {"messages_max": 5, "partitions": 2}),
    Good("DELETE /v1/topics/{topic}", TOPIC, None, 204),
    Good("GET /v1/topics/{topic}/partitions", TOPIC + "/partitions?first=1&limit=5"),
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
        "POST /v1/topics/{topic}/subscriptions/{subscription}/dead-letter",
        SUB + "/dead-letter",
        {"receipts": ["{lease}"]},
        204,
    ),
    Good(
        "POST /v1/topics/{topic}/subscriptions/{subscription}/release", SUB + "/release", {"receipts": ["{lease}"]}, 204
    ),
    Good("POST /v1/topics/{topic}/subscriptions/{subscription}/renew", SUB + "/renew", {"receipts": ["{lease}"]}, 204),
    Good("GET /v1/topics/{topic}/messages", TOPIC + "/messages?start=1&limit=1"),
    Good("GET /v1/topics/{topic}/search", TOPIC + "/search?key=k&header=a:b&header=c:d&from_ms=0"),
    Good("GET /v1/topics/{topic}/subscriptions/{subscription}/scheduled", SUB + "/scheduled?limit=5"),
    Good("GET /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m1"),
    Good("PATCH /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m2", {"payload": "new"}, 200, {"version": 2}),
    Good("PATCH /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m2", {"payload_base64": "/w==", "version": 1}),
    Good("DELETE /v1/topics/{topic}/messages/{id}", TOPIC + "/messages/m2", None, 204),
    Good("GET /v1/topics/{topic}/messages/{id}/fate", TOPIC + "/messages/m1/fate", None, 200, {"id": "m1"}),
    Good("GET /v1/topics/{topic}/dead", TOPIC + "/dead?subscription=workers&reason=x"),
    Good("GET /v1/topics/{topic}/dead/reasons", TOPIC + "/dead/reasons?subscription=workers", None, 200, {"count": 1}),
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
        "POST /v1/transactions/{key}/commit",
        "/v1/transactions/t1/commit",
        None,
        200,
        {"placed": [["jobs", 1, 0, 1]], "mesh": {"jobs": "safe"}},
    ),
    Good("DELETE /v1/transactions/{key}", "/v1/transactions/t1", None, 204),
    Good("GET /v1/keys", "/v1/keys"),
    Good("POST /v1/keys", "/v1/keys", {"name": "bob", "rights": [{"verb": "admin", "topics": "*"}]}, 201),
    Good("GET /v1/keys/{id}", "/v1/keys/{key}", None, 200, {"name": "ann"}),
    Good("PATCH /v1/keys/{id}", "/v1/keys/{key}", {"name": "eve", "expires_ms": None}, 200, {"name": "eve"}),
    Good("DELETE /v1/keys/{id}", "/v1/keys/{key}", None, 204),
    Good("GET /v1/schemas/{schema}", "/v1/schemas/message", None, 200, {"type": "record", "name": "Message"}),
    Good("GET /v1/sign-in", "/v1/sign-in", None, 200, {"provider": None}),
    Good("GET /v1", "/v1", None, 200, {"name": "wherry"}),
    Good("GET /healthz", "/healthz"),
    Good("GET /readyz", "/readyz"),
    Good("GET /openapi.json", "/openapi.json", None, 200, {"openapi": "3.1.0"}),
    Good("GET /docs", "/docs"),
    Good("GET /docs/{file}", "/docs/swagger-ui.css"),
    Good("GET /v1/figures", "/v1/figures", None, 200, {"left_off": 0}),
    Good("GET /wherry.js", "/wherry.js"),
    Good("GET /wherry.d.ts", "/wherry.d.ts"),
    Good("GET /console", "/console"),
    Good("GET /console/{file}", "/console/start.js"),
    Good("GET /console/{folder}/{file}", "/console/pages/topics.js"),
]


ELSEWHERE = {
    "GET /v1/topics/{topic}/subscriptions/{subscription}/events",  # test_http_consume.py
    "GET /metrics",  # needs a broker that keeps figures
}


@pytest.mark.rows("D10", "G4")
def test_every_endpoint_is_asked_well():
    assert {case.endpoint for case in GOOD} | ELSEWHERE == set(ENDPOINTS)


@pytest.mark.rows("D10", "G4")
@pytest.mark.parametrize("case", GOOD, ids=lambda case: f"{case.endpoint} {case.target}"[:150])
def test_a_good_call_succeeds(case: Good):
    async def main() -> None:
        async with web() as found:
            names = await prepared(found)
            check_path(case)
            method = case.endpoint.partition(" ")[0]
            reply = await found.ask(f"{method} {filled(case.target, names)}", filled(case.body, names))
            assert reply.status == case.status, reply.body
            assert reply.status in ENDPOINTS[case.endpoint].answers
            if case.answer:
                assert case.answer.items() <= reply.json().items()
            if method == "GET":
                head = await found.ask(f"HEAD {filled(case.target, names)}")
                assert head.status == reply.status

    asyncio.run(main())
