"""Planted bugs in the wires and in the queueing layer: see `plants`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wherry.broker.broker import Broker
from wherry.broker.commit.commit import WhenDurable
from wherry.core.apply import publishes
from wherry.core.decide.forwarding import Forwarding
from wherry.queueing.flow import delivering, transaction
from wherry.queueing.flow.intake import Intake
from wherry.queueing.hosts.queue import Queue
from wherry.sim.patch import patched
from wherry.sim.plants.plants import break_order
from wherry.sim.world import world
from wherry.wire.amqp import channel as amqp
from wherry.wire.amqp import server as amqp_server
from wherry.wire.amqp import session as amqp_session
from wherry.wire.stomp import codec, subscriptions
from wherry.wire.stomp import session as stomp


def confirm_before_the_sync() -> Any:
    """Confirm a publish when it is written, before it is synced."""

    def make(_: Any) -> Any:
        def at_once(self: Broker, position: int, call: WhenDurable) -> None:
            call(None)

        return at_once

    return patched(Broker, "when_stored", make)


def requeue_behind_others() -> Any:
    """Deliver later messages while a requeued one is on its way back."""

    def make(_: Any) -> Any:
        async def at_once(self: Queue) -> None:
            self._last_back = None

        return at_once

    return patched(Queue, "_all_back", make)


def one_too_many() -> Any:
    """Send an AMQP consumer one message more than its prefetch."""
    return patched(amqp.Consumer, "room", _one_more)


def one_too_many_for_stomp() -> Any:
    """Send a STOMP consumer one message more than its prefetch."""
    return patched(subscriptions.Consumer, "room", _one_more)


def _one_more(room: Any) -> Any:
    return lambda self: room(self) + (room(self) > 0)


def ack_on_another_channel() -> Any:
    """Look delivery tags up in the first channel of the connection that has them."""

    def make(settle: Any) -> Any:
        def anywhere(self: amqp.Channel, tag: int, **options: Any) -> None:
            there = [each for each in self.session.channels.values() if tag in each.unacked]
            settle(there[0] if there else self, tag, **options)

        return anywhere

    return patched(amqp.Channel, "settle", make)


def half_a_transaction() -> Any:
    """Publish nothing to the last queue of a transaction."""

    def make(batches: Any) -> Any:
        def fewer(self: Intake, incoming: Any) -> Any:
            found = batches(self, incoming)
            return found[:-1] if len(found) > 1 else found

        return fewer

    return patched(Intake, "batches", make)


def forget_the_acks() -> Any:
    """Leave the acks out of a transaction that publishes as well."""

    def make(commit: Any) -> Any:
        return lambda broker, key, stages, acks: commit(broker, key, stages, [])

    return patched(transaction, "_commit", make)


def publish_before_the_commit() -> Any:
    """Publish messages of an AMQP transaction at once, before its commit."""

    def make(put: Any) -> Any:
        def at_once(self: amqp.Channel, *args: Any) -> None:
            transaction, self.transaction = self.transaction, None
            put(self, *args)
            self.transaction = transaction

        return at_once

    return patched(amqp.Channel, "_put", make)


def forget_the_redelivery() -> Any:
    """Mark every delivery as the first."""

    def make(label: Any) -> Any:
        return lambda envelope, attempt, is_old, *, counted: label(envelope, 1, False, counted=counted)

    return patched(delivering, "_label", make)


def forward_and_keep() -> Any:
    """Publish the copies of messages that expire, and leave the messages to the round as dead letters."""

    def make(steps: Any) -> Any:
        def kept(self: Forwarding, each: Any) -> None:
            steps(self, each)

        return kept

    return patched(Forwarding, "steps", make)


def remove_and_forget() -> Any:
    """Remove messages that expire, and publish none of their copies."""
    return patched(Forwarding, "publishes", lambda _: lambda self: [])


def expire_early() -> Any:
    """Note that messages expire 0.3 s before their time."""

    def make(note: Any) -> Any:
        def early(step: Any, partition: Any, topic: int, times: Any) -> None:
            note(step, partition, topic, times - [[300], [0]])

        return early

    return patched(publishes, "_note_expiry", make)


def receipt_before_the_sync() -> Any:
    """Send the receipt of a STOMP ACK before the ack is durable."""

    def make(_: Any) -> Any:
        async def at_once(self: stomp.Session) -> None:
            return None

        return at_once

    return patched(stomp.Session, "all_settled", make)


@contextmanager
def close_in_spite_of_a_lost_ack() -> Iterator[None]:
    """Answer `channel.close` of AMQP with success after the journal has lost an ack; syncs fail often and take long."""

    def frail(faults: Any) -> Any:
        return lambda **_: faults(delay_us_min=2_000, delay_us_max=100_000, sync_fails=0.03)

    with (
        patched(amqp_session.Session, "_not_settled", lambda _: lambda self, fault: None),
        patched(world, "DiskFaults", frail),
    ):
        yield


@contextmanager
def no_heart_beats() -> Iterator[None]:
    """Send no heart-beats, even if they were agreed on."""
    with patched(amqp_server, "HEARTBEAT_FRAME", lambda _: b""), patched(codec, "HEART_BEAT", lambda _: b""):
        yield


def deaf_to_heart_beats() -> Any:
    """Cut off an AMQP client although its heart-beats came."""

    def make(received: Any) -> Any:
        def deaf(self: amqp_server.Connection, data: bytes) -> None:
            read_at = self._read_at
            received(self, data)
            if data.startswith(b"\x08"):
                self._read_at = read_at

        return deaf

    return patched(amqp_server.Connection, "data_received", make)


def keep_what_the_gone_held() -> Any:
    """Keep the leases of a channel that has ended."""
    return patched(amqp.Channel, "requeue_all", lambda _: lambda self: self.unacked.clear())


def share_deliveries() -> Any:
    """Send messages that a consumer has no room for, instead of releasing them."""

    def make(in_turn: Any) -> Any:
        def more(self: Queue, rows: list[int], takers: list[Any]) -> Any:
            shares, left = in_turn(self, rows, takers)
            for share in shares[1:]:
                share.extend(row for row in shares[0][:1] if row not in share)
            return shares, left

        return more

    return patched(Queue, "_round_robin", make)


WIRE_PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "confirm before the sync": (confirm_before_the_sync, 0, ("nobody_loses",)),
    "requeue behind others": (requeue_behind_others, 1, ("requeued_in_place",)),
    "one too many": (one_too_many, 0, ("prefetch_kept",)),
    "one too many for STOMP": (one_too_many_for_stomp, 0, ("prefetch_kept",)),
    "ack on another channel": (ack_on_another_channel, 5, ("nobody_loses", "one_holder", "rules_kept")),
    "half a transaction": (half_a_transaction, 1, ("all_or_nothing",)),
    "forget the acks": (forget_the_acks, 0, ("transactions_are_whole",)),
    "break order over wires": (break_order, 0, ("order_kept",)),
    "publish before the commit": (publish_before_the_commit, 0, ("nothing_invented",)),
    "forget the redelivery": (forget_the_redelivery, 0, ("redelivery_is_flagged",)),
    "receipt before the sync": (receipt_before_the_sync, 15, ("acked_stays_acked",)),
    "close in spite of a lost ack": (close_in_spite_of_a_lost_ack, 39, ("acked_stays_acked",)),
    "no heart-beats": (no_heart_beats, 0, ("beats_come",)),
    "deaf to heart-beats": (deaf_to_heart_beats, 0, ("beats_heard",)),
    "keep what the gone held": (keep_what_the_gone_held, 0, ("nothing_kept",)),
    "forward and keep": (forward_and_keep, 15, ("forwarded_once", "acked_stays_acked")),
    "remove and forget": (remove_and_forget, 15, ("nobody_loses",)),
    "expire early": (expire_early, 15, ("not_before_its_time",)),
    "share deliveries": (share_deliveries, 5, ("one_holder",)),
}
"""Each bug, the first seed that shows it, and the checkers that may find it."""
