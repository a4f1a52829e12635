"""What replay and a checkpoint must bring back, case by case; the whole is in `tests/property/test_core.py`."""

from __future__ import annotations

import pytest

from tests.unit.core.desk import Desk
from wherry.model import ops
from wherry.model.catalog.subscription import Retry
from wherry.model.ops import Entry
from wherry.model.schema import Message

both = pytest.mark.parametrize("by", ["replay", "checkpoint"])


@both
def test_a_message_that_expired_on_lease_is_removed_after_a_restart(by):
    desk = Desk()
    desk.subscribe()
    desk.publish(Message(payload=b"", expires_ms=desk.ms + 10))
    desk.pull()
    desk.upkeep(20)
    assert desk.stats().leased == 1, "the consumer that holds it may settle it"
    desk.recover(by)
    desk.upkeep()
    assert (desk.stats().lag, desk.topic.messages) == (0, 0)


@both
def test_errors_of_ephemeral_subscriptions_do_not_change_the_digest(by):
    desk = Desk()
    desk.subscribe("e", durable=False)
    desk.subscribe("s")
    desk.publish(b"x")
    desk.nack(desk.pull("e")[0], "only in memory")
    desk.nack(desk.pull("s")[0], "for ever")
    desk.recover(by)
    assert desk.stats().dead == 1
    assert desk.shell.state.texts.texts[2:].count("for ever") == 1


@both
def test_a_cut_off_ephemeral_subscription_does_not_change_the_digest(by):
    desk = Desk()
    gone = desk.subscribe("e", durable=False)
    desk.commit([Entry(desk.now.wall_us, [ops.DeleteSubscription(gone.number, "too slow")], volatile=True)])
    assert desk.topic.counters["cut_off"] == 1
    desk.recover(by)


@both
def test_a_redriven_message_keeps_the_place_that_an_amend_gave_it(by):
    desk = Desk()
    desk.subscribe()
    desk.publish(b"0", b"1")
    desk.amend("0-0", payload=b"better")
    assert desk.offsets() == [2, 1]
    desk.nack(desk.pull(n=1)[0])
    assert desk.redrive() == 1
    assert desk.offsets() == [2, 1]
    desk.recover(by)
    assert desk.offsets() == [2, 1]


@both
@pytest.mark.parametrize("order", ["priority", "timeline"])
def test_what_expired_while_it_waited_is_redriven_to_its_place(by, order):
    desk = Desk(order=order, expired="dead-letter")
    desk.subscribe()
    desk.publish(Message(payload=b"", priority=5, expires_ms=desk.ms + 10))
    desk.upkeep(20)
    desk.publish(Message(payload=b"", priority=4), Message(payload=b"", priority=6))
    assert desk.redrive() == 1
    expected = [1, 0, 2] if order == "priority" else [0, 1, 2]
    assert desk.offsets() == expected
    desk.recover(by)
    assert desk.offsets() == expected
    desk.upkeep(1_000)
    assert desk.offsets() == expected, "it does not expire a second time"


@both
def test_transient_messages_are_gone_with_all_that_they_counted(by):
    desk = Desk(order="priority", partitions=2)
    desk.subscribe()
    desk.publish(b"stays", partition=0)
    desk.publish(b"dropped", b"dropped too", partition=0, persistent=False)
    desk.publish(b"dropped", partition=1, persistent=False)
    desk.nack(desk.pull(n=2)[0])
    assert (desk.topic.messages, desk.topic.dead) == (2, 2)
    desk.shell = desk.shell.replayed() if by == "replay" else desk.shell.reloaded()
    desk.shell.opened(desk.now)
    desk.commit([])
    assert desk.topic.messages + desk.topic.dead == 1
    again = desk.publish(b"new", partition=0)
    assert again.offset[0] > 1 << 20, "offsets that were given once are not given again"


def test_an_amended_transient_message_is_transient():
    desk = Desk()
    desk.subscribe()
    desk.publish(b"x", persistent=False)
    lasting = len(desk.shell.journal)
    desk.amend("0-0", payload=b"y")
    desk.ack(desk.pull()[0])
    assert len(desk.shell.journal) == lasting
    assert desk.shell.replayed().state.topic("t").messages == 0


def test_settles_of_lasting_and_transient_messages_part_ways():
    desk = Desk()
    desk.subscribe()
    desk.publish(b"a")
    desk.publish(b"b", persistent=False)
    desk.publish(b"c")
    lease = desk.pull()[0]
    assert lease.offset.tolist() == [0, 1, 2]
    desk.ack(lease)
    assert desk.topic.messages == 0
    assert desk.shell.replayed().state.topic("t").messages == 0


def test_a_deleted_topic_leaves_nothing_to_expire():
    desk = Desk()
    desk.publish(Message(payload=b"", expires_ms=desk.ms + 10))
    desk.commit([Entry(desk.now.wall_us, [ops.DeleteTopic(1)])])
    assert len(desk.shell.state.expiry_times) == 0


def test_different_states_have_different_digests():
    desk = Desk()
    seen = [desk.shell.digest()]
    for step in (
        lambda: desk.subscribe(retry=Retry(attempts=5, first_ms=10, jitter=0.0)),
        lambda: desk.publish(b"x", b"y"),
        lambda: desk.nack(desk.pull(n=1)[0]),
        lambda: desk.nack(desk.pull(n=1)[0], "other"),
        lambda: desk.upkeep(50),
        lambda: desk.ack(desk.pull(n=1)[0]),
        lambda: desk.cancel("0-1"),
    ):
        step()
        seen.append(desk.shell.digest())
    assert len(set(seen)) == len(seen) - 1, "only the passing of time leaves no trace"
