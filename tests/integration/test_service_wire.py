"""The wire of services by hand: callers that break rules or read nothing disturb no others; silent instances."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.golden.service_wire_v1 import FRAMES
from tests.integration.service_wire import by_hand
from tests.integration.services import Gate, Listed, calling, counts, host_of, run, shop, until
from wherry.mesh.instance import Instance
from wherry.service.calling import link as link_module
from wherry.service.losses import Losses
from wherry.service.outcomes import ConnectionLost, TimedOut
from wherry.service.peer import peer
from wherry.service.providing import connection as connection_module
from wherry.service.providing import unseen as unseen_module
from wherry.wire.native.codec.frames import Flag, Kind, encode_frame
from wherry.wire.native.codec.invokes import (
    CallKind,
    decode_trouble,
    encode_invoke,
    encode_result,
    encode_seen,
)


@pytest.mark.parametrize(
    "data",
    [
        encode_frame(Kind.PUBLISH, 1, b"x"),
        encode_frame(CallKind.INVOKE, 1, b"short"),
        encode_frame(CallKind.INVOKE, 0, bytes(20)),
        encode_invoke(1, b"shop.slow", b"x") * 2,
        encode_invoke(1, b"shop.slow", b"x", flags=Flag.MSGPACK | Flag.JSON),
        encode_seen(1),
        encode_frame(CallKind.TOKEN, 0, b"\xff"),
        encode_frame(CallKind.TOKEN, 0, b"x" * 20_000),
        encode_frame(Kind.HELLO, 0, b"{"),
    ],
    ids=["kind", "body", "id", "number in use", "flags", "seen", "token", "long token", "hello"],
)
def test_a_caller_that_breaks_a_rule_is_cut_off_with_the_reason(data):
    async def main():
        gate = Gate()
        async with calling(shop(gate)) as (caller, provider):
            async with by_hand(provider) as hand:
                hand.writer.write(data)
                *_, last = await hand.closed()
                assert last[0] == Kind.GOODBYE
                assert b"the client broke the protocol" in last[3]
            await until(lambda: not gate.running)
            assert sum(host_of(provider).cut_offs.values()) == 1
            assert await caller.call("shop.echo", b"x") == b"x"

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_end_in_answers_or_a_cut_off_and_disturb_no_other_caller(seed):
    async def main():
        random = Random(seed)
        frames = [frame.data for frame in FRAMES.values() if frame.side == "client"]
        async with calling(shop()) as (caller, provider):
            for _ in range(5):
                data = bytearray(b"".join(random.choice(frames) for _ in range(6)))
                for _ in range(random.randint(0, 5)):
                    data[random.randrange(len(data))] = random.randrange(256)
                async with by_hand(provider) as hand:
                    hand.writer.write(data)
                    hand.writer.write_eof()
                    await hand.closed()
                assert await caller.call("shop.echo", b"x") == b"x"
            await until(lambda: len(host_of(provider).connections) == 1)
            assert host_of(provider).running == 0

    run(main())


def test_a_caller_that_reports_no_results_is_cut_off_and_its_calls_are_lost(monkeypatch):
    monkeypatch.setattr(unseen_module, "UNSEEN_MAX", 3)

    async def main():
        lost = []
        losses = Losses(on_provided=lambda call, outcome: lost.append((call.name, outcome.value)))
        async with calling(shop(), provider={"lost": losses}) as (_, provider), by_hand(provider) as hand:
            for number in range(1, 5):
                hand.writer.write(encode_invoke(number, b"shop.echo", b"x"))
            await hand.closed()
            await until(lambda: not host_of(provider).connections)
            assert lost == [("shop.echo", "lost")] * 4
            assert host_of(provider).endings.unseen_results == 4

    run(main())


def test_the_arguments_of_calls_under_way_are_bounded(monkeypatch):
    monkeypatch.setattr(connection_module, "ARGUMENT_BYTES_MAX", 10)

    async def main():
        gate = Gate()
        async with calling(shop(gate)) as (_, provider), by_hand(provider) as hand:
            hand.writer.write(encode_invoke(1, b"shop.slow", b"x" * 8) + encode_invoke(2, b"shop.slow", b"x" * 8))
            refused = await hand.frame()
            assert refused is not None
            assert refused[2] == 2
            assert decode_trouble(refused[3]).code == "full"
            gate.opened.set()
            assert await hand.frame() == (CallKind.RESULT, 0, 1, b"x" * 8)
            hand.writer.write(encode_invoke(3, b"shop.slow", b"y" * 8))
            assert await hand.frame() == (CallKind.RESULT, 0, 3, b"y" * 8)

    run(main())


@pytest.mark.rows("P19")
def test_a_method_keeps_its_place_after_its_caller_has_gone():
    async def main():
        released, running = asyncio.Event(), []
        service = shop(max_concurrent=1)

        async def stubborn(body: bytes) -> bytes:
            running.append(body)
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue
            return body

        service.methods["slow"].function = stubborn
        async with calling(service) as (caller, provider):
            with pytest.raises(TimedOut):
                await caller.call("shop.slow", b"1", timeout_s=0.1)
            await until(lambda: counts(provider)["timed out"] + counts(provider)["cancelled"] == 1)
            with pytest.raises(Exception, match="full"):
                await caller.call("shop.slow", b"2")
            released.set()
            await until(lambda: host_of(provider).running == 0)
            assert await caller.call("shop.slow", b"3") == b"3"
            assert running == [b"1", b"3"]

    run(main())


def test_a_caller_that_reads_nothing_is_not_read_and_others_go_on():
    async def main():
        async with calling(shop()) as (caller, provider), by_hand(provider) as hand:
            hand.writer.transport.pause_reading()  # type: ignore[attr-defined]
            body = bytes(1 << 20)
            for number in range(1, 41):
                hand.writer.write(encode_invoke(number, b"shop.echo", body))
            await until(lambda: any(each._paused_since is not None for each in host_of(provider).connections))
            assert await caller.call("shop.echo", b"x") == b"x"
            hand.writer.transport.resume_reading()  # type: ignore[attr-defined]
            found = [await hand.frame() for _ in range(40)]
            assert [frame and (frame[2], len(frame[3])) for frame in found] == [(n, 1 << 20) for n in range(1, 41)]

    run(main())


async def instance_by_hand(registry: Listed, answer: bytes, reply: bytes = b"") -> asyncio.Server:
    """Serve an instance of `shop` that answers the upgrade, and to the first bytes behind it `reply`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await reader.read(1 << 16)
        writer.write(reply)
        while await reader.read(1 << 16):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await registry.announce(Instance(service="shop", id="odd", url=f"http://127.0.0.1:{port}"))
    return server


