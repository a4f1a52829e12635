"""Hedges: a slow call goes to a second instance, the first answer counts, and the other attempt is cancelled.

Each check holds as the code is, and fails with its plants.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.integration.services import PATIENCE_S, Gate, Listed, host_of, run, until
from tests.integration.test_service_rest import ask
from wherry.mesh.instance import Instance
from wherry.model.errors import InvalidInput
from wherry.service.balancing.retries import PART, SPARE, Retries
from wherry.service.calling.attempt import CallAttempt, CalledMethod
from wherry.service.calling.link import CallerLink
from wherry.service.outcomes import Failed, TimedOut
from wherry.service.peer import Peer, peer
from wherry.service.providing.running import ProvidedMethod
from wherry.service.service import Service
from wherry.sim.patch import patched

SOON_S = 0.02
"""A hedge is sent after this time."""

GIVEN_UP_S = 8.0
"""After this time an attempt that was not cancelled by then is taken to be never cancelled."""


class Stock:
    """One instance of the service, whose method waits in a gate."""

    def __init__(self, name: str, *, is_open: bool, fails: bool = False, **declared: Any) -> None:
        self.gate, self.name = Gate(), name
        if is_open:
            self.gate.opened.set()
        self.service = Service("stock")

        @self.service.method(**declared)
        async def find(body: bytes) -> bytes:
            await self.gate.passing()
            if fails:
                raise LookupError(f"nothing at {name}")
            return f"{name}: ".encode() + body

        self.provider: Peer

    @property
    def method(self) -> ProvidedMethod:
        """Return the method as it is provided."""
        return host_of(self.provider).services["stock"].methods["find"]


@asynccontextmanager
async def stocks(*instances: Stock, **more: Any) -> AsyncIterator[Peer]:
    """Provide the instances; yield a caller that takes them in turns."""
    registry = Listed()
    for each in instances:
        each.provider = await peer(registry=registry, provides=[each.service], instance_id=each.name).__aenter__()
    try:
        async with peer(registry=registry, **more) as caller:
            yield caller
    finally:
        for each in instances:
            each.gate.opened.set()
            await each.provider.close()


def find(caller: Peer, **more: Any) -> asyncio.Task[Any]:
    """Start a call that is hedged soon."""
    return caller.start_call("stock.find", b"x", **{"hedge": SOON_S, "timeout_s": PATIENCE_S, **more})


def target_of(caller: Peer) -> CalledMethod:
    """Return what a caller knows of the method."""
    return caller.caller.targets["stock.find"]


def ended_or_begun(task: asyncio.Task[Any], slow: Stock, begun: int) -> bool:
    return task.done() or slow.gate.begun > begun


async def in_turn(caller: Peer, slow: Stock, calls: int) -> list[bytes]:
    """Make calls, of which each second one is for the slow instance; only those are hedged."""
    first = find(caller, hedge=False)
    await until(lambda: first.done() or slow.gate.begun)
    is_slow = first.done()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    slow.gate.begun = 0
    found = []
    for _ in range(calls):
        begun = slow.gate.begun
        task = find(caller, idempotent=True, hedge=SOON_S if is_slow else False)
        if not is_slow:
            await until(partial(ended_or_begun, task, slow, begun))
            assert slow.gate.begun == begun, "a hedge took the turn of another call"
        found.append(await task)
        is_slow = not is_slow
    return found


async def check_hedge() -> None:
    slow, quick = Stock("a", is_open=False), Stock("b", is_open=True)
    async with stocks(slow, quick) as caller:
        assert await in_turn(caller, slow, 8) == [b"b: x"] * 8, "a slow instance was waited for"
        await slow.gate.until(lambda gate: not gate.running)
        for each in caller.caller.balancers["stock"].statistics(time.monotonic()):
            assert (each.failed, each.set_aside) == (0, False), (
                "an instance was blamed for an attempt that was given up"
            )
            assert each.under_way == 0
        hedges = target_of(caller).hedges
        assert (hedges.sent, hedges.won) == (slow.gate.begun, slow.gate.begun), "the caller did not count its hedges"
        assert quick.method.hedges == slow.gate.begun, "the provider did not count the hedges"
        assert slow.gate.begun == 4
        assert slow.method.statistics.counts()["cancelled"] in (4, 5)


async def check_cancelled() -> None:
    slow, quick = Stock("a", is_open=False), Stock("b", is_open=True)
    async with stocks(slow, quick) as caller:
        while not slow.gate.begun:
            await find(caller, idempotent=True)
        try:
            async with asyncio.timeout(GIVEN_UP_S):
                await slow.gate.until(lambda gate: gate.cancelled == 1)
        except TimeoutError:
            raise AssertionError("the attempt that lost was not cancelled") from None


async def check_only_idempotent() -> None:
    one, other = Stock("a", is_open=False), Stock("b", is_open=False)
    async with stocks(one, other) as caller:
        calls = [find(caller), find(caller), find(caller, idempotent=True)]
        # The time of the last one has come, so that of the first two has as well.
        await until(lambda: one.gate.begun + other.gate.begun >= 4)
        sent = target_of(caller).hedges.sent
        for gate in (one.gate, other.gate):
            gate.opened.set()
        await asyncio.gather(*calls)
        assert sent == 1, "a call that may not run twice was hedged"


async def check_budget() -> None:
    slow, also = Stock("a", is_open=False), Stock("b", is_open=False)
    async with stocks(slow, also) as caller:
        calls = [find(caller, idempotent=True) for _ in range(100)]
        await until(lambda: slow.gate.running + also.gate.running >= 100 + SPARE)
        # Their times have come when that of a later one has, which has the same pause.
        calls.append(find(caller, idempotent=True))
        await until(lambda: slow.gate.begun + also.gate.begun >= 101 + SPARE)
        for gate in (slow.gate, also.gate):
            gate.opened.set()
        await asyncio.gather(*calls)
        assert target_of(caller).hedges.sent <= SPARE + len(calls) * PART, "more hedges than the budget has"
        assert target_of(caller).hedges.sent >= SPARE


def blamed() -> Any:
    def make(real: Any) -> Any:
        def ended(self: Any, instance_id: str, now: float, seconds: float, ok: bool | None) -> None:
            real(self, instance_id, now, seconds, ok is True)

        return ended

    from wherry.service.balancing.set_aside import SetAside  # noqa: PLC0415  this plant alone

    return patched(SetAside, "ended", make)


def no_cancel() -> Any:
    return patched(CallerLink, "cancel", lambda real: lambda self, number: None)


def turns_taken() -> Any:
    def make(real: Any) -> Any:
        def as_hedge(self: CallAttempt, second: Instance) -> CallAttempt:
            other: CallAttempt = real(self, second)
            other.second = None
            return other

        return as_hedge

    return patched(CallAttempt, "as_hedge", make)


def no_mark() -> Any:
    def make(real: Any) -> Any:
        def as_hedge(self: CallAttempt, second: Instance) -> CallAttempt:
            other: CallAttempt = real(self, second)
            other.encoded = self.encoded
            return other

        return as_hedge

    return patched(CallAttempt, "as_hedge", make)


def anything_twice() -> Any:
    return patched(CallAttempt, "may_repeat", lambda real: property(lambda self: True))


def no_budget() -> Any:
    return patched(Retries, "hedge", lambda real: lambda self, *, idempotent: idempotent)


class HedgePlant(NamedTuple):
    """What is checked, a plant, and the message of the check that fails then."""

    check: Callable[[], Coroutine[Any, Any, None]]
    plant: Callable[[], Any]
    message: str


PLANTS = {
    "an attempt that is given up is a failure": HedgePlant(check_hedge, blamed, "was blamed"),
    "a hedge takes a turn": HedgePlant(check_hedge, turns_taken, "took the turn"),
    "a hedge has no mark": HedgePlant(check_hedge, no_mark, "provider did not count"),
    "the loser is not cancelled": HedgePlant(check_cancelled, no_cancel, "was not cancelled"),
    "anything is hedged": HedgePlant(check_only_idempotent, anything_twice, "was hedged"),
    "hedges have no budget": HedgePlant(check_budget, no_budget, "more hedges"),
}


@pytest.mark.rows("P14")
@pytest.mark.parametrize("check", dict.fromkeys(each.check for each in PLANTS.values()), ids=lambda each: each.__name__)
def test_a_check_of_hedges_holds(check: Callable[[], Coroutine[Any, Any, None]]):
    run(check())


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_in_hedges_is_noticed(name: str):
    check, plant, message = PLANTS[name]
    with plant(), pytest.raises(AssertionError, match=message):
        run(check())


def test_a_call_is_hedged_after_the_measured_time_and_not_before_it_is_measured():
    async def main():
        one, other = Stock("a", is_open=True), Stock("b", is_open=True)
        async with stocks(one, other) as caller:
            for _ in range(64):
                await caller.call("stock.find", b"x", idempotent=True, hedge=True)
            before = target_of(caller).hedges.sent
            one.gate.opened.clear()
            assert [await find(caller, idempotent=True, hedge=True) for _ in range(2)] == [b"b: x"] * 2
            assert target_of(caller).hedges.sent > before

    run(main())


def test_a_method_that_its_provider_declares_idempotent_is_hedged_from_the_second_call_on():
    async def main():
        slow, quick = Stock("a", is_open=True, idempotent=True), Stock("b", is_open=True, idempotent=True)
        async with stocks(slow, quick) as caller:
            await find(caller, hedge=False)
            slow.gate.opened.clear()
            assert [await find(caller) for _ in range(2)] == [b"b: x"] * 2

    run(main())


def test_an_error_of_the_method_is_an_answer_and_a_refusal_is_none():
    async def main():
        slow, broken = Stock("a", is_open=False), Stock("b", is_open=True, fails=True)
        async with stocks(slow, broken) as caller:
            for _ in range(2):
                with pytest.raises(Failed, match="nothing at b"):
                    await find(caller, idempotent=True)
        slow, full = Stock("a", is_open=False), Stock("b", is_open=False, max_concurrent=1)
        async with stocks(slow, full) as caller:
            calls = [find(caller, hedge=False)]
            await until(lambda: slow.gate.running or full.gate.running)
            if slow.gate.running:
                calls.append(find(caller, hedge=False))
                await until(lambda: full.gate.running)
            # It is the turn of the slow one, and the other one has no room.
            calls.append(find(caller, idempotent=True))
            await until(lambda: full.method.statistics.counts()["refused"] == 1)
            slow.gate.opened.set()
            full.gate.opened.set()
            assert (await asyncio.gather(*calls))[-1] == b"a: x"

    run(main())


def test_a_call_whose_attempts_both_have_no_answer_times_out_once():
    async def main():
        one, other = Stock("a", is_open=False), Stock("b", is_open=False)
        async with stocks(one, other) as caller:
            with pytest.raises(TimedOut):
                await find(caller, idempotent=True, timeout_s=2)
            assert target_of(caller).statistics.counts()["timed out"] == 1
            for each in (one, other):
                await each.gate.until(lambda gate: gate.cancelled == gate.begun == 1)

    run(main())


def test_a_caller_that_gives_up_cancels_both_attempts():
    async def main():
        one, other = Stock("a", is_open=False), Stock("b", is_open=False)
        async with stocks(one, other) as caller:
            call = find(caller, idempotent=True)
            await until(lambda: one.gate.running == other.gate.running == 1)
            call.cancel()
            for each in (one, other):
                await each.gate.until(lambda gate: gate.cancelled == 1)
            assert target_of(caller).statistics.counts()["cancelled"] == 1

    run(main())


@pytest.mark.rows("P7")
def test_a_session_with_an_instance_of_its_own_and_a_service_of_one_instance_have_no_hedges():
    async def main():
        one, other = Stock("a", is_open=False), Stock("b", is_open=False)
        async with stocks(one, other, balancer="sticky") as caller:
            calls = [find(caller, idempotent=True, session="customer-7")]
            await until(lambda: one.gate.running + other.gate.running == 1)
            calls.append(find(caller, idempotent=True))
            await until(lambda: target_of(caller).hedges.sent)
            one.gate.opened.set()
            other.gate.opened.set()
            await asyncio.gather(*calls)
            assert target_of(caller).hedges.sent == 1
        alone = Stock("a", is_open=True)
        async with stocks(alone) as caller:
            await find(caller, idempotent=True, hedge=0.000_001)
            assert target_of(caller).hedges.sent == 0

    run(main())


def test_a_closed_peer_ends_both_attempts():
    async def main():
        one, other = Stock("a", is_open=False), Stock("b", is_open=False)
        async with stocks(one, other) as caller:
            call = asyncio.create_task(
                caller.call("stock.find", b"x", idempotent=True, hedge=SOON_S, timeout_s=PATIENCE_S)
            )
            await until(lambda: one.gate.running == other.gate.running == 1)
            await caller.close()
            assert (await asyncio.gather(call, return_exceptions=True))[0] is not None
            assert call.exception() is not None

    run(main())


@pytest.mark.parametrize("hedge", [0, -1, 1e9, "soon", float("nan"), None])
def test_a_wrong_time_for_a_hedge_is_refused(hedge):
    async def main():
        async with stocks(Stock("a", is_open=True)) as caller:
            with pytest.raises(InvalidInput) as caught:
                await caller.call("stock.find", b"x", hedge=hedge)
            assert caught.value.field == "hedge"

    run(main())


@pytest.mark.rows("P2")
def test_hedges_are_listed_at_the_provider():
    async def main():
        slow, quick = Stock("a", is_open=False), Stock("b", is_open=True)
        async with stocks(slow, quick) as caller:
            for _ in range(2):
                await find(caller, idempotent=True)
            _, shown = await ask(quick.provider.url, "GET", "/services/stock")
            assert shown["methods"][0]["hedges"] == 1

    run(main())
