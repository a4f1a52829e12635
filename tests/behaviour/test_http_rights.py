"""Keys over HTTP: which key may call what and see what, and transactions over topics of other keys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from logging.handlers import QueueHandler
from queue import SimpleQueue

import pytest

from tests.behaviour.web import Web, web
from wherry.model.catalog.key import Key, Right
from wherry.model.errors import Forbidden, Unauthorized
from wherry.security.access import Access
from wherry.security.keys import make
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import Verb
from wherry.wire.http.endpoints import TABLES
from wherry.wire.http.protocol.message import Request, Response, Stream

RIGHTS = {
    "root": [Right("admin", "*")],
    "shop": [Right("publish", "orders.*"), Right("consume", "orders.*")],
    "reader": [Right("consume", "orders.eu")],
    "writer": [Right("publish", "orders.eu")],
    "nobody": [Right("publish", "elsewhere")],
}
TOPICS = ["orders.eu", "orders.us", "bills"]


def with_keys(test: Callable[[Web, dict[str, str]], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on a broker that asks for keys, with three topics."""

    def run() -> None:
        async def main() -> None:
            async with web() as found:
                for name in TOPICS:
                    await found.good(f"PUT /v1/topics/{name}", {})
                    await found.good(f"PUT /v1/topics/{name}/subscriptions/s", {})
                tokens = {}
                for name, rights in RIGHTS.items():
                    made = make(name, rights, now_ms=0)
                    await found.broker.put_key(made.key)
                    tokens[name] = f"Bearer {made.token}"
                access = Access(True, found.broker)

                def guard(request: Request, verb: Verb, topic: str) -> str:
                    return "" if verb == "none" else access.check(request.headers, verb, topic)

                found.service.guard = guard
                await test(found, tokens)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def key_of(found: Web, name: str) -> Key:
    known = found.broker.keys()
    return next(key for key in known if key.name == name)


@pytest.mark.rows("D27")
@with_keys
async def test_every_call_needs_a_key_but_the_public_ones(found: Web, tokens: dict[str, str]) -> None:
    for endpoint in (each for table in TABLES for each in table.endpoints):
        names = {"topic": "orders.eu", "subscription": "s", "file": "start.js", "schema": "message"}
        target = endpoint.path.replace("{folder}/{file}", "pages/overview.js")
        for name in ("topic", "subscription", "file", "schema", "consumer", "id", "route", "key", "session"):
            target = target.replace("{" + name + "}", names.get(name, "none"))
        bare = await found.ask(f"{endpoint.method} {target}")
        if endpoint.right == "none":
            assert bare.status == 200, endpoint.name
            continue
        assert (bare.status, bare.headers["www-authenticate"]) == (401, "Bearer"), endpoint.name
        other = await found.ask(f"{endpoint.method} {target}", authorization=tokens["nobody"])
        assert other.status == 403 or endpoint.asks, endpoint.name
        wrong = await found.ask(f"{endpoint.method} {target}", authorization="Bearer wk_00000000_" + "A" * 43)
        assert wrong.status == 401, endpoint.name


@pytest.mark.rows("D27")
@with_keys
async def test_a_listing_shows_what_its_reader_may_consume(found: Web, tokens: dict[str, str]) -> None:
    async def seen(name: str) -> list[str]:
        listed = await found.good("GET /v1/topics", authorization=tokens[name])
        return [topic["config"]["name"] for topic in listed["topics"]]

    assert await seen("root") == sorted(TOPICS)
    assert await seen("shop") == ["orders.eu", "orders.us"]
    assert await seen("reader") == ["orders.eu"]
    assert await seen("writer") == await seen("nobody") == []
    assert (await found.ask("GET /v1/topics")).status == 401


