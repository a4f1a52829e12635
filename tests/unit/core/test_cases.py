"""Small cases of decisions, each of which failed once or is easy to get wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.desk import Desk
from wherry.core.decide import (
    amending,
    leasing,
    staging,
    upkeep,
)
from wherry.core.decide.volatile import separate
from wherry.core.inspect import by_id
from wherry.model import ops
from wherry.model.catalog.subscription import Retry
from wherry.model.errors import DuplicateId, InvalidInput, LimitReached, NotWaiting, StageLost
from wherry.model.ops import Entry
from wherry.model.schema import Message, compact

MANY = Retry(attempts=9, first_ms=10, jitter=0.0)


# Subscriptions that come late.


@pytest.mark.parametrize("order", ["fifo", "priority", "timeline"])
def test_a_message_cancelled_before_a_late_subscription_has_it_in_order(order):
    desk = Desk(order=order)
    desk.publish(*(Message(payload=b"", due_ms=desk.ms - 1) for _ in range(5)))
    late = desk.subscribe()
    assert late.readers[0].backlog == (0, 5)
    # Looked at before any audit: an audit lists what waits, and that sweeps away what should not have been discarded.
    desk.shell.commit(amending.cancel(desk.shell.state, desk.topic, ["0-1", "0-4"], desk.now.wall_us))
    assert (desk.stats().lag, desk.stats().ready, desk.stats().scheduled) == (3, 0, 0)
    while late.readers[0].backlog is not None:
        desk.shell.backfill(late, 0, desk.now)
        assert desk.stats().scheduled == 0
    desk.commit([])
    assert desk.offsets() == [0, 2, 3]


@pytest.mark.parametrize("how", ["expired", "failed", "cancelled in another"])
def test_what_is_only_a_dead_letter_is_nothing_to_a_new_subscription(how):
    desk = Desk(expired="dead-letter")
    desk.subscribe("a")
    desk.subscribe("b")
    desk.publish(Message(payload=b"", expires_ms=desk.ms + 10))
    if how == "expired":
        desk.upkeep(20)
    else:
        desk.nack(desk.pull("a")[0])
        if how == "failed":
            desk.nack(desk.pull("b")[0])
        else:
            desk.cancel("0-0")
    assert desk.topic.messages == 0
    desk.subscribe("late")
    desk.upkeep(100)
    assert (desk.topic.messages, desk.stats("late").lag, desk.stats("a").dead) == (0, 0, 1)


def test_an_expired_message_waits_until_a_late_subscription_has_it():
    desk = Desk(order="priority", expired="dead-letter")
    desk.publish(Message(payload=b"", expires_ms=desk.ms + 10))
    late = desk.subscribe()
    desk.upkeep(20)
    assert desk.topic.messages == 1
    desk.shell.backfill(late, 0, desk.now)
    desk.upkeep()
    assert (desk.topic.messages, desk.stats().dead) == (0, 1)


def test_bytes_behind_are_counted_over_all_partitions():
    desk = Desk(partitions=2)
    subscription = desk.subscribe(buffer_bytes=100)
    desk.publish(b"x" * 40, partition=0)
    desk.publish(b"x" * 40, partition=1)
    desk.ack(desk.pull(n=1)[0])
    assert subscription.backlog_bytes == 40
    desk.ack(desk.pull()[0])
    assert subscription.backlog_bytes == 0


def test_dead_letters_are_not_what_a_subscription_is_behind():
    desk = Desk()
    desk.subscribe(buffer_messages=2)
    desk.publish(b"a", b"b")
    desk.nack(desk.pull()[0])
    desk.publish(b"c", b"d")
    assert list(upkeep.overrun(desk.shell.state, desk.topic)) == []
    desk.publish(b"e")
    assert [each.config.name for each in upkeep.overrun(desk.shell.state, desk.topic)] == ["s"]


# Ephemeral subscriptions.


def test_an_ephemeral_subscription_releases_even_if_the_dead_letters_are_full():
    desk = Desk(dead_messages_max=0)
    desk.subscribe("e", durable=False)
    desk.publish(b"a", b"b")
    desk.nack(desk.pull("e", n=1)[0])
    desk.dead_letter(desk.pull("e")[0])
    assert (desk.stats("e").lag, desk.topic.dead) == (0, 0)


def test_an_amend_with_only_ephemeral_readers_stays_for_the_next_subscription():
    desk = Desk()
    desk.subscribe("e", durable=False)
    desk.publish(b"x")
    desk.amend("0-0", payload=b"y")
    assert desk.topic.messages == 1
    desk.subscribe()
    assert desk.offsets() == [1]


def test_what_an_ephemeral_subscription_holds_can_expire_under_it():
    desk = Desk()
    desk.subscribe("e", durable=False, retry=MANY)
    desk.publish(Message(payload=b"", expires_ms=desk.ms + 10), b"other")
    lease = desk.pull("e")[0]
    desk.upkeep(20)
    assert lease.offset.tolist() == [1]
    desk.nack(lease)
    desk.upkeep(20)
    assert desk.offsets("e") == [1]


# Ids and amends.


def test_an_amend_by_its_default_id_keeps_the_own_id_of_a_message():
    desk = Desk()
    desk.publish(Message(payload=b"", id="mine"), b"other")
    assert desk.amend("0-0", payload=b"1").id == "mine"
    assert desk.amend("0-1", payload=b"1").id == "0-1"
    assert desk.amend("0-3", payload=b"2").id == "0-1"
    assert desk.amend("0-1", payload=b"3").version == 4
    assert by_id.find(desk.shell.state, desk.topic, "mine") == (0, 2)


def test_a_message_that_is_dead_for_another_is_not_amended_nor_brought_back():
    desk = Desk()
    desk.subscribe("a")
    desk.subscribe("b")
    desk.publish(b"x")
    desk.nack(desk.pull("a")[0])
    with pytest.raises(NotWaiting):
        desk.amend("0-0", payload=b"y")
    desk.cancel("0-0")
    assert (desk.stats("a").dead, desk.stats("b").lag, desk.topic.dead) == (1, 0, 1)


# Settling.


def test_a_long_error_is_cut_and_a_broken_one_refused_before_anything_moves():
    desk = Desk()
    desk.subscribe(retry=MANY)
    desk.publish(b"x")
    lease = desk.pull()[0]
    with pytest.raises(InvalidInput, match=r"error: got .*valid Unicode"):
        desk.nack(lease, "\ud800")
    assert desk.shell.state.leases.get(lease.token) is lease
    desk.nack(lease, "x" * 1_000_000)
    assert len(desk.shell.journal[-1]) < 2_000
    assert max(len(text) for text in desk.shell.state.texts.texts) == 1_024


def test_a_settle_of_several_leases_is_all_or_nothing():
    desk = Desk(partitions=2, dead_messages_max=1)
    desk.subscribe()
    desk.publish(b"a", partition=0)
    desk.publish(b"b", partition=1)
    leases = desk.pull()
    assert len(leases) == 2
    with pytest.raises(LimitReached):
        desk.dead_letter(*leases)
    assert [desk.shell.state.leases.get(lease.token) for lease in leases] == leases
    assert (desk.stats().leased, desk.stats().dead) == (2, 0)
    desk.dead_letter(leases[0])
    desk.ack(leases[1])
    assert (desk.stats().leased, desk.stats().dead) == (0, 1)


def test_a_retry_for_ever_with_no_delay_never_gets_lost():
    desk = Desk()
    desk.subscribe(retry=Retry(attempts=None, first_ms=0, cap_ms=0))
    desk.publish(b"x")
    reader = desk.subscription().readers[0]
    reader.attempts_table.put(np.array([0]), attempts=5_000, first_ms=0, last_ms=0, until_ms=0, rank=0, hash=0, error=0)
    desk.nack(desk.pull()[0])
    assert desk.offsets() == [0]


def test_a_large_message_is_handed_over_only_where_it_fits_the_buffer():
    desk = Desk()
    subscription = desk.subscribe()
    leasing.leave(desk.shell.state, subscription, "c")
    consumer = leasing.join(subscription, "c", None, 100)
    desk.publish(b"x" * 40, b"x" * 90, b"x" * 500)
    first = desk.pull(size=50)[0]
    assert first.offset.tolist() == [0]
    assert desk.pull(size=50) == [], "90 bytes more would be above the buffer"
    desk.ack(first)
    for expected in (1, 2):
        (lease,) = desk.pull(size=50)
        assert lease.offset.tolist() == [expected], "alone it is handed over, however large"
        desk.ack(lease)
    assert (consumer.unsettled_messages, consumer.unsettled_bytes) == (0, 0)


@pytest.mark.parametrize("keep_ms", [None, 1_000])
def test_discarded_dead_letters_are_gone_and_counted_no_more(keep_ms):
    desk = Desk(keep="settled" if keep_ms is None else "age", keep_ms=keep_ms, dead_messages_max=2)
    desk.subscribe()
    desk.publish(b"a", b"b")
    desk.nack(desk.pull()[0])
    assert (desk.topic.dead, desk.stats().dead) == (2, 2)
    assert desk.discard(limit=1) == 1
    assert (desk.topic.dead, desk.stats().dead) == (1, 1)
    assert desk.discard() == 1
    assert (desk.topic.dead, desk.discard()) == (0, 0)
    desk.publish(b"c", b"d")
    desk.nack(desk.pull()[0])
    assert desk.stats().dead == 2, "there is room for them again"


# Transactions.


def stage(desk, key, *messages):
    batch = compact(list(messages))
    desk.commit(staging.stage_publish(desk.shell.state, key, desk.topic, batch, None, desk.now.wall_us))


def stage_settle(desk, key, lease, *offsets):
    entries = staging.stage_settle(desk.shell.state, key, lease.token, np.array(offsets), desk.now.wall_us)
    if entries:
        desk.commit(entries)
        staging.note_settle(desk.shell.state, key, lease.token, np.array(offsets))


def commit(desk, key):
    entries, done = staging.commit(desk.shell.state, key, desk.now.wall_us)
    desk.shell.commit(entries)
    done.end_leases(desk.shell.state)
    desk.commit([])
    return entries, done.placed.tolist()


def test_one_lease_may_be_staged_in_parts_and_twice():
    desk = Desk()
    desk.subscribe()
    desk.publish(b"0", b"1", b"2", b"3")
    lease = desk.pull()[0]
    stage_settle(desk, "k", lease, 0)
    stage_settle(desk, "k", lease, 2)
    stage_settle(desk, "k", lease, 0, 2)
    commit(desk, "k")
    assert lease.offset.tolist() == [1, 3]
    assert desk.stats().lag == 2


def test_a_commit_is_one_lasting_entry_whatever_it_settles():
    desk = Desk()
    desk.subscribe("s")
    desk.subscribe("e", durable=False)
    desk.publish(b"0")
    stage(desk, "k", b"new")
    stage_settle(desk, "k", desk.pull("s")[0], 0)
    stage_settle(desk, "k", desk.pull("e")[0], 0)
    entries, _ = commit(desk, "k")
    assert [entry.volatile for entry in entries] == [False, True]
    assert [type(op) for op in entries[0].ops] == [ops.Settle, ops.Commit]
    assert (desk.stats("s").lag, desk.stats("e").lag) == (1, 1)


def test_a_decision_to_commit_changes_nothing():
    desk = Desk()
    desk.subscribe()
    desk.publish(b"0")
    lease = desk.pull()[0]
    stage_settle(desk, "k", lease, 0)
    for _ in range(2):
        staging.commit(desk.shell.state, "k", desk.now.wall_us)
        assert desk.shell.state.leases.get(lease.token) is lease


def test_an_id_may_not_be_staged_twice_under_one_key():
    desk = Desk()
    stage(desk, "k", Message(payload=b"1", id="x"))
    stage(desk, "k", Message(payload=b"2", id="x"))
    with pytest.raises(DuplicateId):
        commit(desk, "k")
    with pytest.raises(DuplicateId):
        stage(desk, "l", Message(payload=b"", id="y"), Message(payload=b"", id="y"))
    with pytest.raises(InvalidInput, match=r"messages\[0\].id: got '1-2'"):
        stage(desk, "l", Message(payload=b"", id="1-2"))


def test_a_commit_answers_the_same_again_also_when_a_topic_is_gone():
    desk = Desk()
    state = desk.shell.state
    stage(desk, "k", b"1")
    desk.commit([Entry(desk.now.wall_us, [ops.DeleteTopic(1)])])
    entries, done = staging.commit(state, "k", desk.now.wall_us)
    desk.shell.commit(entries)
    assert done.placed.tolist() == []
    assert staging.commit(state, "k", desk.now.wall_us)[1].placed.tolist() == []


def test_a_stage_whose_settles_a_restart_took_stays_lost():
    desk = Desk()
    desk.subscribe()
    desk.publish(b"0")
    stage_settle(desk, "k", desk.pull()[0], 0)
    desk.recover("checkpoint")
    with pytest.raises(StageLost):
        stage_settle(desk, "k", desk.pull()[0], 0)
    with pytest.raises(StageLost):
        commit(desk, "k")


# Bounds.


def test_what_fits_is_counted_exactly_and_the_rest_is_dead():
    desk = Desk(bytes_max=110, overflow="dead-letter")
    answer = desk.publish(b"x" * 100, b"x" * 100, b"x" * 10, b"x" * 10)
    assert (answer.dead, desk.topic.bytes, desk.topic.dead) == (3, 100, 3)


def test_as_few_of_the_oldest_are_dropped_as_make_room():
    desk = Desk(bytes_max=100, overflow="drop-oldest")
    desk.subscribe()
    for size in (5, 5, 80, 10):
        desk.publish(b"x" * size)
    desk.publish(b"x" * 20)
    assert desk.offsets() == [3, 4]
    desk.publish(b"x" * 70)
    assert desk.offsets() == [3, 4, 5]
    with pytest.raises(LimitReached, match="bytes of the topic"):
        desk.publish(b"x" * 101)


def test_an_amend_does_not_drop_the_message_it_changes_nor_pass_the_bound():
    for overflow in ("refuse", "drop-oldest", "dead-letter"):
        desk = Desk(bytes_max=100, overflow=overflow)
        desk.publish(b"x" * 60)
        with pytest.raises(LimitReached, match="bytes of the topic"):
            desk.amend("0-0", payload=b"x" * 110)
        assert (desk.topic.messages, desk.topic.bytes) == (1, 60)


def test_a_repeat_is_answered_with_the_partition_of_the_first_call():
    desk = Desk(partitions=3)
    rows = [Message(payload=b"", key=key) for key in (None, "a", "b", None, "c")]
    first = desk.publish(*rows, producer="p", sequence=0)
    desk.publish(b"other")
    again = desk.publish(*rows, producer="p", sequence=0)
    assert again.repeated
    assert (again.partition.tolist(), again.offset.tolist()) == (first.partition.tolist(), first.offset.tolist())


def test_a_redrive_does_not_pass_the_bound_of_bytes_by_rounding():
    desk = Desk(bytes_max=10)
    desk.subscribe()
    desk.publish(b"xxx", b"xx", b"xx")
    desk.nack(desk.pull(n=1)[0])
    room = 10 - desk.topic.bytes
    desk.publish(b"x" * (room - 2))
    with pytest.raises(LimitReached):
        desk.redrive()
    assert desk.topic.bytes <= 10


def test_separate_leaves_nothing_behind():
    desk = Desk()
    assert separate(desk.shell.state, 0, []) == []
