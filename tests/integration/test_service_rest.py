"""Services over REST: calls by plain HTTP, what is refused, and control; and the sync face of a peer."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.services import Gate, Listed, Order, Total, calling, counts, host_of, run, shop, until
from tests.ports import free_port
from wherry.model.errors import Forbidden, Unauthorized
from wherry.service.outcomes import RefusalCode, Refused
from wherry.service.peer import peer
from wherry.service.providing.provider import ListenAt
from wherry.service.service import Service
from wherry.service.sync import peer_sync
from wherry.service.trust import Trust
from wherry.wire.native.codec.invokes import CallContext

JSON = {"Content-Type": "application/json"}


def asked(url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    """Send one request with the HTTP client of Python; return the status, the headers and the body."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)) as connection:
        connection.request(method, path, body, JSON if headers is None else headers)
        answer = connection.getresponse()
        content = answer.read()
        is_json = "json" in (answer.headers["Content-Type"] or "")
        return answer.status, json.loads(content) if is_json else content


async def ask(url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    return await asyncio.to_thread(asked, url, method, path, body, headers)


@pytest.mark.rows("P2")
def test_a_call_is_one_request():
    async def main():
        async with calling(shop()) as (_, provider):
            url = provider.url
            assert await ask(url, "POST", "/services/shop/total", b'{"items":[1,2]}') == (200, {"amount": 3})
            octets = {"Content-Type": "application/octet-stream"}
            assert await ask(url, "POST", "/services/shop/echo", b"\x00\xff", octets) == (200, b"\x00\xff")
            status, problem = await ask(url, "POST", "/services/shop/broken", b'{"items":[1]}')
            assert (status, problem["code"], problem["detail"]) == (500, "failed", "KeyError: 'no price for 1'")

    run(main())


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "part"),
    [
        ("POST", "/services/shop/total", b'{"items":["x"]}', JSON, 400, ("field", "items[0]")),
        ("POST", "/services/shop/total", b"{", JSON, 400, ("field", "argument")),
        (
            "POST",
            "/services/shop/total",
            b"{}",
            {"Content-Type": "text/plain"},
            415,
            ("code", "unsupported-media-type"),
        ),
        ("POST", "/services/shop/total?timeout_ms=0", b"{}", JSON, 400, ("field", "timeout_ms")),
        ("POST", "/services/shop/total?timeout_ms=x", b"{}", JSON, 400, ("field", "timeout_ms")),
        ("POST", "/services/shop/total?other=1", b"{}", JSON, 400, ("field", "other")),
        ("POST", "/services/shop/none", b"{}", JSON, 404, ("code", "not-found")),
        ("POST", "/services/none/total", b"{}", JSON, 404, ("code", "not-found")),
        ("GET", "/services/none", None, {}, 404, ("code", "not-found")),
        ("GET", "/else", None, {}, 404, ("code", "not-found")),
        ("DELETE", "/services/shop", None, {}, 405, ("code", "method-not-allowed")),
        ("GET", "/services", None, {"Origin": "http://evil.example"}, 403, ("code", "forbidden")),
        ("GET", "/services", None, {"Host": "evil.example"}, 403, ("code", "forbidden")),
        ("POST", "/services/shop/control/limit", b"{}", JSON, 400, ("field", "max_concurrent")),
        ("POST", "/services/shop/control/limit", b'{"max_concurrent":0}', JSON, 400, ("field", "max_concurrent")),
        ("POST", "/services/shop/control/limit", b'{"max_waiting":1}', JSON, 400, ("field", "max_waiting")),
        ("POST", "/services/shop/control/limit", b'{"a":1}', JSON, 400, ("field", "a")),
        ("POST", "/services/shop/control/pause", b'{"methods":["none"]}', JSON, 404, ("code", "not-found")),
        ("POST", "/services/shop/control/stop", b"{}", JSON, 404, ("code", "not-found")),
    ],
)
def test_what_is_wrong_is_named(method, path, body, headers, status, part):
    async def main():
        async with calling(shop()) as (_, provider):
            found, problem = await ask(provider.url, method, path, body, headers)
            assert (found, problem[part[0]]) == (status, part[1])

    run(main())


