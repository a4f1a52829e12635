"""What is refused wherever it is asked: unknown places, types and methods, pages and names from elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.behaviour.web import web
from wherry.wire.http.protocol.message import AVRO, OCTETS


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


def test_a_method_that_is_not_there_is_refused_with_those_that_are():
    reply = ask("POST /v1/topics/jobs", {})
    assert (reply.status, reply.headers["allow"]) == (405, "DELETE, GET, HEAD, PATCH, PUT")


@pytest.mark.parametrize("target", ["/", "/v2", "/v1/nothing", "/v1/topics/jobs/messages/m1/fate/more", "*", ""])
def test_a_path_where_nothing_is_is_not_found(target: str):
    assert ask(f"GET {target}").status == 404


def test_a_body_of_another_type_is_refused():
    assert ask("PUT /v1/topics/new", b"<x/>", content_type="text/xml").status == 415


def test_a_listing_in_a_format_that_it_does_not_have_is_refused():
    assert ask("GET /v1/topics/jobs/messages", accept="image/png").status == 406
    assert ask("GET /v1/topics/jobs/messages", accept=OCTETS).status == 406
    assert ask("GET /v1/topics/jobs/messages", accept=AVRO).kind == AVRO


def test_a_page_from_elsewhere_may_not_call():
    here = "localhost:7070"
    assert ask("GET /v1/topics", origin="http://evil.example", host=here).status == 403
    assert ask("GET /v1/topics", origin="null", host=here).status == 403
    assert ask("GET /v1/topics", origin=f"http://{here}", host=here).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "else"])
def test_a_page_from_elsewhere_may_not_call_by_a_picture_or_a_link(site: str):
    """Call as such pages do: without an origin, and a stream of events takes messages."""
    events = "GET /v1/topics/jobs/subscriptions/workers/events?ack=auto"
    for line in (events, "GET /v1/topics/jobs/messages", "GET /metrics"):
        reply = ask(line, sec_fetch_site=site)
        assert (reply.status, reply.json()["code"]) == (403, "forbidden")
    for line in ("GET /docs", "GET /openapi.json", "GET /healthz", "GET /readyz", "GET /v1"):
        assert ask(line, sec_fetch_site=site).status == 200


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_the_pages_of_the_broker_itself_and_people_may_call(site: str):
    assert ask("GET /v1/topics/jobs/messages", sec_fetch_site=site).status == 200


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


def test_a_call_that_needs_no_key_takes_no_body():
    assert ask("GET /healthz", content_length="5").status == 413


def test_a_busy_answer_has_the_time_of_the_next_try():
    async def main() -> None:
        async with web() as found:
            await found.jobs()
            await found.good("PATCH /v1/topics/jobs", {"messages_max": 3})
            reply = await found.ask("POST /v1/topics/jobs/messages", b"x")
            assert (reply.status, reply.headers["retry-after"]) == (429, "1")

    asyncio.run(main())