@pytest.mark.rows("D27")
@with_keys
async def test_rights_are_by_verb_and_topic(found: Web, tokens: dict[str, str]) -> None:
    async def status(line: str, name: str) -> int:
        return (await found.ask(line, b"x", authorization=tokens[name])).status

    publish, pull = "POST /v1/topics/orders.eu/messages", "POST /v1/topics/orders.eu/subscriptions/s/pull"
    assert [await status(publish, name) for name in ("root", "shop", "reader", "writer")] == [201, 201, 403, 201]
    assert [await status(pull, name) for name in ("root", "shop", "reader", "writer")] == [200, 200, 200, 403]
    assert await status("POST /v1/topics/bills/messages", "shop") == 403
    assert await status("DELETE /v1/topics/orders.eu", "shop") == 403
    reply = await found.ask(publish, b"x", authorization=tokens["reader"])
    assert "lacks the right to publish on topic 'orders.eu'" in reply.json()["detail"]


@pytest.mark.rows("D27")
@with_keys
async def test_a_transaction_is_ended_by_keys_that_may_have_filled_it(found: Web, tokens: dict[str, str]) -> None:
    async def status(line: str, name: str | None = None) -> int:
        headers = {} if name is None else {"authorization": tokens[name]}
        return (await found.ask(line, None if line.startswith("DELETE") else b"x", **headers)).status

    for topic in ("orders.eu", "orders.us"):
        assert await status(f"POST /v1/transactions/t/topics/{topic}/messages", "shop") == 204
    for line, nothing in (("POST /v1/transactions/t/commit", 404), ("DELETE /v1/transactions/t", 204)):
        assert await status(line) == 401
        assert [await status(line, name) for name in ("writer", "reader", "nobody")] == [nothing] * 3, (
            "each has its own"
        )
    assert await status("POST /v1/transactions/t/commit", "shop") == 200
    assert await status("POST /v1/transactions/t/commit", "shop") == 200
    assert await status("POST /v1/transactions/t/commit", "writer") == 404, (
        "a success would show where messages were sent"
    )
    assert await status("POST /v1/transactions/none/commit", "nobody") == 404
    assert await status("DELETE /v1/transactions/none", "nobody") == 204
    assert await status("DELETE /v1/transactions/none") == 401


@pytest.mark.rows("D27")
@with_keys
async def test_staged_acks_need_the_right_to_consume(found: Web, tokens: dict[str, str]) -> None:
    shop = {"authorization": tokens["shop"]}
    await found.good("POST /v1/topics/orders.eu/messages", b"x", **shop)
    pulled = await found.good("POST /v1/topics/orders.eu/subscriptions/s/pull", **shop)
    receipts = [message["receipt"] for message in pulled["messages"]]
    ack = "POST /v1/transactions/t/topics/orders.eu/subscriptions/s/ack"
    await found.good(ack, {"receipts": receipts}, **shop)
    key = key_of(found, "shop")
    await found.broker.change_key(key.id, rights=(Right("publish", "orders.*"),))
    reply = await found.ask("POST /v1/transactions/t/commit", **shop)
    assert (reply.status, "consume" in reply.json()["detail"]) == (403, True)
    await found.broker.change_key(key.id, rights=key.rights)
    await found.good("POST /v1/transactions/t/commit", **shop)
    assert (await found.good("GET /v1/topics/orders.eu/subscriptions/s", **shop))["stats"]["lag"] == 0


@pytest.mark.rows("D27")
@with_keys
async def test_no_key_can_block_the_transaction_of_another(found: Web, tokens: dict[str, str]) -> None:
    stage = "POST /v1/transactions/tx2/topics/{}/messages"
    await found.good(stage.format("orders.eu"), b"theirs", authorization=tokens["writer"])
    await found.good(stage.format("bills"), b"mine", authorization=tokens["root"])
    await found.good(stage.format("orders.eu"), b"theirs too", authorization=tokens["writer"])
    done = await found.good("POST /v1/transactions/tx2/commit", authorization=tokens["root"])
    assert [(topic, count) for topic, _, _, count in done["placed"]] == [("bills", 1)]
    done = await found.good("POST /v1/transactions/tx2/commit", authorization=tokens["writer"])
    assert {topic for topic, *_ in done["placed"]} == {"orders.eu"}
    await found.good(stage.format("bills").replace("tx2", "tx3"), b"mine", authorization=tokens["root"])
    await found.good("DELETE /v1/transactions/tx3", authorization=tokens["writer"])
    assert (await found.ask("POST /v1/transactions/tx3/commit", authorization=tokens["root"])).status == 200


