"""The fate of messages: what the state keeps of removed messages, for how long, and which outcomes producers get."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.unit.core.desk import Desk
from wherry.core.decide import upkeep
from wherry.core.inspect.by_id import fate_of
from wherry.core.state import fates, outbox, partition, snapshot
from wherry.core.state.outbox import Outbox
from wherry.core.state.state import State
from wherry.journal.bodies.store import BodyStore
from wherry.model import ops
from wherry.model.calls.fate import (
    FATES,
    SETTLED,
    Fate,
    Outcome,
)
from wherry.model.catalog.webhook import URL_CHARS_MAX
from wherry.model.errors import InvalidInput, LimitReached, NotFound
from wherry.model.ops import Entry
from wherry.model.schema import Message

URL = "https://example.com/outcomes"


def fate(desk: Desk, message_id: str) -> Fate:
    return fate_of(desk.shell.state, desk.topic, message_id, desk.ms)


def words(desk: Desk) -> list[str]:
    """Return the fate of every message of partition 0."""
    every = np.arange(desk.topic.next_offset(0), dtype=np.int64)
    return [FATES[code] for code in fates.fates(desk.shell.state, desk.topic, 0, every, desk.ms).tolist()]


def unreported(desk: Desk, **wanted: Any) -> list[tuple[int, str]]:
    every: dict[str, Any] = {"limit": 100, "hidden": np.empty(0, np.int64), "without": (), **wanted}
    return [(each.offset, each.fate) for each in desk.topic.outbox.unreported("t", **every)]


# The fate of one message.


@pytest.mark.rows("K5")
def test_a_message_has_one_fate_after_the_other():
    desk = Desk()
    desk.publish(b"a", Message(payload=b"b", due_ms=desk.ms + 10))
    assert words(desk) == ["waiting", "scheduled"], "before there is a subscription"
    desk.subscribe()
    while desk.subscription().readers[0].backlog is not None:
        desk.shell.backfill(desk.subscription(), 0, desk.now)
    assert words(desk) == ["waiting", "scheduled"]
    [lease] = desk.pull()
    assert words(desk) == ["delivered", "scheduled"]
    desk.ack(lease)
    desk.ms += 10
    assert words(desk) == ["settled", "waiting"]
    desk.dead_letter(*desk.pull())
    assert words(desk) == ["settled", "dead"]
    assert fate(desk, "0-1") == Fate("dead", {"s": "dead"})
    desk.redrive()
    assert words(desk) == ["settled", "waiting"]


def test_a_message_is_not_settled_before_all_subscriptions_are_done():
    desk = Desk()
    desk.subscribe("a")
    desk.subscribe("b")
    desk.publish(b"")
    desk.ack(desk.pull("a")[0])
    assert fate(desk, "0-0") == Fate("delivered", {"a": "settled", "b": "waiting"})
    desk.dead_letter(*desk.pull("b"))
    assert fate(desk, "0-0") == Fate("dead", {"a": "settled", "b": "dead"})
    desk.discard()
    assert fate(desk, "0-0") == Fate("dead", {}), "thrown away, and not forgotten"


def test_what_is_scheduled_in_a_timeline_is_known_from_the_bodies():
    desk = Desk(order="timeline")
    desk.subscribe()
    desk.publish(Message(payload=b"", due_ms=desk.ms + 5), b"")
    assert words(desk) == ["scheduled", "waiting"]
    assert fate(desk, "0-0") == Fate("scheduled", {"s": "scheduled"})


@pytest.mark.parametrize("by", ["replay", "checkpoint"])
def test_the_fate_of_a_removed_message_is_true(by):
    desk = Desk(messages_max=3, overflow="drop-oldest")
    desk.subscribe()
    desk.publish(b"drop", b"cancel", Message(payload=b"expire", expires_ms=desk.ms + 5))
    desk.cancel("0-1")
    desk.publish(b"ack", b"discard")  # one too many: the oldest is dropped
    desk.upkeep(5)
    leases = desk.pull(n=1)
    desk.ack(leases[0])
    desk.dead_letter(*desk.pull())
    desk.discard()
    desk.recover(by)
    assert words(desk) == ["dropped", "cancelled", "expired", "settled", "dead"]
    assert [fate(desk, f"0-{offset}").subscriptions for offset in range(5)] == [{}, {}, {}, {"s": "settled"}, {}]


@pytest.mark.parametrize("by", ["replay", "checkpoint"])
def test_an_amended_message_is_asked_for_by_its_first_id_for_ever(by):
    desk = Desk()
    desk.subscribe()
    desk.publish(b"", b"")
    desk.amend("0-0", payload=b"again")
    desk.amend("0-0", payload=b"and again")
    assert fate(desk, "0-0") == Fate("waiting", {"s": "waiting"})
    for lease in desk.pull():
        desk.ack(lease)
    desk.recover(by)
    assert fate(desk, "0-0") == Fate("settled", {"s": "settled"})


def test_an_id_of_its_own_is_known_as_long_as_the_message_is_there():
    desk = Desk()
    desk.subscribe()
    desk.publish(Message(payload=b"", id="mine"))
    assert fate(desk, "mine").fate == "waiting"
    desk.ack(desk.pull()[0])
    assert fate(desk, "0-0").fate == "settled"
    for unknown in ("mine", "0-1", "1-0", "99999-9999999999999"):
        with pytest.raises(NotFound):
            fate(desk, unknown)


def test_what_no_subscription_was_to_get_is_dropped():
    desk = Desk()
    desk.publish(b"", b"")
    desk.subscribe("late", start=2)
    assert words(desk) == ["dropped", "dropped"]
    desk.subscribe("all")
    desk.publish(b"")
    desk.ack(desk.pull("all")[0])
    desk.commit([Entry(desk.now.wall_us, [ops.DeleteSubscription(desk.subscription("late").number, "")])])
    assert words(desk) == ["dropped", "dropped", "settled"], "the only one that is left has settled it"


def test_in_a_stream_a_message_is_settled_when_all_have_settled_it_and_dropped_when_it_was_trimmed_unread():
    desk = Desk(keep="age", keep_ms=10)
    desk.subscribe()
    desk.publish(b"read", b"unread")
    desk.ack(desk.pull(n=1)[0])
    assert words(desk) == ["settled", "waiting"]
    desk.upkeep(20)
    for entry in upkeep.housekeeping(desk.shell.state, desk.now.wall_us):
        desk.commit([entry])
    assert words(desk) == ["settled", "dropped"]


def test_transient_messages_that_ended_with_the_process_are_gone():
    desk = Desk()
    desk.subscribe()
    desk.publish(b"stays")
    desk.ack(desk.pull()[0])
    desk.publish(b"lost", persistent=False)
    assert words(desk) == ["settled", "waiting"]
    desk.recover("replay")
    assert fate(desk, "0-0").fate == "settled"
    assert fate(desk, "0-1").fate == fate(desk, "0-1000").fate == "gone"
    desk.recover("checkpoint")
    assert fate(desk, "0-1").fate == "gone"


def test_a_message_that_ends_after_others_are_forgotten_keeps_its_fate(monkeypatch):
    monkeypatch.setattr(partition, "ENDS_MAX", 8)
    desk = Desk()
    desk.subscribe()
    desk.publish(b"", callback=URL)
    desk.publish(*[b""] * 20)
    desk.cancel(*(f"0-{offset}" for offset in range(1, 21)))
    desk.ack(desk.pull()[0])
    assert unreported(desk) == [(0, "settled")]


def test_lost_messages_differ_from_settled_ones_as_far_back_as_there_is_room(monkeypatch):
    monkeypatch.setattr(partition, "LOST_SPAN", 4 << 20)
    desk = Desk()
    desk.subscribe()
    for _ in range(5):
        desk.publish(b"")
        desk.ack(desk.pull()[0])
        desk.publish(b"lost", persistent=False)
        desk.recover("replay")
    assert fate(desk, "0-0").fate == "gone"
    last = desk.publish(b"").ids()[0]
    desk.ack(desk.pull()[0])
    assert fate(desk, last).fate == "settled"
    assert len(desk.topic.partitions[0].lost) <= 4 << 20


def test_endings_beyond_the_bound_are_just_gone(monkeypatch):
    monkeypatch.setattr(partition, "ENDS_MAX", 8)
    desk = Desk()
    desk.subscribe()
    desk.publish(*[b""] * 30)
    desk.cancel("0-0", "0-1", "0-2")
    desk.ack(desk.pull(n=1)[0])
    assert words(desk)[:4] == [*["cancelled"] * 3, "settled"]
    desk.cancel(*(f"0-{offset}" for offset in range(10, 15)))
    assert len(desk.topic.partitions[0].ends) == 8
    desk.cancel("0-15")
    assert len(desk.topic.partitions[0].ends) == 7
    assert words(desk)[:17] == [*["gone"] * 2, "cancelled", "settled", *["waiting"] * 6, *["cancelled"] * 6, "waiting"]
    desk.cancel(*(f"0-{offset}" for offset in range(16, 30)))
    assert words(desk)[10:] == [*["gone"] * 13, *["cancelled"] * 7]
    desk.recover("checkpoint")
    assert words(desk)[10:] == [*["gone"] * 13, *["cancelled"] * 7]


def test_an_older_checkpoint_knows_nothing_of_what_is_gone():
    desk = Desk()
    desk.subscribe()
    desk.publish(b"", b"")
    desk.ack(desk.pull(n=1)[0])
    image = snapshot.dump(desk.shell.state)
    [topic] = image.topics
    [old] = topic.partitions
    old = msgspec.structs.replace(old, ends=np.empty(0, np.int64), ends_unknown_below=-1)
    state = State(BodyStore(None))
    snapshot.load(state, msgspec.structs.replace(image, topics=[msgspec.structs.replace(topic, partitions=[old])]))
    assert fates.fates(state, state.topic("t"), 0, np.arange(2), desk.ms).tolist() == [FATES.index("gone"), 0]


# Outcomes that are to be reported.


@pytest.mark.parametrize("by", ["replay", "checkpoint"])
def test_each_end_is_reported_until_the_report_is_confirmed(by):
    desk = Desk(messages_max=3, overflow="dead-letter")
    desk.subscribe()
    desk.publish(b"ack", b"bury", b"cancel", b"too many", callback=URL)
    desk.publish(b"without a callback")
    assert unreported(desk) == [(3, "dead")]
    desk.ms += 1
    desk.cancel("0-2")
    desk.ms += 1
    desk.recover(by)
    desk.ack(desk.pull(n=1)[0])
    desk.dead_letter(*desk.pull())
    assert sorted(unreported(desk)) == [(0, "settled"), (1, "dead"), (2, "cancelled"), (3, "dead")]
    assert unreported(desk, limit=1) == [(3, "dead")]
    assert unreported(desk, hidden=np.array([2, 3])) == [(0, "settled"), (1, "dead")]
    assert unreported(desk, without=[URL, "http://another"]) == []
    desk.commit([Entry(desk.now.wall_us, [ops.Reported(1, 0, np.array([0, 2]), np.array([3, 5]))])])
    desk.recover(by)
    assert sorted(unreported(desk)) == [(1, "dead"), (3, "dead")]


def test_a_dead_letter_that_is_sent_back_is_reported_again_when_its_end_differs():
    desk = Desk()
    desk.subscribe()
    desk.publish(b"", callback=URL)
    desk.dead_letter(*desk.pull())
    desk.redrive()
    desk.ack(desk.pull()[0])
    assert unreported(desk) == [(0, "settled")]
    desk.commit([Entry(desk.now.wall_us, [ops.Reported(1, 0, np.array([0]), np.array([FATES.index("dead")]))])])
    assert unreported(desk) == [(0, "settled")], "only the death was reported"
    desk.commit([Entry(desk.now.wall_us, [ops.Reported(1, 0, np.array([0]), np.array([SETTLED]))])])
    assert unreported(desk) == []
    assert desk.topic.outbox.urls == {}


def test_an_amended_message_is_reported_under_the_offset_it_was_published_at():
    desk = Desk()
    desk.subscribe()
    desk.publish(b"", callback=URL)
    desk.amend("0-0", payload=b"2")
    desk.amend("0-0", payload=b"3")
    desk.ack(desk.pull()[0])
    expected = Outcome("t", 0, 0, "0-0", URL, "settled", desk.ms)
    assert desk.topic.outbox.unreported("t", 9, np.empty(0, np.int64), ()) == [expected]


def test_outcomes_are_bounded_and_the_oldest_are_dropped(monkeypatch):
    monkeypatch.setattr(outbox, "OUTCOMES_MAX", 32)
    desk = Desk()
    desk.subscribe()
    for _ in range(33):
        desk.publish(b"", callback=URL)
        desk.ms += 1
        desk.ack(desk.pull()[0])
    assert unreported(desk) == [(offset, "settled") for offset in range(3, 33)]
    assert desk.topic.counters["outcomes_dropped"] == 3


def test_urls_are_bounded_and_forgotten_with_their_rows(monkeypatch):
    monkeypatch.setattr(outbox, "URLS_MAX", 4)
    box = Outbox()
    for number in range(4):
        box.watch(np.array([number]), f"http://{number}")
    box.check("http://3")
    with pytest.raises(LimitReached, match="different callback URLs"):
        box.check("http://4")
    box.conclude(np.array([0]), np.array([SETTLED]), np.zeros(1, np.bool_), 1)
    box.reported(np.array([0]), np.array([SETTLED]))
    box.check("http://4")
    box.watch(np.array([4]), "http://4")
    assert list(box.urls.values()) == ["http://1", "http://2", "http://3", "http://4"]


def test_a_callback_needs_a_message_that_survives_as_well():
    desk = Desk()
    desk.publish(b"", callback="http://x/" + "x" * (URL_CHARS_MAX - 9))
    with pytest.raises(InvalidInput, match="transient"):
        desk.publish(b"", callback=URL, persistent=False)
