"""Settles of a lease over a run of offsets, or over few, end as those of the same lease over columns do."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.decide import settling
from wherry.core.decide.settling import Ending
from wherry.core.state.lease import Lease, LeasedFew, LeasedRun
from wherry.core.state.state import State
from wherry.journal.bodies.store import BodyStore
from wherry.model import ops
from wherry.model.errors import StaleLease
from wherry.model.ops import from_ranges

FIRST, MOST = 100, 12

OFFSETS = st.one_of(
    st.none(),
    st.lists(st.integers(FIRST - 1, FIRST + MOST), min_size=1, max_size=4),
    st.tuples(st.integers(FIRST, FIRST + MOST), st.integers(1, 4)).map(lambda run: [*range(run[0], sum(run))]),
)
CALLS = st.lists(st.lists(OFFSETS, min_size=1, max_size=3), min_size=1, max_size=6)
"""Calls of one turn; each settles some offsets of the lease, several times."""


def lease_of(state: State, count: int, *, as_run: bool) -> Lease:
    sizes = [10 + each for each in range(count)]
    offset = np.arange(FIRST, FIRST + count, dtype=np.int64)
    messages = LeasedRun(FIRST, FIRST + count, sizes) if as_run else (offset, offset, np.array(sizes, np.int64))
    return state.leases.grant(1, "c", 0, messages, 0)


def scattered(state: State, order: list[int], *, as_few: bool) -> Lease:
    """Return a lease over messages in the order of their ranks, which is no order of offsets."""
    ranks, sizes = [7 * each for each in range(len(order))], [10 + each for each in order]
    columns = (np.array(order, np.int64), np.array(ranks, np.int64), np.array(sizes, np.int64))
    return state.leases.grant(1, "c", 0, LeasedFew(order, ranks, sizes) if as_few else columns, 0)


def settled(ending: Ending, lease: Lease, call: list[list[int] | None]) -> list[int] | str:
    """Return the offsets that a call settles, or why it is refused, as the broker does."""
    mark = ending.mark()
    try:
        steps = [
            op
            for offsets in call
            for op in settling.ack(
                ending, lease, settling.rows_of(lease, None if offsets is None else np.array(offsets, np.int64))
            )
        ]
    except StaleLease as fault:
        ending.undo(mark)
        return str(fault)
    (op,) = settling.joined_acks(steps)
    assert isinstance(op, ops.Settle)
    return from_ranges(op.ranges).tolist()


def left(state: State, lease: Lease) -> tuple[Any, ...]:
    held = state.leases.get(lease.token) is lease
    return held, *(column.tolist() if held else [] for column in (lease.offset, lease.rank, lease.size)), lease.bytes


@given(st.integers(1, MOST), st.lists(CALLS, min_size=1, max_size=4))
def test_a_run_is_settled_as_its_columns_are(count, turns):
    states = State(BodyStore(None)), State(BodyStore(None))
    leases = [lease_of(state, count, as_run=as_run) for state, as_run in zip(states, (True, False), strict=True)]
    settle_both(states, leases, turns)


@given(st.sets(st.integers(FIRST, FIRST + MOST), min_size=1), st.randoms(), st.lists(CALLS, min_size=1, max_size=4))
def test_a_few_messages_are_settled_as_their_columns_are(offsets, chance, turns):
    states = State(BodyStore(None)), State(BodyStore(None))
    order = sorted(offsets)
    chance.shuffle(order)
    leases = [scattered(state, order, as_few=as_few) for state, as_few in zip(states, (True, False), strict=True)]
    assert (leases[0].bytes, len(leases[0])) == (leases[1].bytes, len(leases[1]))
    settle_both(states, leases, turns)


def settle_both(states: tuple[State, State], leases: list[Lease], turns: list[list[list[list[int] | None]]]) -> None:
    """Settle the same of two leases, turn by turn."""
    for calls in turns:
        if states[0].leases.get(leases[0].token) is None:
            break
        endings = Ending(), Ending()
        for call in calls:
            answers = [settled(ending, lease, call) for ending, lease in zip(endings, leases, strict=True)]
            assert answers[0] == answers[1]
        for ending, state in zip(endings, states, strict=True):
            ending.carry_out(state)
        held = [left(state, lease) for state, lease in zip(states, leases, strict=True)]
        assert held[0][0] == held[1][0]
        if held[0][0]:
            assert held[0] == held[1]


def test_acks_in_the_order_of_delivery_leave_a_run():
    state = State(BodyStore(None))
    lease = lease_of(state, 5, as_run=True)
    for offset in range(FIRST, FIRST + 4):
        ending = Ending()
        settled(ending, lease, [[offset]])
        ending.carry_out(state)
        assert lease.run == LeasedRun(offset + 1, FIRST + 5, [10 + each for each in range(offset + 1 - FIRST, 5)])
