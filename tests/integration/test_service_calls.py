"""Calls of services between two peers of one process, over a real socket: each outcome, at both sides."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.integration.services import Gate, Listed, Order, Total, calling, counts, host_of, run, shop, until
from wherry.model.errors import Forbidden, InvalidInput, Unauthorized
from wherry.service.current import current_call
from wherry.service.losses import Losses
from wherry.service.outcomes import CallOutcome, ConnectionLost, Failed, RefusalCode, Refused, TimedOut
from wherry.service.peer import peer
from wherry.service.service import Service
from wherry.service.trust import Trust
from wherry.wire.native.codec.invokes import CallContext


@pytest.mark.rows("P1", "P3", "P17")
def test_a_call_returns_the_result_by_its_type():
    async def main():
        async with calling(shop()) as (caller, _):
            assert await caller.call("shop.total", Order([1, 2]), returns=Total) == Total(3)
            assert await caller.call("shop.total", {"items": [4]}) == {"amount": 4}
            assert await caller.call("shop.echo", b"\x00\xff") == b"\x00\xff"
            assert await caller.call("shop.plain", Order([1, 2])) == 2

    run(main())


@pytest.mark.rows("P3")
def test_two_peers_call_each_other():
    async def main():
        registry = Listed()
        ping, pong = Service("ping"), Service("pong")

        @ping.method
        async def name() -> str:
            return "ping"

        @pong.method(name="name")
        async def other() -> str:
            return f"pong, and {await one.call('ping.name')}"

        async with (
            peer(registry=registry, provides=[ping]) as one,
            peer(registry=registry, provides=[pong]),
        ):
            assert await one.call("pong.name") == "pong, and ping"

    run(main())


@pytest.mark.rows("P14")
def test_an_error_of_the_method_reaches_both_sides_with_type_and_text_and_no_traceback():
    async def main():
        lost = []
        losses = Losses(on_provided=lambda call, outcome: lost.append((call.name, outcome)))
        async with calling(shop(), provider={"lost": losses}) as (caller, provider):
            with pytest.raises(Failed) as caught:
                await caller.call("shop.broken", Order([7]))
            assert (caught.value.kind, caught.value.text) == ("KeyError", "'no price for 7'")
            assert not caught.value.is_unknown
            assert "Traceback" not in str(caught.value)
            with pytest.raises(Failed, match="returned str, and declares bytes"):
                await caller.call("shop.wrong")
            assert counts(provider, "broken")["failed"] == 1
            assert lost == [("shop.broken", CallOutcome.FAILED), ("shop.wrong", CallOutcome.FAILED)]

    run(main())


@pytest.mark.rows("P14")
@pytest.mark.parametrize(
    ("method", "argument", "reason", "field"),
    [
        ("shop.total", {"items": [1, "x"]}, RefusalCode.INVALID_INPUT, "items[1]"),
        ("shop.total", {}, RefusalCode.INVALID_INPUT, "argument"),
        ("shop.total", b"x", RefusalCode.INVALID_INPUT, "argument"),
        ("shop.echo", {}, RefusalCode.INVALID_INPUT, "argument"),
        ("shop.wrong", b"more", RefusalCode.INVALID_INPUT, "argument"),
        ("shop.none", b"", RefusalCode.NO_METHOD, None),
        ("none.total", b"", RefusalCode.NO_INSTANCE, None),
    ],
)
def test_a_call_that_is_not_run_is_refused_with_the_reason(method, argument, reason, field):
    async def main():
        async with calling(shop()) as (caller, _):
            with pytest.raises(Refused) as caught:
                await caller.call(method, argument)
            assert (caught.value.reason, caught.value.field) == (reason, field)

    run(main())


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"method": "shop"}, "method"),
        ({"method": "shop."}, "method"),
        ({"method": "shop.a.b"}, "method"),
        ({"method": "shop.ü"}, "method"),
        ({"method": "shop.echo", "timeout_s": 0}, "timeout_s"),
        ({"method": "shop.echo", "timeout_s": 1e9}, "timeout_s"),
        ({"method": "shop.echo", "session": ""}, "session"),
        ({"method": "shop.echo", "argument": object()}, "value"),
        ({"method": "shop.echo", "argument": bytes(32 << 20)}, "argument"),
    ],
)
def test_a_wrong_call_is_refused_by_field_before_it_is_sent(arguments, field):
    async def main():
        async with calling(shop()) as (caller, _):
            with pytest.raises(InvalidInput) as caught:
                await caller.call(**arguments)
            assert caught.value.field == field

    run(main())


@pytest.mark.rows("P14")
def test_a_deadline_ends_the_call_at_both_sides_and_the_outcome_is_unknown():
    async def main():
        gate = Gate()
        async with calling(shop(gate)) as (caller, provider):
            with pytest.raises(TimedOut) as caught:
                await caller.call("shop.slow", b"x", timeout_s=0.2)
            assert caught.value.is_unknown
            await gate.until(lambda found: found.cancelled == 1 and not found.running)
            found = counts(provider)
            assert found["timed out"] + found["cancelled"] == 1  # the clock of one of them was first
            assert await caller.call("shop.echo", b"still") == b"still"

    run(main())


def test_a_call_that_is_cancelled_cancels_its_method():
    async def main():
        gate = Gate()
        async with calling(shop(gate)) as (caller, provider):
            task = caller.start_call("shop.slow", b"x")
            await gate.until(lambda found: found.running == 1)
            task.cancel()
            await gate.until(lambda found: found.cancelled == 1)
            assert counts(provider)["cancelled"] == 1

    run(main())


@pytest.mark.rows("P14")
def test_a_connection_that_breaks_ends_the_call_as_unknown_at_both_sides():
    async def main():
        gate, lost, calls = Gate(), [], []
        provided = Losses(on_provided=lambda call, outcome: lost.append(outcome))
        made = Losses(on_call=lambda call, fault: calls.append(fault.outcome))
        async with calling(shop(gate), provider={"lost": provided}, lost=made) as (caller, provider):
            task = caller.start_call("shop.slow", b"x")
            await gate.until(lambda found: found.running == 1)
            for connection in list(host_of(provider).connections):
                connection.abort()
            with pytest.raises(ConnectionLost) as caught:
                await task
            assert caught.value.is_unknown
            await gate.until(lambda found: found.cancelled == 1)
            assert (lost, calls) == ([CallOutcome.LOST], [CallOutcome.LOST])
            assert await caller.call("shop.echo", b"again") == b"again"  # over a new connection

    run(main())


def test_only_an_idempotent_call_is_sent_again_when_its_connection_breaks():
    async def main():
        gate = Gate()
        async with calling(shop(gate)) as (caller, provider):
            task = caller.start_call("shop.slow", b"x", idempotent=True)
            await gate.until(lambda found: found.running == 1)
            for connection in list(host_of(provider).connections):
                connection.abort()
            await gate.until(lambda found: found.begun == 2)
            gate.opened.set()
            assert await task == b"x"

    run(main())


@pytest.mark.rows("P14")
def test_a_provider_knows_of_results_whether_their_caller_has_read_them():
    async def main():
        async with calling(shop()) as (caller, provider):
            host = host_of(provider)
            for number in range(20):
                await caller.call("shop.echo", b"%d" % number)
            (connection,) = host.connections
            await until(lambda: not connection.unseen.count)
            await caller.close()
            await until(lambda: not host.connections)
            assert host.endings.unseen_results == 0

    run(main())


@pytest.mark.rows("P18")
def test_a_started_call_has_a_callback_or_is_awaited():
    async def main():
        async with calling(shop()) as (caller, _):
            ended: asyncio.Queue[tuple[object, Exception | None]] = asyncio.Queue()
            one = caller.start_call("shop.echo", b"x", callback=lambda result, fault: ended.put_nowait((result, fault)))
            assert await ended.get() == (b"x", None)
            other = caller.start_call("shop.none", callback=lambda result, fault: ended.put_nowait((result, fault)))
            result, fault = await ended.get()
            assert result is None
            assert isinstance(fault, Refused)
            assert one.done()
            assert other.done()
            assert await caller.start_call("shop.echo", b"y") == b"y"

    run(main())


@pytest.mark.rows("P19")
def test_a_flood_never_exceeds_the_maximum_and_is_refused_as_full_at_once():
    async def main():
        gate = Gate()
        async with calling(shop(gate, max_concurrent=8)) as (caller, provider):
            calls = [caller.start_call("shop.slow", b"x") for _ in range(500)]
            await until(lambda: sum(each.done() for each in calls) == 492)
            refused = [each.exception() for each in calls if each.done()]
            assert all(isinstance(fault, Refused) and fault.reason is RefusalCode.FULL for fault in refused)
            assert (gate.running, gate.most) == (8, 8)
            gate.opened.set()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert results.count(b"x") == 8
            assert counts(provider)["refused"] == 492

    run(main())


@pytest.mark.rows("P19")
@pytest.mark.parametrize(("limits", "most"), [({"max_concurrent": 3}, 3), ({"instance": 2}, 2)])
def test_calls_wait_in_order_where_they_may_and_never_exceed_the_maximum(limits, most):
    async def main():
        gate, order = Gate(), []
        service = shop(gate, max_waiting=200, **limits)
        function = service.methods["slow"].function

        async def noted(body: bytes) -> bytes:
            order.append(int(body))
            return await function(body)

        service.methods["slow"].function = noted
        async with calling(service) as (caller, _):
            calls = [caller.start_call("shop.slow", b"%d" % number) for number in range(most + 200)]
            await gate.until(lambda found: found.running == most)
            with pytest.raises(Refused, match="full"):
                await caller.call("shop.slow", b"999")
            gate.opened.set()
            assert await asyncio.gather(*calls) == [b"%d" % number for number in range(most + 200)]
            assert (gate.most, order) == (most, list(range(most + 200)))

    run(main())


def test_a_call_that_waits_and_is_given_up_is_never_run():
    async def main():
        gate = Gate()
        async with calling(shop(gate, max_concurrent=1, max_waiting=5)) as (caller, _):
            first = caller.start_call("shop.slow", b"1")
            await gate.until(lambda found: found.running == 1)
            with pytest.raises(TimedOut):
                await caller.call("shop.slow", b"2", timeout_s=0.1)
            gate.opened.set()
            assert await first == b"1"
            assert await caller.call("shop.slow", b"3") == b"3"
            assert gate.begun == 2

    run(main())


def test_a_method_knows_its_call_and_passes_on_deadline_and_trace():
    async def main():
        registry, seen = Listed(), []
        outer, inner = Service("outer"), Service("inner")
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

        @outer.method
        async def begin() -> None:
            await there.call("inner.end", timeout_s=600)

        @inner.method
        async def end() -> None:
            call = current_call()
            assert call is not None
            seen.append((call.name, call.context().traceparent, call.due - asyncio.get_running_loop().time() < 31))

        async with peer(registry=registry, provides=[outer, inner]) as there, peer(registry=registry) as caller:
            context = CallContext(traceparent=trace, call_id="c1")
            await caller.call("outer.begin", timeout_s=30, context=context)
        assert seen == [("inner.end", trace, True)]
        assert current_call() is None

    run(main())


@pytest.mark.parametrize("is_async", [False, True])
def test_rights_are_asked_for_with_the_token_of_the_caller(is_async):
    def plain(token, service, method):
        if token not in ("good", "poor"):
            raise Unauthorized("the token is not known")
        if token == "poor" and method != "echo":
            raise Forbidden(token, "call", f"{service}.{method}")
        return token

    async def waiting(token, service, method):
        await asyncio.sleep(0)
        return plain(token, service, method)

    async def main():
        token = ["good"]
        trust = Trust(authorize=waiting if is_async else plain)
        async with calling(shop(), provider={"trust": trust}, trust=Trust(token=lambda: token[0])) as (caller, _):
            assert await caller.call("shop.total", Order([1]), returns=Total) == Total(1)
            token[0] = "poor"
            assert await caller.call("shop.echo", b"x") == b"x"
            with pytest.raises(Refused) as caught:
                await caller.call("shop.total", Order([1]))
            assert caught.value.reason is RefusalCode.FORBIDDEN
            token[0] = "bad"
            with pytest.raises(Refused) as caught:
                await caller.call("shop.echo", b"x")
            assert caught.value.reason is RefusalCode.UNAUTHORIZED

    run(main())


def test_an_instance_that_drains_ends_its_calls_and_others_get_the_new_ones():
    async def main():
        registry, gate = Listed(), Gate()
        async with (
            peer(registry=registry, provides=[shop(gate)], instance_id="a") as one,
            peer(registry=registry, provides=[shop()], instance_id="b"),
            peer(registry=registry) as caller,
        ):
            under_way = [caller.start_call("shop.slow", b"x") for _ in range(2)]
            await gate.until(lambda found: found.running == 1)
            known = registry.roster.of("shop")
            draining = asyncio.create_task(one.drain())
            await until(lambda: len(registry.roster.of("shop")) == 1)
            registry.roster.replace("shop", known)  # a caller whose registry is late
            for _ in range(50):
                assert await caller.call("shop.echo", b"x") == b"x"
            gate.opened.set()
            assert await asyncio.gather(*under_way) == [b"x"] * 2
            await draining

    run(main())


@pytest.mark.rows("P10")
def test_a_new_instance_gets_work_and_one_that_is_gone_gets_none():
    async def main():
        registry = Listed()
        async with (
            peer(registry=registry, provides=[shop()], instance_id="a") as one,
            peer(registry=registry) as caller,
        ):
            await caller.call("shop.echo", b"x")
            async with peer(registry=registry, provides=[shop()], instance_id="b") as two:
                for _ in range(10):
                    await caller.call("shop.echo", b"x")
                assert [counts(each, "echo")["answered"] for each in (one, two)] == [6, 5]
            for _ in range(3):
                await caller.call("shop.echo", b"x")
            assert counts(one, "echo")["answered"] == 9

    run(main())


def test_an_instance_that_cannot_be_reached_costs_no_call():
    async def main():
        registry = Listed()
        async with (
            peer(registry=registry, provides=[shop()], instance_id="a") as one,
            peer(registry=registry) as caller,
        ):
            known = registry.roster.of("shop")
            dead = type(known[0])(service="shop", id="b", url="http://127.0.0.1:1")
            registry.roster.replace("shop", [*known, dead])
            for _ in range(20):
                assert await caller.call("shop.echo", b"x") == b"x"
            assert counts(one, "echo")["answered"] == 20
            registry.roster.replace("shop", [dead])
            with pytest.raises(Refused) as caught:
                await caller.call("shop.echo", b"x")
            assert caught.value.reason is RefusalCode.NO_INSTANCE

    run(main())


def test_a_large_argument_and_result_go_through():
    async def main():
        async with calling(shop()) as (caller, _):
            body = bytes(range(256)) * (20 << 12)
            assert await caller.call("shop.echo", body) == body

    run(main())


def test_a_result_that_is_too_large_is_a_failure_of_the_method():
    async def main():
        service = Service("big")

        @service.method
        async def make() -> bytes:
            return bytes((32 << 20) + 1)

        async with calling(service) as (caller, _):
            with pytest.raises(Failed) as caught:
                await caller.call("big.make")
            assert caught.value.kind == "TooLarge"

    run(main())


def test_an_instance_is_not_set_aside_for_what_its_callers_did_wrong():
    async def main():
        async with calling(shop()) as (caller, _):
            for _ in range(20):
                with pytest.raises(Refused, match="invalid-input"):
                    await caller.call("shop.total", {"items": ["x"]})
                with pytest.raises(Failed):
                    await caller.call("shop.broken", Order([1]))
            (found,) = caller.caller.balancers["shop"].statistics(time.monotonic())
            assert (found.calls, found.failed, found.set_aside) == (40, 0, False)

    run(main())
