"""Lost calls of peers: kept at the side where they failed, sent again with their id, and told apart as repeats."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.integration.service_wire import by_hand
from tests.integration.services import PATIENCE_S, Gate, Listed, Order, calling, host_of, run, shop
from wherry.cli.main import app
from wherry.model.errors import InvalidInput
from wherry.service.losses import Losses
from wherry.service.lost.log import LostLog
from wherry.service.lost.lost_call import LostCall
from wherry.service.outcomes import CallError, ConnectionLost, Failed, Refused, TimedOut
from wherry.service.peer import Peer, peer
from wherry.service.service import Service
from wherry.wire.native.codec.invokes import CallContext, CallKind, encode_context, encode_invoke


async def kept(lost: LostLog | None) -> list[LostCall]:
    assert lost is not None
    return [each async for each in lost.calls()]


async def until_kept(lost: LostLog | None, count: int) -> list[LostCall]:
    """Wait until a provider, which waits for nothing, has kept so many."""
    async with asyncio.timeout(PATIENCE_S):
        while len(found := await kept(lost)) != count:  # noqa: ASYNC110  nothing reports it
            await asyncio.sleep(0.01)
    return found


async def failing(caller: Peer, *call: Any, **more: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await caller.call(*call, **more)
    return caught.value


@pytest.mark.rows("P15")
def test_a_caller_keeps_a_call_that_timed_out_was_refused_or_found_no_instance(tmp_path):
    async def main():
        async with calling(shop(Gate(), max_concurrent=1), lost=tmp_path / "lost") as (caller, _):
            late = await failing(caller, "shop.slow", b"x", timeout_s=0.2, session="customer-7")
            nowhere = await failing(caller, "none.total", {"items": [1]}, resend=True)
            wrong = await failing(caller, "shop.total", {"items": ["x"]}, resend=True)
            unknown = await failing(caller, "shop.none", b"x")
            faults = [late, nowhere, wrong, unknown]
            assert [type(each) for each in faults] == [TimedOut, Refused, Refused, Refused]
            assert [each.is_kept for each in faults] == [True] * 4
            found = {each.id: each for each in await kept(caller.lost)}
            first, second, third, _ = (found[each.call_id] for each in faults)
            assert (first.service, first.method, first.body, first.session) == ("shop", "slow", b"x", "customer-7")
            assert (first.outcome, first.error, first.side, first.resend) == ("timed out", "TimedOut", "caller", False)
            assert (second.outcome, second.error, second.content) == ("refused", "no-instance", "msgpack")
            assert [second.resend, third.resend] == [True, False], "bad input stays bad"

    run(main())


@pytest.mark.rows("P15")
def test_a_caller_keeps_a_call_whose_connection_broke_or_whose_peer_was_closed(tmp_path):
    async def main():
        gate = Gate()
        async with calling(shop(gate), lost=tmp_path / "lost") as (caller, provider):
            broken = caller.start_call("shop.slow", b"broken")
            await gate.until(lambda found: found.running == 1)
            for connection in list(host_of(provider).connections):
                connection.abort()
            with pytest.raises(ConnectionLost) as caught:
                await broken
            assert caught.value.is_kept
            _ = caller.start_call("shop.slow", b"closed")
            await gate.until(lambda found: found.running == 1 and found.begun == 2)
        async with LostLog(tmp_path / "lost") as log:
            assert [(each.body, each.outcome) for each in await kept(log)] == [(b"broken", "lost"), (b"closed", "lost")]

    run(main())


@pytest.mark.rows("P15")
def test_a_provider_keeps_a_call_whose_method_failed_or_whose_result_was_not_read(tmp_path):
    async def main():
        gate = Gate()
        more = {"lost": tmp_path / "lost"}
        async with calling(shop(gate), provider=more) as (caller, provider):
            failed = await failing(caller, "shop.broken", Order([7]))
            assert isinstance(failed, Failed)
            (found,) = await until_kept(provider.lost, 1)
            assert (found.side, found.outcome, found.error) == ("provider", "failed", "KeyError")
            assert (found.text, found.instance) == ("'no price for 7'", "a")
            _ = caller.start_call("shop.slow", b"x")
            await gate.until(lambda found: found.running == 1)
            for connection in list(host_of(provider).connections):
                connection.abort()
            assert {each.outcome for each in await until_kept(provider.lost, 2)} == {"failed", "lost"}
            assert await caller.call("shop.echo", b"fine") == b"fine"
            async with by_hand(provider) as hand:
                hand.writer.write(encode_invoke(1, b"shop.echo", b"not reported"))
                assert await hand.frame() == (CallKind.RESULT, 0, 1, b"not reported")
            found = (await until_kept(provider.lost, 3))[-1]
            assert (found.body, found.outcome) == (b"not reported", "lost")

    run(main())


@pytest.mark.rows("P15")
def test_what_is_answered_or_given_up_by_its_caller_is_not_kept_and_makes_no_folder(tmp_path):
    async def main():
        gate, log = Gate(), tmp_path / "lost"
        async with calling(shop(gate), lost=log, provider={"lost": tmp_path / "theirs"}) as (caller, _):
            assert await caller.call("shop.echo", b"x") == b"x"
            task = caller.start_call("shop.slow", b"x")
            await gate.until(lambda found: found.running == 1)
            task.cancel()
            await gate.until(lambda found: found.cancelled == 1)
        assert list(tmp_path.iterdir()) == []

    run(main())


@pytest.mark.rows("P16")
def test_a_kept_call_is_sent_again_when_its_service_is_back(tmp_path):
    async def main():
        registry, ran, answered = Listed(), [], asyncio.Event()
        results: list[Any] = []
        job = Service("job")

        @job.method
        async def run_(order: Order) -> int:
            ran.append(order.items)
            return sum(order.items)

        def on_resent(call: LostCall, result: Any) -> None:
            results.append((call.id, result))
            answered.set()

        lost = Losses(log=tmp_path / "lost", on_resent=on_resent)
        async with peer(registry=registry, lost=lost) as caller:
            fault = await failing(caller, "job.run_", Order([1, 2]), resend=True)
            await failing(caller, "job.run_", Order([3]))
            async with peer(registry=registry, provides=[job]):
                await asyncio.wait_for(answered.wait(), PATIENCE_S)
                (left,) = await until_kept(caller.lost, 1)
                assert not left.resend, "the other one did not ask for it"
            assert results == [(fault.call_id, 3)]
            assert ran == [[1, 2]]

    run(main())


@pytest.mark.rows("P16")
def test_a_kept_call_is_sent_again_by_the_next_process(tmp_path):
    """A peer that is opened anew stands for that process: nothing but the folder is left of the one before."""

    async def main():
        registry, answered = Listed(), asyncio.Event()
        async with peer(registry=registry, lost=tmp_path / "lost") as caller:
            await failing(caller, "shop.echo", b"x", resend=True)
        async with peer(registry=registry, provides=[shop()]):
            lost = Losses(log=tmp_path / "lost", on_resent=lambda call, result: answered.set())
            async with peer(registry=registry, lost=lost) as caller:
                await asyncio.wait_for(answered.wait(), PATIENCE_S)
                await until_kept(caller.lost, 0)

    run(main())


@pytest.mark.rows("P16")
def test_a_repeat_gets_the_result_of_the_first_and_one_that_runs_is_waited_for():
    async def main():
        gate = Gate()
        async with calling(shop(gate)) as (caller, provider):
            context = CallContext(call_id="c-1")
            first = caller.start_call("shop.slow", b"x", context=context)
            await gate.until(lambda found: found.running == 1)
            repeats = [caller.start_call("shop.slow", b"x", context=context) for _ in range(3)]
            other = caller.start_call("shop.slow", b"y", context=CallContext(call_id="c-2"))
            await gate.until(lambda found: found.running == 2)
            gate.opened.set()
            assert await asyncio.gather(first, *repeats, other) == [b"x"] * 4 + [b"y"]
            assert await caller.call("shop.slow", b"x", context=context) == b"x"
            assert gate.begun == 2, "a repeat was run"
            assert await caller.call("shop.echo", b"z", context=context) == b"z", "of another method it is a new call"
            assert host_of(provider).repeating.recognised == 4

    run(main())


@pytest.mark.rows("P16")
def test_a_repeat_of_a_call_without_a_result_runs_when_that_has_ended():
    async def main():
        gate = Gate()
        async with calling(shop(gate)) as (caller, provider):
            context = CallContext(call_id="c-1")
            first = caller.start_call("shop.slow", b"x", context=context)
            await gate.until(lambda found: found.running == 1)
            given_up, repeat = (caller.start_call("shop.slow", b"x", context=context) for _ in range(2))
            async with asyncio.timeout(PATIENCE_S):
                while host_of(provider).repeating.recognised < 2:  # noqa: ASYNC110  nothing reports it
                    await asyncio.sleep(0.001)
            given_up.cancel()
            first.cancel()
            await gate.until(lambda found: found.begun == 2 and found.running == 1)
            gate.opened.set()
            assert await repeat == b"x"
            assert gate.most == 1, "both ran at a time"
            with pytest.raises(Failed):
                await caller.call("shop.broken", Order([1]), context=context)
            with pytest.raises(Failed):
                await caller.call("shop.broken", Order([1]), context=context)

    run(main())


@pytest.mark.parametrize("call_id", ["x" * 61, "", "a b"])
def test_a_call_id_that_breaks_its_bounds_ends_the_connection(call_id):
    async def main():
        async with calling(shop()) as (caller, provider), by_hand(provider) as hand:
            context = encode_context(CallContext(call_id=call_id))
            hand.writer.write(encode_invoke(1, b"shop.echo", b"x", context=context))
            assert b"call_id" in (await hand.closed())[-1][3]
            assert await caller.call("shop.echo", b"x") == b"x"

    run(main())


@pytest.mark.parametrize(
    ("more", "field"),
    [({"resend": True}, "resend"), ({"context": CallContext(call_id="x" * 61)}, "call_id")],
)
def test_what_cannot_be_kept_or_recognised_is_refused_before_it_is_sent(more, field):
    async def main():
        async with calling(shop()) as (caller, _):
            with pytest.raises(InvalidInput) as caught:
                await caller.call("shop.echo", b"x", **more)
            assert caught.value.field == field

    run(main())


@pytest.mark.rows("P15", "P16")
def test_the_command_asks_for_a_resend_of_what_a_peer_has_kept(tmp_path):
    def command(*words: str) -> str:
        done = CliRunner().invoke(app, ["lost", *words, "--log", str(tmp_path / "lost")])
        assert done.exit_code == 0, done.output
        return done.output

    async def main():
        registry, answered = Listed(), asyncio.Event()
        async with peer(registry=registry, lost=tmp_path / "lost") as caller:
            fault = await failing(caller, "shop.echo", b"x")
        assert fault.call_id in await asyncio.to_thread(command, "list")
        await asyncio.to_thread(command, "resend", fault.call_id)
        async with peer(registry=registry, provides=[shop()]):
            lost = Losses(log=tmp_path / "lost", on_resent=lambda call, result: answered.set())
            async with peer(registry=registry, lost=lost):
                await asyncio.wait_for(answered.wait(), PATIENCE_S)

    run(main())
