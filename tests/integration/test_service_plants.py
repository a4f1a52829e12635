"""Plants in services: each check holds as the code is, and fails with its plant.

A repeat that runs twice, one that is answered to another caller, a lost call that is not kept, a resend with another
id, a limit that is exceeded, a place that is given away too soon, a token that REST does not check, an end that
forgets calls on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.integration.service_wire import by_hand
from tests.integration.services import PATIENCE_S, Gate, Listed, calling, host_of, run, shop, until
from tests.integration.test_service_rest import ask
from wherry.model.errors import Unauthorized
from wherry.service.losses import Losses
from wherry.service.lost import keeping as keeping_module
from wherry.service.lost.keeping import Keeping
from wherry.service.outcomes import CallError, Refused
from wherry.service.peer import peer
from wherry.service.providing import repeating as repeating_module
from wherry.service.providing import rest as rest_module
from wherry.service.providing.connection import ProviderConnection
from wherry.service.providing.host import Host
from wherry.service.providing.repeating import Repeating
from wherry.service.providing.throttle import Admission, Throttle
from wherry.service.trust import Trust
from wherry.sim.patch import patched
from wherry.wire.native.codec.frames import Flag, Kind, encode_frame
from wherry.wire.native.codec.invokes import CallContext, CallKind, encode_invoke

Check = Callable[[Path], Coroutine[Any, Any, None]]
ONE = CallContext(call_id="c-1")


async def check_repeats(folder: Path) -> None:
    gate = Gate()
    gate.opened.set()
    async with calling(shop(gate)) as (caller, _):
        for _ in range(2):
            assert await caller.call("shop.slow", b"x", context=ONE) == b"x"
        assert gate.begun == 1, "a repeat ran twice"


async def check_other_argument(folder: Path) -> None:
    gate = Gate()
    gate.opened.set()
    async with calling(shop(gate)) as (caller, _):
        assert await caller.call("shop.slow", b"x", context=ONE) == b"x"
        answers = await asyncio.gather(caller.call("shop.slow", b"y", context=ONE), return_exceptions=True)
        assert isinstance(answers[0], Refused), "a call got the result of another argument"
        assert answers[0].field == "call_id"


async def check_running_repeats(folder: Path) -> None:
    gate = Gate()
    async with calling(shop(gate)) as (caller, provider):
        calls = [caller.start_call("shop.slow", b"x", context=ONE) for _ in range(2)]
        await until(lambda: gate.begun == 2 or (gate.begun and host_of(provider).repeating.recognised))
        gate.opened.set()
        await asyncio.gather(*calls)
        assert gate.begun == 1, "a repeat ran beside the first"


async def check_callers(folder: Path) -> None:
    gate = Gate()
    gate.opened.set()
    provider = {"trust": Trust(authorize=lambda token, service, method: token)}
    async with calling(shop(gate), provider=provider, trust=Trust(token="ann")) as (ann, providing):
        static = providing.url.replace("http://", "static://")
        assert await ann.call("shop.slow", b"x", context=ONE) == b"x"
        async with peer(registry=static, trust=Trust(token="bob")) as bob:
            await bob.call("shop.slow", b"x", context=ONE)
            assert gate.begun == 2, "a caller got what was answered to another one"


async def check_kept(folder: Path) -> None:
    async with peer(registry=Listed(), lost=folder) as caller:
        with pytest.raises(CallError) as caught:
            await caller.call("none.total", b"x")
        lost = caller.lost
        assert lost is not None
        found = await lost.get(caught.value.call_id)
        assert found or not caught.value.is_kept, "the caller is told that its call is kept, which is not so"
        assert found, "a lost call was not kept"


async def check_resent(folder: Path) -> None:
    registry, answered, gate = Listed(), asyncio.Event(), Gate()
    gate.opened.set()
    lost = Losses(log=folder, on_resent=lambda call, result: answered.set())
    async with (
        peer(registry=registry, provides=[shop(gate)], instance_id="a") as provider,
        peer(registry=registry, lost=lost) as caller,
    ):
        # As if the first answer had not come: the second call, which is kept, has its id.
        assert await caller.call("shop.slow", b"x", context=ONE) == b"x"
        host_of(provider).is_draining = True
        with pytest.raises(Refused):
            await caller.call("shop.slow", b"x", context=ONE, resend=True)
        host_of(provider).is_draining = False
        await asyncio.wait_for(answered.wait(), PATIENCE_S)
        assert gate.begun == 1, "a resend ran as a new call"


async def check_limit(folder: Path) -> None:
    gate = Gate()
    async with calling(shop(gate, max_concurrent=2)) as (caller, provider):
        calls = [caller.start_call("shop.slow", b"x") for _ in range(6)]
        slow = host_of(provider).services["shop"].methods["slow"]
        await until(lambda: gate.begun + slow.statistics.counts().get("refused", 0) == 6)
        gate.opened.set()
        await asyncio.gather(*calls, return_exceptions=True)
        assert gate.most <= 2, "the limit was exceeded"


async def check_place(folder: Path) -> None:
    """A method that goes on after its caller has gone keeps its place."""
    gate, cleaned = Gate(), asyncio.Event()
    service, ending = shop(max_concurrent=1), asyncio.Event()

    @service.method(max_concurrent=1)
    async def stubborn(body: bytes) -> bytes:
        try:
            await gate.passing()
        except asyncio.CancelledError:
            ending.set()
            await cleaned.wait()
        return body

    async with calling(service) as (caller, _):
        first = caller.start_call("shop.stubborn", b"x")
        await gate.until(lambda found: found.running == 1)
        first.cancel()
        await asyncio.wait_for(ending.wait(), PATIENCE_S)
        second = caller.start_call("shop.stubborn", b"x", timeout_s=PATIENCE_S)
        await until(lambda: second.done() or gate.begun == 2)
        begun = gate.begun
        cleaned.set()
        gate.opened.set()
        await asyncio.gather(second, return_exceptions=True)
        assert begun == 1, "a place was given away while its method ran"


async def check_rest_token(folder: Path) -> None:
    def authorize(token: str, service: str, method: str) -> str:
        if token != "good":
            raise Unauthorized("this token is not accepted here")
        return token

    async with calling(shop(), provider={"trust": Trust(authorize=authorize)}) as (_, provider):
        for token, expected in (("bad", 401), ("good", 200)):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/octet-stream"}
            status, _ = await ask(provider.url, "POST", "/services/shop/echo", b"x", headers)
            assert status == expected, "REST did not check the token"


async def check_rest_control(folder: Path) -> None:
    def authorize(token: str, service: str, method: str) -> str:
        if method == "*":
            raise Unauthorized("this token is not accepted here")
        return token

    async with calling(shop(), provider={"trust": Trust(authorize=authorize)}) as (_, provider):
        for method, path in (("GET", "/services"), ("GET", "/services/shop"), ("POST", "/services/shop/control/pause")):
            status, _ = await ask(provider.url, method, path, b"{}" if method == "POST" else None)
            assert status == 401, "control did not check the token"


async def check_end(folder: Path) -> None:
    provider = peer(provides=[shop()])
    await provider.__aenter__()
    async with by_hand(provider) as hand:
        closing = asyncio.create_task(provider.close())
        while (frame := await hand.frame()) is not None and frame[0] != Kind.PING:
            pass
        number = frame[2] if frame else 0
        hand.writer.write(encode_invoke(7, b"shop.echo", b"x") + encode_frame(Kind.PONG, number))
        answers = [(kind, flags, number) for kind, flags, number, _ in await hand.closed()]
        await closing
        assert answers == [(CallKind.RESULT, Flag.REFUSED | Flag.MSGPACK, 7)], "a call at the end has no answer"


def any_is_new() -> Any:
    return patched(Repeating, "admits", lambda real: lambda self, call: True)


def no_result_is_noted() -> Any:
    def make(real: Any) -> Any:
        return lambda self, call, body, flags: self.ended(call)

    return patched(Repeating, "answered", make)


def one_mark() -> Any:
    return patched(repeating_module, "_mark", lambda real: lambda argument: 0)


def one_for_all() -> Any:
    def make(real: Any) -> Any:
        def admits(self: Repeating, call: Any) -> bool:
            call.caller = ""
            return bool(real(self, call))

        return admits

    return patched(Repeating, "admits", make)


def not_written() -> Any:
    async def forget(self: Keeping, call: Any, fault: Any) -> None:
        fault.call_id = call.context.call_id

    return patched(Keeping, "of_caller", lambda real: forget)


def claimed_only() -> Any:
    async def claim(self: Keeping, call: Any, fault: Any) -> None:
        fault.call_id, fault.is_kept = call.context.call_id, True

    return patched(Keeping, "of_caller", lambda real: claim)


def another_id() -> Any:
    def make(real: Any) -> Any:
        return lambda call: msgspec.structs.replace(real(call), call_id="another")

    return patched(keeping_module, "context_of", make)


def one_more() -> Any:
    def make(real: Any) -> Any:
        def enter(self: Throttle[Any], room: Any, call: Any) -> Admission:
            room.max_concurrent += 1
            try:
                return real(self, room, call)
            finally:
                room.max_concurrent -= 1

        return enter

    return patched(Throttle, "enter", make)


def given_away() -> Any:
    def make(real: Any) -> Any:
        def cancel(self: Host, call: Any, outcome: Any) -> None:
            real(self, call, outcome)
            call.method.room.running -= 1

        return cancel

    return patched(Host, "cancel", make)


def no_token() -> Any:
    return patched(rest_module, "token_of", lambda real: lambda request: "good")


def no_last_ping() -> Any:
    def finish(self: ProviderConnection) -> None:
        self.say_goodbye("the instance is closing")
        self._is_leaving = True
        self._close_if_done()

    return patched(ProviderConnection, "finish", lambda real: finish)


def no_check() -> Any:
    async def pass_all(self: Any, request: Any, service: str) -> None:
        return None

    return patched(rest_module.RestApp, "check", lambda real: pass_all)


class Planted(NamedTuple):
    """What is checked, a plant, and the message of the check that fails then."""

    check: Check
    plant: Callable[[], Any]
    message: str


PLANTS = {
    "a repeat is a new call": Planted(check_repeats, any_is_new, "ran twice"),
    "a result is not remembered": Planted(check_repeats, no_result_is_noted, "ran twice"),
    "a repeat runs beside the first": Planted(check_running_repeats, any_is_new, "ran beside the first"),
    "an id is enough for a repeat": Planted(check_other_argument, one_mark, "result of another argument"),
    "a result is given to another caller": Planted(check_callers, one_for_all, "answered to another one"),
    "a lost call is not kept": Planted(check_kept, not_written, "was not kept"),
    "a lost call is only claimed to be kept": Planted(check_kept, claimed_only, "which is not so"),
    "a resend has another id": Planted(check_resent, another_id, "as a new call"),
    "one call more than the limit": Planted(check_limit, one_more, "limit was exceeded"),
    "a place is given away too soon": Planted(check_place, given_away, "place was given away"),
    "a token is not checked for REST": Planted(check_rest_token, no_token, "REST did not check"),
    "the end does not wait for calls that were sent": Planted(check_end, no_last_ping, "at the end has no answer"),
    "control is open to all": Planted(check_rest_control, no_check, "control did not check"),
}


@pytest.mark.rows("P10", "P12", "P15", "P16", "P19")
@pytest.mark.parametrize("check", dict.fromkeys(each.check for each in PLANTS.values()), ids=lambda each: each.__name__)
def test_a_check_of_services_holds(check: Check, tmp_path: Path):
    run(check(tmp_path / "lost"))


@pytest.mark.rows("P10", "P12", "P15", "P16", "P19")
@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_in_services_is_noticed(name: str, tmp_path: Path):
    check, plant, message = PLANTS[name]
    with plant(), pytest.raises(AssertionError, match=message):
        run(check(tmp_path / "lost"))
