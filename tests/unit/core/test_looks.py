"""What a pull, a tick of time and a drop look at: only where there is something, in the right order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.unit.core.desk import Desk
from wherry import Message
from wherry.core.decide import (
    leasing,
    room,
    settling,
    upkeep,
)
from wherry.core.index.runs import SortedRuns
from wherry.core.index.times import Times
from wherry.core.inspect.audit import audit
from wherry.core.state.lease import Leases
from wherry.core.state.reader import Reader
from wherry.model.catalog.subscription import Retry

MANY = 60


@contextmanager
def counted(owner: object, name: str) -> Iterator[mock.Mock]:
    """Counts the calls of a function, which does its work."""
    real = getattr(owner, name)
    with mock.patch.object(owner, name, autospec=True, side_effect=real) as calls:
        yield calls


def spread(desk: Desk, count: int, **fields: Any) -> None:
    """Publish one message to each of so many partitions."""
    for partition in range(count):
        desk.publish(Message(payload=b"x", **fields), partition=partition)


def pulled(desk: Desk, n: int = 100, size: int = 1 << 30) -> list[tuple[int, int]]:
    """Return ranks and partitions of the messages that a pull returns, by rank."""
    leases = desk.pull(n=n, size=size)
    return sorted((rank, lease.partition) for lease in leases for rank in lease.rank.tolist())


def test_a_ranked_pull_spends_its_bytes_by_rank_and_not_by_partition():
    desk = Desk(order="priority", partitions=3)
    desk.subscribe()
    for partition in range(3):
        for priority in range(partition, 30, 3):
            desk.publish(Message(payload=b"." * 100, priority=priority), partition=partition)
    assert pulled(desk, size=700) == [(rank, rank % 3) for rank in range(7)]
    assert pulled(desk, size=550) == [(rank, rank % 3) for rank in range(7, 12)]
    assert pulled(desk, size=1) == [(12, 0)]  # the first message is handed over however large it is
    assert pulled(desk, n=4) == [(rank, rank % 3) for rank in range(13, 17)]
    assert pulled(desk) == [(rank, rank % 3) for rank in range(17, 30)]


def test_a_ranked_pull_of_many_short_partitions_takes_the_smallest_ranks_of_all():
    random = np.random.default_rng(5)
    desk = Desk(order="priority", partitions=64)
    desk.subscribe()
    sent = []
    for partition in range(64):
        priorities = random.integers(0, 40, random.integers(1, 6)).tolist()
        desk.publish(*(Message(payload=b"x", priority=each) for each in priorities), partition=partition)
        sent += priorities
    seen: list[int] = []
    while got := pulled(desk, n=7):
        seen += [rank for rank, _ in got]
    assert seen == sorted(sent)


@pytest.mark.parametrize("order", ["fifo", "priority", "timeline"])
@pytest.mark.parametrize(
    "assignment", ["balanced", *(pytest.param(each, marks=pytest.mark.more) for each in ("shared", "ordered"))]
)
def test_a_pull_looks_only_where_something_may_be_ready(order: str, assignment: str):
    desk = Desk(order=order, partitions=MANY)
    desk.subscribe(assignment=assignment)
    spread(desk, MANY)
    for lease in desk.pull(n=2 * MANY):
        desk.ack(lease)
    assert desk.pull() == []
    desk.publish(b"x", partition=7)
    with counted(Reader, "wake") as looks:
        assert [lease.partition for lease in desk.pull()] == [7]
        assert desk.pull() == []
        assert looks.call_count <= 4


def test_what_comes_back_is_found_by_the_next_pull():
    desk = Desk(partitions=4)
    desk.subscribe(retry=Retry(attempts=5, jitter=0.0))
    spread(desk, 4)
    held = {lease.partition: lease for lease in desk.pull()}
    assert desk.pull() == []
    desk.nack(held[0], delay_ms=0)
    desk.nack(held[1], delay_ms=500)
    settling.release(desk.shell.state, held[2], None)
    audit(desk.shell.state)
    assert sorted(lease.partition for lease in desk.pull()) == [0, 2]
    desk.upkeep(500)
    assert [lease.partition for lease in desk.pull()] == [1]
    leasing.leave(desk.shell.state, desk.subscription(), "c")
    leasing.join(desk.subscription(), "c", None, None)
    audit(desk.shell.state)
    assert sorted(lease.partition for lease in desk.pull()) == [0, 1, 2, 3]


def test_a_helper_whose_fullest_partition_is_held_up_by_a_key_takes_from_another():
    desk = Desk(partitions=2)
    desk.subscribe(key_order=True)
    leasing.join(desk.subscription(), "d", None, None)
    own = desk.subscription().assignment.of("c")
    other = next(number for number in (0, 1) if number not in own)
    desk.publish(*(Message(payload=b"x", key="k") for _ in range(5)), partition=other)
    helper = leasing.consumer_of(desk.subscription(), "d")
    assert len(leasing.lease(desk.shell.state, desk.subscription(), helper, 1, 1 << 20, desk.now)) == 1
    desk.publish(Message(payload=b"y", key="l"), partition=next(iter(own)))
    taken = leasing.lease(desk.shell.state, desk.subscription(), helper, 5, 1 << 20, desk.now)
    assert [lease.partition for lease in taken] == list(own)


def test_time_looks_into_no_partition_where_nothing_has_expired():
    desk = Desk(partitions=MANY)
    desk.subscribe()
    spread(desk, MANY, expires_ms=desk.ms + 60_000)
    desk.upkeep()
    with counted(SortedRuns, "first_rank") as looks:
        assert upkeep.expires_in_ms(desk.shell.state, desk.now) == 60_000
        assert list(upkeep.due(desk.shell.state, desk.now, np.zeros)) == []
        assert looks.call_count == 0
    desk.upkeep(60_000)
    assert desk.topic.messages == 0
    assert upkeep.expires_in_ms(desk.shell.state, desk.now) is None


@pytest.mark.parametrize("end", ["release", "nack", "ack", "leave", "expire"])
def test_a_message_that_expired_on_lease_is_removed_when_it_is_released(end: str):
    desk = Desk()
    desk.subscribe(retry=Retry(attempts=5, jitter=0.0), lease_ms=1_000)
    desk.publish(Message(payload=b"x", expires_ms=desk.ms + 10))
    lease = desk.pull()[0]
    desk.upkeep(10)
    assert desk.topic.messages == 1
    with counted(SortedRuns, "first_rank") as looks:
        assert list(upkeep.due(desk.shell.state, desk.now, np.zeros)) == []
        assert looks.call_count == 0
    if end == "release":
        settling.release(desk.shell.state, lease, None)
    elif end == "nack":
        desk.nack(lease)
    elif end == "ack":
        desk.ack(lease)
    elif end == "leave":
        leasing.leave(desk.shell.state, desk.subscription(), "c")
    desk.upkeep(1_000 if end == "expire" else 0)
    assert desk.topic.messages == 0
    assert len(desk.topic.partitions[0].overdue) == 0


def test_expired_messages_that_found_no_space_in_the_journal_are_removed_when_there_is_some():
    desk = Desk(partitions=3)
    desk.subscribe()
    spread(desk, 3, expires_ms=desk.ms + 10)
    desk.ms += 10
    assert list(upkeep.due(desk.shell.state, desk.now, np.zeros, upkeep.Room(expiry=lambda _: False))) == []
    assert upkeep.expires_in_ms(desk.shell.state, desk.now) == 0
    next(upkeep.due(desk.shell.state, desk.now, np.zeros))  # and the entry could not be written
    desk.upkeep()
    assert desk.topic.messages == 0


def test_the_oldest_are_trimmed_first_whatever_partition_they_are_in_and_no_others_are_looked_at():
    desk = Desk(partitions=MANY, messages_max=MANY, overflow="drop-oldest")
    desk.subscribe()
    order = np.random.default_rng(1).permutation(MANY).tolist()
    for partition in order:
        desk.ms += 1
        desk.publish(b"x", partition=partition)
    with counted(room, "_push_next") as looks:
        for number in range(20):
            desk.ms += 1
            desk.publish(b"y", partition=order[-1])
            left = [each for each in order if desk.topic.partitions[each].directory.next_waiting(0)]
            assert left == order[number + 1 :]
        assert looks.call_count <= 100
    for by in ("replay", "checkpoint"):
        desk.recover(by)
        desk.publish(b"y", partition=order[-1])
    assert [each for each in order if desk.topic.partitions[each].directory.next_waiting(0)] == order[22:]


def test_the_first_time_of_each_key_is_kept_and_stale_rows_are_swept():
    times: Times[int] = Times()
    for number in range(1_000):
        times.note(1, 10_000 - number)
        times.note(2, 20_000 + number)
    assert times.first() == (9_001, 1)
    assert len(times._heap) < 200
    times.forget(1)
    assert times.due(19_999) == []
    assert times.due(20_000) == [2]
    assert times.first() is None


def test_deadlines_of_leases_that_are_renewed_do_not_pile_up():
    """Let one long lease keep the deadlines behind it in the heap: those of no lease must not stay there."""
    leases = Leases(1)
    nothing = (np.empty(0, np.int64),) * 3
    first, other = (leases.grant(1, "c", 0, nothing, 1_000) for _ in range(2))
    for step in range(10_000):
        leases.renew(other, 2_000 + step // 4)
        assert len(leases._deadlines) < 100
    assert leases.expired(999) is None
    assert leases.expired(1_000) is first
    leases.end(first)
    assert leases.next_deadline_ms() == other.deadline_ms == 2_000 + 9_999 // 4
    assert leases.expired(4_499) is other


class Unwalked(dict[int, Any]):
    """A dictionary that can be asked, not gone through."""

    def __iter__(self) -> Any:
        raise AssertionError("every lease of the shard")

    keys = values = items = __iter__


def test_what_a_consumer_or_a_subscription_holds_is_found_without_a_look_at_the_rest():
    leases = Leases(1)
    nothing = (np.empty(0, np.int64),) * 3
    granted = [leases.grant(n % 3, f"c{n % 10}", n, nothing, 5) for n in range(300)]
    leases._by_token = Unwalked(leases._by_token)
    for lease in granted[::2]:
        leases.end(lease)
        leases.end(lease)
    left = granted[1::2]
    for subscription in range(4):
        of = [lease for lease in left if lease.subscription == subscription]
        assert leases.of_subscription(subscription) == of
        for consumer in ("c0", "c1", "c9", "nobody"):
            assert leases.of_consumer(subscription, consumer) == [lease for lease in of if lease.consumer == consumer]
    leases._by_token = {lease.token: lease for lease in left}
    for lease in left:
        leases.end(lease)
    assert (len(leases), leases._held) == (0, {})
