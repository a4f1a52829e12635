"""What a provider withstands: methods and checks that raise anything, callers that hold its memory or send nothing."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import pytest

from tests.integration.service_wire import by_hand
from tests.integration.services import Gate, calling, counts, host_of, run, shop, until
from wherry.service.current import current_call
from wherry.service.outcomes import Failed, RefusalCode, Refused
from wherry.service.peer import Peer, peer
from wherry.service.providing import connection as connection_module
from wherry.service.providing import holding as holding_module
from wherry.service.providing import host as host_module
from wherry.service.service import Service
from wherry.service.trust import Trust
from wherry.wire.native.codec.frames import Kind
from wherry.wire.native.codec.invokes import CallKind, encode_invoke, encode_seen


class Stop(BaseException):
    """What no program should raise."""


def raising() -> Service:
    service = Service("raising")

    @service.method
    def plain_cancelled() -> int:
        raise asyncio.CancelledError

    @service.method
    def plain_stop() -> int:
        raise Stop("now")

    @service.method
    async def stop() -> int:
        raise Stop("now")

    return service


def test_a_method_that_raises_anything_is_answered_as_failed_and_other_calls_go_on():
    async def main():
        gate = Gate()
        async with peer(provides=[shop(gate), raising()]) as caller:
            other = asyncio.create_task(caller.call("shop.slow", b"x"))
            await gate.until(lambda it: it.running == 1)
            for method, kind in (("plain_cancelled", "CancelledError"), ("plain_stop", "Stop"), ("stop", "Stop")):
                with pytest.raises(Failed) as caught:
                    await caller.call(f"raising.{method}")
                assert caught.value.kind == kind
            gate.opened.set()
            assert await other == b"x"
            assert host_of(caller).running == 0

    run(main())


def wrong_error(token, service, method):
    raise KeyError("secret of the program")


async def wrong_error_later(token, service, method):
    raise Stop("secret of the program")


async def no_name(token, service, method):
    return None


@pytest.mark.parametrize("authorize", [wrong_error, wrong_error_later, no_name, lambda token, service, method: None])
def test_a_check_that_fails_refuses_the_call_without_its_text(authorize):
    async def main():
        async with peer(provides=[shop()], trust=Trust(authorize=authorize)) as caller:
            with pytest.raises(Refused) as caught:
                await caller.call("shop.echo", b"x")
            assert caught.value.reason is RefusalCode.FORBIDDEN
            assert "secret" not in str(caught.value)
            assert host_of(caller).running == 0

    run(main())


@pytest.mark.parametrize("door", ["paused", "draining"])
def test_a_door_that_closes_while_a_right_is_checked_stays_closed(door):
    async def main():
        asked, let = asyncio.Event(), asyncio.Event()

        async def authorize(token: str, service: str, method: str) -> str:
            asked.set()
            await let.wait()
            return "ann"

        async with peer(provides=[shop()], trust=Trust(authorize=authorize)) as caller:
            call = asyncio.create_task(caller.call("shop.echo", b"x"))
            await asked.wait()
            assert host_of(caller).running == 1
            provided = host_of(caller).services["shop"]
            if door == "paused":
                provided.methods["echo"].is_paused = True
            else:
                provided.is_draining = True
            let.set()
            with pytest.raises(Refused, match=door):
                await call
            assert host_of(caller).running == 0

    run(main())


def incomplete(size: int, sent: int) -> bytes:
    return struct.pack("<IBBHI", size, CallKind.INVOKE, 0, 0, 1) + bytes(sent)


def test_incomplete_frames_of_all_connections_are_bounded(monkeypatch):
    monkeypatch.setattr(holding_module, "PARTIAL_BYTES_MAX", 8 << 20)

    async def main():
        async with calling(shop()) as (caller, provider), contextlib.AsyncExitStack() as stack:
            hands = [await stack.enter_async_context(by_hand(provider)) for _ in range(6)]
            host = host_of(provider)
            for hand in hands:
                hand.writer.write(incomplete(16 << 20, 3 << 20))
            await until(lambda: host.cut_offs["frames"])
            await until(lambda: host.holding.partial_bytes <= 8 << 20)
            assert await caller.call("shop.echo", b"x") == b"x"
            await stack.aclose()
            await until(lambda: len(host.connections) == 1)
            assert host.holding.partial_bytes == 0

    run(main())


@pytest.mark.parametrize(("bound", "callers"), [("RESULTS_BYTES_MAX", 1), ("ALL_RESULTS_BYTES_MAX", 3)])
def test_results_that_callers_do_not_read_are_bounded(bound, callers, monkeypatch):
    monkeypatch.setattr(holding_module, bound, 8 << 20)

    async def main():
        service, let = shop(), asyncio.Event()

        @service.method
        async def big() -> bytes:
            await let.wait()
            return bytes(1 << 20)

        async with calling(service) as (caller, provider), contextlib.AsyncExitStack() as stack:
            for _ in range(callers):
                hand = await stack.enter_async_context(by_hand(provider))
                hand.writer.transport.pause_reading()  # type: ignore[attr-defined]
                hand.writer.write(b"".join(encode_invoke(number, b"shop.big", b"") for number in range(1, 61)))
            await until(lambda: host_of(provider).running == 60 * callers)
            let.set()
            await until(lambda: host_of(provider).cut_offs["results"])
            await until(lambda: not host_of(provider).running)
            assert await caller.call("shop.echo", b"x") == b"x"

    run(main())


def test_a_connection_that_sends_nothing_is_closed_and_a_live_one_is_asked(monkeypatch):
    monkeypatch.setattr(connection_module, "HELLO_S", 0.0)
    monkeypatch.setattr(connection_module, "PING_AFTER_S", 0.0)

    async def main():
        async with calling(shop(), provider={}) as (caller, provider), by_hand(provider) as silent:
            async with by_hand(provider) as live:
                live.writer.write(encode_invoke(1, b"shop.echo", b"x"))
                assert (await live.frame() or (0,))[0] == CallKind.RESULT
                live.writer.write(encode_seen(1))
                assert (await live.frame() or (0,))[0] == Kind.PING
            last = (await silent.closed())[-1]
            assert last[0] == Kind.GOODBYE
            assert b"nothing came for" in last[3]
            assert await caller.call("shop.echo", b"x") == b"x"
            assert host_of(provider).cut_offs["silent"] >= 1

    run(main())


def test_cut_offs_are_counted_by_what_was_broken():
    async def main():
        async with peer(provides=[shop()]) as provider:
            for results in (1, 2, 3):
                async with by_hand(provider) as hand:
                    hand.writer.write(encode_seen(results))
                    await hand.closed()
            assert dict(host_of(provider).cut_offs) == {"results": 3}

    run(main())


def test_a_task_that_outlives_its_call_has_no_deadline_of_that_call():
    async def main():
        service, let = shop(), asyncio.Event()
        found: list[asyncio.Task[bytes]] = []

        @service.method
        async def starter() -> None:
            async def later() -> bytes:
                await let.wait()
                left = current_call()
                assert left is not None
                left.due = 1e-9  # long over
                return bytes(await own[0].call("shop.echo", b"x"))

            found.append(asyncio.create_task(later()))

        own: list[Peer] = []
        async with peer(provides=[service]) as one:
            own.append(one)
            await one.call("shop.starter")
            let.set()
            assert await found[0] == b"x"

    run(main())


def test_the_text_of_an_error_is_cut_at_4096_characters():
    async def main():
        service = shop()

        @service.method
        async def wordy() -> None:
            raise ValueError("x" * 9_000)

        async with peer(provides=[service]) as caller:
            with pytest.raises(Failed) as caught:
                await caller.call("shop.wordy")
            assert 4_000 < len(caught.value.text) <= 4_096

    run(main())


def test_a_method_that_swallows_its_cancellation_does_not_hold_the_close(monkeypatch):
    monkeypatch.setattr(host_module, "CANCEL_S", 0.05)

    async def main():
        service, release, began = shop(), asyncio.Event(), asyncio.Event()

        @service.method
        async def stubborn() -> None:
            began.set()
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()

        one = peer(provides=[service])
        await one.__aenter__()
        call = one.start_call("shop.stubborn")
        await began.wait()
        await host_of(one).close()
        release.set()
        await one.close()
        assert call.done()
        assert counts(one, "echo")["answered"] == 0

    run(main())
