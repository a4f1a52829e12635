"""The end of a turn: phases in their order, whatever is added when."""

import asyncio
from functools import partial

from tests.behaviour.world import in_loop
from wherry.broker.commit.turn import Phase, Turn


async def ended() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@in_loop
async def test_phases_come_in_their_order_and_calls_in_the_order_of_adding():
    turn = Turn()
    made: list[str] = []
    for phase in (Phase.WAKE, Phase.SUBMIT, Phase.WRITE, Phase.SUBMIT):
        turn.at_end(phase, partial(made.append, phase.name))
    assert made == []
    await ended()
    assert made == ["SUBMIT", "SUBMIT", "WRITE", "WAKE"]


@in_loop
async def test_a_later_phase_that_is_added_meanwhile_is_of_this_turn_and_an_earlier_one_of_the_next():
    turn = Turn()
    made: list[str] = []

    def submit() -> None:
        made.append("submit")
        turn.at_end(Phase.WRITE, write)

    def write() -> None:
        made.append("write")
        turn.at_end(Phase.SUBMIT, lambda: made.append("next turn"))
        asyncio.get_running_loop().call_soon(lambda: made.append("between"))

    turn.at_end(Phase.SUBMIT, submit)
    turn.at_end(Phase.WAKE, lambda: made.append("wake"))
    await ended()
    assert made == ["submit", "write", "wake", "between", "next turn"]


@in_loop
async def test_a_call_that_raises_is_reported_and_the_others_are_made():
    turn = Turn()
    made: list[str] = []
    reported: list[BaseException] = []

    def fail() -> None:
        raise IndexError

    def cancel() -> None:
        raise asyncio.CancelledError

    asyncio.get_running_loop().set_exception_handler(lambda _, report: reported.append(report["exception"]))
    turn.at_end(Phase.SUBMIT, fail)
    turn.at_end(Phase.SUBMIT, lambda: made.append("second"))
    turn.at_end(Phase.WRITE, lambda: made.append("write"))
    turn.at_end(Phase.WAKE, cancel)
    await ended()
    assert made == ["second", "write"]
    assert [type(fault) for fault in reported] == [IndexError, asyncio.CancelledError]
    turn.at_end(Phase.SUBMIT, lambda: made.append("next"))
    await ended()
    assert made[2:] == ["next"]