@pytest.mark.rows("D27")
@pytest.mark.parametrize("ends", ["deleted", "expired", "lost its right"])
def test_a_stream_ends_with_its_key(ends: str) -> None:
    @with_keys
    async def test(found: Web, tokens: dict[str, str]) -> None:
        async def end() -> None:
            key = key_of(found, "reader")
            if ends == "deleted":
                await found.broker.delete_key(key.id)
            elif ends == "expired":
                await found.broker.change_key(key.id, expires_ms=1)
            else:
                await found.broker.change_key(key.id, rights=(Right("consume", "bills"),))

        reader, root = {"authorization": tokens["reader"]}, {"authorization": tokens["root"]}
        stream = await found.answer("GET /v1/topics/orders.eu/subscriptions/s/events", **reader)
        assert isinstance(stream, Stream)
        await anext(stream.chunks)
        poll = asyncio.ensure_future(
            found.ask("POST /v1/topics/orders.us/subscriptions/s/pull?wait_ms=60000", authorization=tokens["shop"])
        )
        more = asyncio.ensure_future(anext(stream.chunks))
        await asyncio.sleep(0.05)
        await end()
        await found.good("POST /v1/topics/orders.eu/messages", b"secret", **root)
        chunk = await more
        code = "forbidden" if ends == "lost its right" else "unauthorized"
        assert chunk.startswith(b"event: problem\ndata: ")
        assert f'"code":"{code}"'.encode() in chunk
        assert b"secret" not in chunk
        with pytest.raises(StopAsyncIteration):
            await anext(stream.chunks)
        found.server.requests -= 1
        found.server.waits -= 1
        pulled = await found.good("POST /v1/topics/orders.eu/subscriptions/s/pull", **root)
        assert [(each["payload"], each["attempt"]) for each in pulled["messages"]] == [("secret", 1)]
        shop = key_of(found, "shop")
        await found.broker.delete_key(shop.id)
        await found.good("POST /v1/topics/orders.us/messages", b"secret", **root)
        assert (await poll).status == 401

    test()


@pytest.mark.rows("D27")
@with_keys
async def test_the_key_is_checked_from_the_head(found: Web, tokens: dict[str, str]) -> None:
    def admitted(line: str, name: str | None = None) -> Request:
        method, path = line.split()
        headers = {"content-length": "1000"} | ({} if name is None else {"authorization": tokens[name]})
        request = Request(method, path, "", headers)
        found.app.admit(request)
        return request

    publish, commit = "POST /v1/topics/orders.eu/messages", "POST /v1/transactions/t/commit"
    for line, name, fault in (
        (publish, None, Unauthorized),
        (commit, None, Unauthorized),
        (publish, "reader", Forbidden),
        ("POST /v1/nothing", None, HttpError),
        ("GET /healthz", None, HttpError),
    ):
        with pytest.raises(fault):
            admitted(line, name)
    assert admitted(publish, "shop").caller == "shop"
    assert admitted(commit, "nobody").endpoint == "POST /v1/transactions/{key}/commit"