@pytest.mark.rows("P14")
def test_an_instance_that_falls_silent_is_given_up(monkeypatch):
    monkeypatch.setattr(link_module, "SILENT_S", 0.4)
    monkeypatch.setattr(link_module, "PING_AFTER_S", 0.1)

    async def main():
        registry = Listed()
        server = await instance_by_hand(registry, connection_module.SWITCHING)
        async with peer(registry=registry) as caller:
            with pytest.raises(ConnectionLost, match="sent nothing for") as caught:
                await caller.call("shop.echo", b"x")
            assert caught.value.is_unknown
        server.close()
        await server.wait_closed()

    run(main())


@pytest.mark.parametrize(
    "reply",
    [b"\x00" * 12, encode_frame(Kind.GOODBYE, 0, b"{"), encode_result(1, b"\xc1", Flag.FAILED | Flag.MSGPACK)],
    ids=["kind", "goodbye", "trouble"],
)
def test_an_instance_that_breaks_a_rule_ends_the_call_with_an_error(reply):
    async def main():
        registry = Listed()
        server = await instance_by_hand(registry, connection_module.SWITCHING, reply)
        async with peer(registry=registry) as caller:
            with pytest.raises(Exception, match="the server broke the protocol"):
                await caller.call("shop.echo", b"x")
        server.close()
        await server.wait_closed()

    run(main())


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-x\r\n\r\n"])
def test_a_port_that_provides_no_services_is_named(answer):
    async def main():
        registry = Listed()
        server = await instance_by_hand(registry, answer)
        async with peer(registry=registry) as caller:
            with pytest.raises(Exception, match="provides no services"):
                await caller.call("shop.echo", b"x")
        server.close()
        await server.wait_closed()

    run(main())