@pytest.mark.rows("P2", "P19")
def test_a_service_is_controlled_at_run_time():
    async def main():
        gate = Gate()
        async with calling(shop(gate, max_concurrent=1, max_waiting=10)) as (caller, provider):
            url = provider.url
            calls = [caller.start_call("shop.slow", b"x") for _ in range(3)]
            await gate.until(lambda found: found.running == 1)
            await until(lambda: host_of(provider).services["shop"].throttle.waiting == 2)
            status, view = await ask(
                url, "POST", "/services/shop/control/limit", b'{"method":"slow","max_concurrent":2,"max_waiting":0}'
            )
            slow = next(each for each in view["methods"] if each["name"] == "slow")
            assert (status, slow["max_concurrent"], slow["max_waiting"]) == (200, 2, 0)
            await gate.until(lambda found: found.running == 2)
            with pytest.raises(Refused, match="full"):
                await caller.call("shop.slow", b"x")
            gate.opened.set()
            assert await asyncio.gather(*calls) == [b"x"] * 3

            assert (await ask(url, "POST", "/services/shop/control/pause", b"{}"))[0] == 200
            with pytest.raises(Refused) as caught:
                await caller.call("shop.echo", b"x")
            assert caught.value.reason is RefusalCode.PAUSED
            assert (await ask(url, "POST", "/services/shop/control/resume", b"{}"))[0] == 200
            assert await caller.call("shop.echo", b"x") == b"x"

            status, view = await ask(url, "POST", "/services/shop/control/drain", b"{}")
            assert (status, view["draining"]) == (200, True)
            assert caller.roster.of("shop") == ()
            assert (await ask(url, "POST", "/services/shop/echo", b"x", {"Content-Type": "application/octet-stream"}))[
                0
            ] == 503
            assert (await ask(url, "POST", "/services/shop/control/resume", b"{}"))[0] == 200
            assert await caller.call("shop.echo", b"x") == b"x"

    run(main())


def test_a_request_ends_at_its_deadline_and_its_method_is_cancelled():
    async def main():
        gate = Gate()
        octets = {"Content-Type": "application/octet-stream"}
        async with calling(shop(gate)) as (_, provider):
            path = "/services/shop/slow?timeout_ms=100"
            status, problem = await ask(provider.url, "POST", path, b"x", octets)
            assert (status, problem["code"]) == (504, "timed-out")
            await gate.until(lambda found: found.cancelled == 1)
            assert counts(provider)["timed out"] == 1

    run(main())


def test_a_client_that_disconnects_cancels_its_method():
    async def main():
        gate = Gate()
        async with calling(shop(gate)) as (_, provider):
            parts = urlsplit(provider.url)
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            head = "POST /services/shop/slow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
            writer.write(f"{head}Content-Length: 1\r\n\r\nx".encode())
            await gate.until(lambda found: found.running == 1)
            writer.close()
            await gate.until(lambda found: found.cancelled == 1)
            assert counts(provider)["lost"] == 1

    run(main())


def test_rights_hold_for_requests_too_and_to_control_is_a_right_of_its_own():
    def authorize(token, service, method):
        if token not in ("caller", "operator"):
            raise Unauthorized("the token is not known")
        if method == "*" and token != "operator":
            raise Forbidden(token, "control", service)
        return token

    async def main():
        async with calling(shop(), provider={"trust": Trust(authorize=authorize)}) as (_, provider):
            for token, expected in (("none", (401, 401, 401)), ("caller", (200, 403, 403)), ("operator", (200,) * 3)):
                headers = JSON | {"Authorization": f"Bearer {token}"}
                call = await ask(provider.url, "POST", "/services/shop/total", b'{"items":[]}', headers)
                shown = await ask(provider.url, "GET", "/services/shop", None, headers)
                paused = await ask(provider.url, "POST", "/services/shop/control/resume", b"{}", headers)
                assert (call[0], shown[0], paused[0]) == expected

    run(main())


@pytest.mark.rows("P2")
def test_the_list_has_the_services_that_its_caller_may_inspect():
    rights = {"both": ("shop", "bank"), "one": ("bank",), "no": ()}

    async def authorize(token, service, method):
        if token not in rights:
            raise Unauthorized("the token is not known")
        if service not in rights[token]:
            raise Forbidden(token, "inspect", service)
        return token

    bank = Service("bank")

    @bank.method
    async def pay() -> None:
        return None

    async def main():
        async with peer(provides=[shop(), bank], trust=Trust(authorize=authorize)) as provider:
            for token, names in rights.items():
                status, found = await ask(provider.url, "GET", "/services", None, {"Authorization": f"Bearer {token}"})
                assert status == (200 if names else 403)
                assert tuple(each["service"] for each in found.get("services", ())) == names
            assert (await ask(provider.url, "GET", "/services"))[0] == 401

    run(main())


@pytest.mark.rows("P17", "P18")
def test_the_sync_face_waits_for_results_or_calls_back():
    registry = Listed()
    pong = Service("pong")

    @pong.method
    async def total(order: Order) -> Total:
        return Total(sum(order.items))

    with peer_sync(registry=registry, provides=[pong]) as one, peer_sync(registry=registry) as other:
        assert other.call("pong.total", Order([1, 2]), returns=Total) == Total(3)
        assert one.url
        ended, found = threading.Event(), []

        def called_back(result, fault):
            found.append((result, fault))
            ended.set()

        future = other.start_call("pong.total", Order([4]), callback=called_back)
        assert ended.wait(60)
        assert future.result(60) == {"amount": 4}
        assert found == [({"amount": 4}, None)]
        with pytest.raises(Refused):
            other.call("pong.none")


OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.mark.rows("P16")
def test_a_repeat_over_rest_gets_the_result_of_the_first_and_is_not_run():
    async def main():
        gate = Gate()
        async with calling(shop(gate)) as (caller, provider):
            headers = OCTETS | {"Idempotency-Key": "order-7"}
            path = "/services/shop/slow"
            calls = [asyncio.create_task(ask(provider.url, "POST", path, b"x", headers)) for _ in range(3)]
            await until(lambda: gate.begun == 1 and host_of(provider).repeating.recognised == 2)
            gate.opened.set()
            assert await asyncio.gather(*calls) == [(200, b"x")] * 3
            assert await ask(provider.url, "POST", path, b"x", headers) == (200, b"x")
            assert gate.begun == 1
            assert await ask(provider.url, "POST", path, b"x", OCTETS | {"Idempotency-Key": "order-8"}) == (200, b"x")
            assert gate.begun == 2
            # Over the other wire it is another call: its result is encoded in another way.
            assert await caller.call("shop.slow", b"x", context=CallContext(call_id="order-7")) == b"x"
            assert gate.begun == 3

    run(main())


def test_a_key_with_another_body_is_refused_while_the_first_runs_and_afterwards():
    async def main():
        gate = Gate()
        async with calling(shop(gate)) as (_, provider):
            headers = OCTETS | {"Idempotency-Key": "order-7"}
            first = asyncio.create_task(ask(provider.url, "POST", "/services/shop/slow", b"x", headers))
            await gate.until(lambda found: found.running == 1)
            for _ in range(2):
                status, problem = await ask(provider.url, "POST", "/services/shop/slow", b"y", headers)
                assert (status, problem["code"], problem["field"]) == (400, "invalid-input", "Idempotency-Key")
                gate.opened.set()
                assert await first == (200, b"x")
            assert gate.begun == 1
            assert await ask(provider.url, "POST", "/services/shop/slow", b"x", headers) == (200, b"x")
            assert counts(provider)["refused"] == 2

    run(main())


def test_a_repeat_over_rest_is_one_of_the_same_caller():
    async def main():
        gate = Gate()
        gate.opened.set()
        trust = Trust(authorize=lambda token, service, method: token)
        async with calling(shop(gate), provider={"trust": trust}) as (_, provider):
            for token in ("ann", "bob", "ann"):
                headers = OCTETS | {"Idempotency-Key": "order-7", "Authorization": f"Bearer {token}"}
                body = b"x" if token == "ann" else b"of bob"
                assert await ask(provider.url, "POST", "/services/shop/slow", body, headers) == (200, body)
            assert gate.begun == 2

    run(main())


@pytest.mark.parametrize("key", ["x" * 61, "a b", ""])
def test_a_wrong_key_is_refused(key):
    async def main():
        async with calling(shop()) as (_, provider):
            headers = OCTETS | {"Idempotency-Key": key}
            status, problem = await ask(provider.url, "POST", "/services/shop/echo", b"x", headers)
            assert (status, problem["field"]) == (400, "Idempotency-Key")

    run(main())


def test_a_provider_answers_under_its_advertised_name_and_those_it_was_given_and_no_other():
    async def main():
        port = free_port()
        at = ListenAt(port=port, advertise="http://Shop.example:7080", names=("other.example",))
        async with peer(provides=[shop()], listen=at) as provider:
            assert provider.url == "http://Shop.example:7080", "callers get the address that is advertised"
            url = f"http://127.0.0.1:{port}"
            for name, expected in (
                ("shop.example:7080", 200),
                ("SHOP.EXAMPLE", 200),
                ("other.example", 200),
                ("localhost", 200),
                ("127.0.0.1", 200),
                ("evil.example", 403),
                ("shop.example.evil.example", 403),
            ):
                status, found = await ask(url, "GET", "/services/shop", None, {"Host": name})
                assert status == expected, name
                assert status == 200 or "ListenAt(names=" in found["detail"]
                status, _ = await ask(url, "POST", "/services/shop/echo", b"x", OCTETS | {"Host": name})
                assert status == expected, name

    run(main())


def test_where_tokens_are_asked_for_any_name_will_do():
    async def main():
        trust = Trust(authorize=lambda token, service, method: token)
        async with calling(shop(), provider={"trust": trust}) as (_, provider):
            headers = OCTETS | {"Host": "shop.example", "Authorization": "Bearer ann"}
            assert await ask(provider.url, "POST", "/services/shop/echo", b"x", headers) == (200, b"x")

    run(main())