@pytest.mark.rows("D27")
@with_keys
async def test_a_key_that_was_admitted_by_the_head_is_not_checked_again_for_the_body(
    found: Web, tokens: dict[str, str]
) -> None:
    asked: list[str] = []
    real = found.service.guard

    def guard(request: Request, verb: Verb, topic: str) -> str:
        asked.append(topic)
        return real(request, verb, topic)

    found.service.guard = guard
    headers = {"content-length": "1", "authorization": tokens["shop"]}
    request = Request("POST", "/v1/topics/orders.eu/messages", "", headers)
    found.app.admit(request)
    request.body = b"x"
    answer = await found.server.answer(request)
    assert isinstance(answer, Response)
    assert (int(answer.status), request.caller, asked) == (201, "shop", ["orders.eu"])
    refused = Request("POST", "/v1/topics/bills/messages", "", headers)
    for _ in range(2):
        with pytest.raises(Forbidden):
            found.app.admit(refused)
        assert refused.admitted is None


@pytest.mark.rows("D27")
@with_keys
async def test_the_audit_names_the_key_whatever_the_request_names(found: Web, tokens: dict[str, str]) -> None:
    root = {"authorization": tokens["root"]}
    for by, what in (("ceo", "redrive"), ("root", "discard"), ("", "discard")):
        await found.good("POST /v1/topics/bills/messages", b"x", **root)
        pulled = await found.good("POST /v1/topics/bills/subscriptions/s/pull", **root)
        receipts = [message["receipt"] for message in pulled["messages"]]
        await found.good("POST /v1/topics/bills/subscriptions/s/dead-letter", {"receipts": receipts}, **root)
        await found.good(f"POST /v1/topics/bills/dead/{what}", {"by": by}, **root)
    actions = (await found.good("GET /v1/topics/bills/dead/audit", **root))["records"]
    assert [action["by"] for action in actions] == ["root (by: ceo)", "root", "root"]


@pytest.mark.rows("D27")
@with_keys
async def test_a_key_is_shown_once_and_valid_until_it_is_deleted(found: Web, tokens: dict[str, str]) -> None:
    root = {"authorization": tokens["root"]}
    rights = [{"verb": "publish", "topics": "bills"}]
    reply = await found.ask("POST /v1/keys", {"name": "new", "rights": rights}, **root)
    made = reply.json()
    assert reply.headers["cache-control"] == "no-store"
    publish = "POST /v1/topics/bills/messages"
    own = {"authorization": f"Bearer {made['token']}"}
    await found.good(publish, b"x", **own)
    shown = await found.ask(f"GET /v1/keys/{made['id']}", **root)
    assert made["token"].encode() not in shown.body
    await found.good(f"PATCH /v1/keys/{made['id']}", {"rights": [{"verb": "publish", "topics": "other"}]}, **root)
    assert (await found.ask(publish, b"x", **own)).status == 403
    await found.good(f"DELETE /v1/keys/{made['id']}", **root)
    assert (await found.ask(publish, b"x", **own)).status == 401


@pytest.mark.rows("D27")
@with_keys
async def test_a_key_names_the_caller_that_made_it_and_the_log_has_a_line(found: Web, tokens: dict[str, str]) -> None:
    root, log = {"authorization": tokens["root"]}, logging.getLogger("wherry.keys")
    written = SimpleQueue[logging.LogRecord]()
    rights = [{"verb": "publish", "topics": "bills"}]
    handler, before = QueueHandler(written), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        made = (await found.ask("POST /v1/keys", {"name": "new", "rights": rights}, **root)).json()
        changed = await found.good(f"PATCH /v1/keys/{made['id']}", {"name": "newer"}, **root)
        await found.good(f"DELETE /v1/keys/{made['id']}", **root)
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
    assert (made["made_by"], changed["made_by"]) == ("root", "root")
    assert [written.get_nowait().getMessage() for _ in range(written.qsize())] == [
        f"key {made['id']} of 'new' was made by 'root'",
        f"key {made['id']} of 'newer' was changed by 'root'",
        f"key {made['id']} of 'newer' was deleted by 'root'",
    ]
    forged = await found.ask("POST /v1/keys", {"name": "x", "rights": rights, "made_by": "ceo"}, **root)
    assert forged.status == 400
