"""Callers beside instances that are dead, broken, slow to connect or refuse: what is dialled, chosen and given up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from tests.integration.services import Gate, Listed, Order, calling, host_of, run, shop, until
from wherry.mesh.instance import Instance
from wherry.model.errors import Closed, InvalidInput
from wherry.service.calling import caller as caller_module
from wherry.service.calling import link as link_module
from wherry.service.calling import targets as targets_module
from wherry.service.losses import Losses
from wherry.service.outcomes import CallError, ConnectionLost, RefusalCode, Refused, TimedOut
from wherry.service.peer import Peer, peer
from wherry.service.providing.connection import SWITCHING
from wherry.service.service import Service
from wherry.service.trust import Trust
from wherry.wire.native.codec.documents import encode_goodbye
from wherry.wire.native.codec.frames import Flag, Kind, encode_frame
from wherry.wire.native.codec.invokes import CallContext, PeerHello, encode_result

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def port_of(serve: Serve) -> AsyncIterator[str]:
    """Serve connections by hand, and return the URL."""

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(quietly, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def beside(serve: Serve, **more: object) -> AsyncIterator[Peer]:
    """Run a caller of `shop` with two instances: an odd one, which comes first, and a good one."""
    registry = Listed()
    async with (
        port_of(serve) as url,
        peer(registry=registry, provides=[shop()], instance_id="good"),
        peer(registry=registry, **more) as caller,  # type: ignore[arg-type]  # as the test gives them
    ):
        await registry.announce(Instance(service="shop", id="bad", url=url))
        yield caller


async def read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


@pytest.mark.rows("P14")
def test_a_dead_connection_is_given_up_although_each_call_over_it_ends_before(monkeypatch):
    monkeypatch.setattr(link_module, "SILENT_S", 0.6)
    monkeypatch.setattr(link_module, "PING_AFTER_S", 0.1)
    dialled = 0

    async def dead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHING + encode_frame(Kind.HELLO, 0, b"{}"))
        await read_all(reader)

    async def main():
        registry = Listed()
        async with port_of(dead) as url, peer(registry=registry) as caller:
            await registry.announce(Instance(service="shop", id="a", url=url))
            while dialled < 2:
                with pytest.raises(CallError):
                    await caller.call("shop.echo", b"x", timeout_s=0.15)

    run(main())


@pytest.mark.parametrize("delay_s", [0.0, 0.01])
def test_an_instance_that_breaks_the_protocol_at_once_is_not_dialled_again_and_again(delay_s):
    dialled = 0

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        await reader.readuntil(b"\r\n\r\n")
        if delay_s:
            writer.write(SWITCHING)
            await asyncio.sleep(delay_s)
            writer.write(b"\xff" * 64)
        else:
            writer.write(SWITCHING + b"\xff" * 64)
        await writer.drain()
        await read_all(reader)

    async def main():
        async with beside(nonsense) as caller:
            for _ in range(20):
                with contextlib.suppress(ConnectionLost):
                    assert await caller.call("shop.echo", b"x") == b"x"
        assert dialled <= 20

    run(main())


def test_an_instance_that_never_answers_the_upgrade_takes_a_part_of_the_deadline_only(monkeypatch):
    monkeypatch.setattr(caller_module, "DIAL_S_MAX", 0.1)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_all(reader)

    async def main():
        async with beside(silent) as caller:
            for _ in range(4):
                assert await caller.call("shop.echo", b"x", timeout_s=30.0) == b"x"

    run(main())


def test_waiting_for_room_leaves_nothing_behind(monkeypatch):
    async def main():
        async with calling(shop()) as (caller, provider):
            await caller.call("shop.echo", b"x")
            link = caller.caller.pool.open[provider.url]
            link.pause_writing()
            for _ in range(3):
                with pytest.raises(TimedOut):
                    await caller.call("shop.echo", b"x", timeout_s=0.02)
            assert not link._for_change
            link.resume_writing()
            assert await caller.call("shop.echo", b"x") == b"x"

    run(main())


def test_the_budget_of_retries_is_filled_by_calls():
    async def main():
        async with calling(shop()) as (caller, _):
            await caller.call("shop.echo", b"x")
            retries = caller.caller.targets["shop.echo"].retries
            while retries._take():
                pass
            for _ in range(20):
                await caller.call("shop.echo", b"x")
            assert retries._take()

    run(main())


@pytest.mark.parametrize("balancer", ["round-robin", "fastest"])
def test_a_cancelled_call_counts_neither_for_nor_against_its_instance(balancer):
    async def main():
        gate = Gate()
        async with calling(shop(gate), balancer=balancer) as (caller, _):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await caller.call("shop.slow", b"x")
            (found,) = caller.caller.balancers["shop"].statistics(time.monotonic())
            assert (found.calls, found.failed, found.under_way) == (1, 0, 0)
            assert found.seconds is None or found.seconds >= 0.15

    run(main())


def three() -> tuple[Listed, list[Peer]]:
    registry = Listed()
    return registry, [peer(registry=registry, provides=[named(each)], instance_id=each) for each in "abc"]


def named(name: str) -> Service:
    service = Service("s")

    @service.method
    async def ping() -> str:
        return name

    @service.method
    async def hot() -> str:
        return name

    return service


@pytest.mark.rows("P11", "P14")
@pytest.mark.parametrize("is_open", [False, True])
def test_a_call_is_not_sent_to_another_process_that_has_the_address_of_a_dead_instance(is_open):
    async def main():
        registry, peers = three()
        async with peers[0] as a, peers[1], peer(registry=registry) as caller:
            if is_open:
                assert {await caller.call("s.ping", returns=str) for _ in range(4)} == {"a", "b"}
            await registry.withdraw("s", "a")
            await registry.announce(Instance(service="s", id="dead", url=a.url, version=1))
            assert {await caller.call("s.ping", returns=str) for _ in range(8)} == {"b"}
            await registry.withdraw("s", "b")
            with pytest.raises(Refused, match="is 'a' by now, not 'dead'") as caught:
                await caller.call("s.ping")
            assert caught.value.reason is RefusalCode.NO_INSTANCE

    run(main())


@pytest.mark.rows("P14")
def test_a_call_is_not_sent_to_an_instance_that_leaves_while_it_introduces_itself():
    """Behind its PONG no call may come: one that came would be lost, and nobody would know whether it was run."""
    invoked = 0

    async def leaving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal invoked
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHING)
        await reader.readexactly(len(encode_frame(Kind.HELLO, 0)))  # the caller has a connection, and waits for a name
        hello = encode_frame(Kind.HELLO, 0, msgspec.json.encode(PeerHello(name="bad")))
        writer.write(hello + encode_goodbye("the instance is closing") + encode_frame(Kind.PING, 1))
        while data := await reader.read(1 << 16):
            invoked += b"shop.echo" in data

    async def main():
        registry = Listed()
        async with (
            port_of(leaving) as url,
            peer(registry=registry, provides=[shop()], instance_id="good"),
            peer(registry=registry) as caller,
        ):
            await registry.announce(Instance(service="shop", id="bad", url=url, version=1))
            for _ in range(4):
                assert await caller.call("shop.echo", b"x") == b"x"
        assert not invoked

    run(main())


def test_a_method_that_one_instance_refuses_sets_it_aside_for_that_method_alone():
    async def main():
        registry, peers = three()
        async with contextlib.AsyncExitStack() as stack:
            for each in peers:
                await stack.enter_async_context(each)
            host_of(peers[2]).services["s"].methods["hot"].is_paused = True
            caller = await stack.enter_async_context(peer(registry=registry))
            hot: Counter[str] = Counter()
            ping: Counter[str] = Counter()
            for _ in range(60):
                hot[await caller.call("s.hot")] += 1
                ping[await caller.call("s.ping")] += 1
            assert ping == {"a": 20, "b": 20, "c": 20}
            assert set(hot) == {"a", "b"}
            assert 28 <= hot["a"] <= 32
            assert not any(each.set_aside for each in caller.caller.balancers["s"].statistics(time.monotonic()))

    run(main())


def test_methods_that_alternate_reach_all_instances():
    async def main():
        registry, peers = three()
        async with contextlib.AsyncExitStack() as stack:
            for each in peers[:2]:
                await stack.enter_async_context(each)
            caller = await stack.enter_async_context(peer(registry=registry))
            hot: Counter[str] = Counter()
            for _ in range(10):
                hot[await caller.call("s.hot")] += 1
                await caller.call("s.ping")
            assert hot == {"a": 5, "b": 5}

    run(main())


def test_faults_of_the_caller_set_no_instance_aside():
    async def main():
        async def no_token() -> str:
            raise RuntimeError("no token today")

        async with calling(shop()) as (caller, _):
            for _ in range(5):
                with pytest.raises(InvalidInput, match="context"):
                    await caller.call("shop.echo", b"x", context=CallContext(tracestate="x" * 20_000))
            assert await caller.call("shop.echo", b"x") == b"x"
            (found,) = caller.caller.balancers["shop"].statistics(time.monotonic())
            assert not found.failed
        async with calling(shop(), trust=Trust(token=no_token)) as (caller, _):
            for _ in range(5):
                with pytest.raises(RuntimeError, match="no token today"):
                    await caller.call("shop.echo", b"x")
            assert not caller.caller.balancers["shop"].statistics(time.monotonic())

    run(main())


def test_the_first_token_is_sent_although_there_was_none_when_the_connection_opened():
    token = ""

    def authorize(token: str, service: str, method: str) -> str:
        return "ann" if token == "good" else "nobody"

    async def main():
        nonlocal token
        service = Service("who")

        @service.method
        async def am_i() -> str:
            from wherry.service.current import current_call  # noqa: PLC0415  for this test alone

            found = current_call()
            return found.caller if found else ""

        more = {"trust": Trust(authorize=authorize)}
        async with calling(service, trust=Trust(token=lambda: token), provider=more) as (caller, _):
            assert await caller.call("who.am_i") == "nobody"
            token = "good"
            assert await caller.call("who.am_i") == "ann"

    run(main())


def test_bad_input_is_refused_before_the_call():
    async def main():
        async with calling(shop()) as (caller, provider):
            with pytest.raises(InvalidInput, match="returns"):
                await caller.call("shop.echo", b"x", returns={"a": 1})
            assert host_of(provider).services["shop"].methods["echo"].statistics.counts()["answered"] == 0
            with pytest.raises(InvalidInput, match="result"):
                await caller.call("shop.plain", Order([1]), returns=str)
        with pytest.raises(InvalidInput, match="balancer"):
            peer(balancer="fastst")

    run(main())


def test_services_that_do_not_exist_are_forgotten(monkeypatch):
    monkeypatch.setattr(targets_module, "SERVICES_MAX", 10)

    async def main():
        async with calling(shop()) as (caller, _):
            await caller.call("shop.echo", b"x")
            for number in range(40):
                with pytest.raises(Refused):
                    await caller.call(f"none{number}.x", timeout_s=0.1)
            assert len(caller.caller.balancers) <= 10
            assert "shop" in caller.caller.balancers

    run(main())


def test_an_answer_that_cannot_be_read_is_a_lost_call():
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHING)
        await reader.read(1 << 16)
        writer.write(encode_result(1, b"\xc1", Flag.FAILED | Flag.MSGPACK))
        await read_all(reader)

    async def main():
        lost, registry = [], Listed()
        losses = Losses(on_call=lambda call, fault: lost.append(type(fault)))
        async with port_of(broken) as url, peer(registry=registry, lost=losses) as caller:
            await registry.announce(Instance(service="shop", id="bad", url=url))
            with pytest.raises(ConnectionLost, match="broke the protocol"):
                await caller.call("shop.echo", b"x")
            assert lost == [ConnectionLost]
            assert caller.caller.targets["shop.echo"].statistics.counts()["lost"] == 1
            assert not caller.caller.pool.open

    run(main())


def test_callers_that_connect_or_wait_get_an_error_when_the_peer_closes():
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_all(reader)

    async def main():
        registry = Listed()
        async with port_of(silent) as url:
            await registry.announce(Instance(service="shop", id="bad", url=url))
            caller = peer(registry=registry)
            await caller.__aenter__()
            caller.caller._first._settled_at = time.monotonic() + 60.0
            connecting = asyncio.create_task(caller.call("shop.echo", b"x"))
            waiting = asyncio.create_task(caller.call("none.x"))
            await until(lambda: caller.caller.pool._opening and caller.caller._first._waiting)
            await caller.close()
            with pytest.raises(Refused, match="the peer is closed") as caught:
                await connecting
            assert caught.value.reason is RefusalCode.NO_INSTANCE
            with pytest.raises(Closed):
                await waiting

    run(main())


def test_the_reason_of_a_refused_connection_is_in_the_error():
    async def forbidding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"detail": "add it to the names"}'
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await read_all(reader)

    async def main():
        registry = Listed()
        async with port_of(forbidding) as url, peer(registry=registry) as caller:
            await registry.announce(Instance(service="shop", id="bad", url=url))
            with pytest.raises(Refused, match="status 403: add it to the names"):
                await caller.call("shop.echo", b"x")

    run(main())
