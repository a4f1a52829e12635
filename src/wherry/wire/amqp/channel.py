"""A channel: its publishes and their confirms, its consumers, and the messages that they have not settled."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.rows import Rows
from wherry.model.limits import TIME_MS_MAX
from wherry.queueing.flow.delivering import QueueDelivery, SettleVerb
from wherry.queueing.flow.intake import Unconfirmed
from wherry.queueing.flow.transaction import commit
from wherry.queueing.hosts.queue import PULL_MAX, Queue
from wherry.queueing.message import properties
from wherry.queueing.message.envelope import Row, is_text, prefix, texts
from wherry.queueing.message.handling import delay_ms, handling_of
from wherry.queueing.message.properties import UsedProperties, used_properties
from wherry.queueing.message.table import without
from wherry.queueing.names import REPLY_TO
from wherry.queueing.refusals import Reason, refused
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.methods import BasicCancel, BasicConsumeOk, BasicReturn
from wherry.wire.amqp.codec.reader import IncomingMessages
from wherry.wire.amqp.codec.writer import DeliveryWriter, Piece
from wherry.wire.amqp.transaction import Transaction

if TYPE_CHECKING:
    from wherry.wire.amqp.session import Session


REPLIES_MAX = 100
"""Direct replies that are sent before the next check whether the asking client reads them."""


class UnackedMessage(NamedTuple):
    """A message that the client has not settled: its delivery tag, a row of a delivery, and its queue and consumer."""

    tag: int
    queue_delivery: QueueDelivery
    row: int
    queue: Queue
    consumer: Consumer | None


class Consumer:
    """One consumer of a channel."""

    def __init__(
        self, channel: Channel, tag: str, queue: Queue, *, no_ack: bool, exclusive: bool, priority: int, limit: int
    ) -> None:
        self.channel, self.tag, self.queue = channel, tag, queue
        self.no_ack, self.exclusive, self.priority = no_ack, exclusive, priority
        self.limit = limit
        """How many messages the consumer may hold; 0 for no limit of its own."""
        self.unacked_count = 0
        self.is_consume_ok_sent = False
        """Whether `basic.consume-ok` was sent to the client, or the client asked for none (`no_wait`)."""
        self._writer = DeliveryWriter(channel.number, tag, channel.session.frame_max)

    def room(self) -> int:
        """Return how many messages the consumer may be given now."""
        channel = self.channel
        if not channel.flows or channel.session.is_write_paused:
            return 0
        if self.no_ack:
            return PULL_MAX
        left = channel.limit - channel.unacked_count()
        if not self.limit:
            return left if channel.limit else channel.session.holding.room()
        return min(self.limit - self.unacked_count, left) if channel.limit else self.limit - self.unacked_count

    def shares(self) -> tuple[Channel, int] | None:
        """Return the channel and the room left in it, if it has a limit, which all its consumers share."""
        channel = self.channel
        return (channel, channel.limit - channel.unacked_count()) if channel.limit and not self.no_ack else None

    def take(self, queue_delivery: QueueDelivery, rows: list[int], messages: list[Row]) -> None:
        """Send rows of a delivery to the client; `messages` are all messages of the delivery."""
        channel = self.channel
        first = channel.next_tag
        channel.next_tag += len(rows)
        if self.no_ack:
            channel.session.settling.add(queue_delivery, "ack", rows)
        else:
            self.unacked_count += len(rows)
            queue_delivery.give(rows, channel.session.holding)
            for tag, row in enumerate(rows, first):
                channel.unacked[tag] = UnackedMessage(tag, queue_delivery, row, self.queue, self)
        mine = messages if len(rows) == len(messages) else [messages[row] for row in rows]
        channel.session.send_all([*self._consume_ok(), *self._writer.pieces(first, mine)])

    def send_consume_ok(self) -> None:
        """Send `basic.consume-ok`, unless it was sent with the first messages or is not wanted."""
        if not self.channel.is_over:
            self.channel.session.send_all(self._consume_ok())

    def _consume_ok(self) -> list[Piece]:
        """Return the frame of `basic.consume-ok` once: it comes before the first message, and in one write with it."""
        if self.is_consume_ok_sent:
            return []
        self.is_consume_ok_sent = True
        return [writer.frame(self.channel.number, BasicConsumeOk(consumer_tag=self.tag))]

    def deliveries_ended(self) -> None:
        """End this consumer, since its queue delivers no more; send `basic.cancel` if the client supports it."""
        if self.channel.is_over or self.channel.consumers.get(self.tag) is not self:
            return
        self.send_consume_ok()
        del self.channel.consumers[self.tag]
        if self.channel.session.wants_cancels:
            self.channel.session.send(self.channel.number, BasicCancel(consumer_tag=self.tag, no_wait=True))

    def end(self) -> bool:
        """Stop, since the client lost the right; return whether the client could be told, else its channel has to end.

        Messages that it holds stay unsettled.
        """
        if self.channel.consumers.get(self.tag) is not self:
            return True
        self.send_consume_ok()
        self.channel.cancel(self.tag)
        session = self.channel.session
        if session.wants_cancels:
            session.send(self.channel.number, BasicCancel(consumer_tag=self.tag, no_wait=True))
        return session.wants_cancels


class Channel:
    """One channel of a connection."""

    def __init__(self, session: Session, number: int) -> None:
        self.session, self.number = session, number
        self.consumers: dict[str, Consumer] = {}
        self.unacked: dict[int, UnackedMessage] = {}
        """By delivery tag, ascending."""
        self._pending = 0
        """Messages that are settled in a commit that has not ended: they still count as held."""
        self.next_tag = 1
        self.prefetch = 0
        """The limit of consumers that are made from now on."""
        self.limit = 0
        """How many messages all consumers of the channel may hold together; 0 for any number."""
        self.flows = True
        self.last_queue = ""
        """The queue that an empty queue name means."""
        self.transaction: Transaction | None = None
        self.confirms = False
        self.published = self._confirmed = 0
        self.is_closing = False
        """Whether the server has closed the channel, and waits for `channel.close-ok`."""
        self.is_over = False
        """Whether the channel is closed, by either side."""
        self.reply_consumer: str | None = None
        """The consumer tag of direct replies."""
        self.reply_name = ""
        self._reply_writer: DeliveryWriter | None = None

    # ------------------------------------------------------------------------------------------------------- publishing

    def publish(self, event: IncomingMessages) -> None:
        """Publish messages that differ only in their bodies."""
        (exchange, key, _, immediate), known, due = event.fields, event.properties, None
        unconfirmed = None
        if self.confirms:
            self.published += len(event.bodies)
            unconfirmed = Unconfirmed(self, self.published, len(event.bodies))
        if immediate:
            raise refused(Reason.NOT_IMPLEMENTED, "immediate=true", hard=True)
        if exchange:
            due = self._checked_exchange(exchange, known)
        self._check_user(known)
        if known.reply_to == REPLY_TO:
            known = self._with_reply_name(known)
        if exchange == "" and key.startswith(REPLY_TO + "."):
            self._reply(event, known, unconfirmed)
            return
        session = self.session
        targets = session.host.targets(exchange, key, known)
        if known.headers and b"BCC" in known.headers:
            known = used_properties(properties.replaced(known.raw, "headers", without(known.headers, ("BCC",))))
        if not targets:
            self._return_unrouted(event, known, unconfirmed)
            return
        session.rights.check_publish(targets)
        self._put(event, known, due, targets, unconfirmed)

    def _put(
        self,
        event: IncomingMessages,
        known: UsedProperties,
        due: int | None,
        targets: Iterable[Queue],
        unconfirmed: Unconfirmed | None,
    ) -> None:
        exchange, key = event.fields.exchange, event.fields.key
        identity = known.message_id if due is not None else None
        envelope = prefix(exchange, key) + known.raw
        kept_key = _valid_text(key) if exchange else None
        messages = Rows(event.bodies, envelope, kept_key, texts(known), _valid_text(identity))
        intake, now_ms = self.session.intake, self.session.now_ms
        for queue in targets:
            handling = handling_of(queue, known, due, now_ms)
            if self.transaction is not None:
                self.transaction.add(queue, messages, handling)
            else:
                intake.add(queue.topic, messages, unconfirmed, handling)

    def _checked_exchange(self, exchange: str, known: UsedProperties) -> int | None:
        """Check that the exchange may be published to; return the due time of a message, if it has one."""
        terms = self.session.host.exchange_index.terms(exchange)
        if terms.internal:
            text = f"cannot publish to internal exchange '{exchange}' in vhost '{self.session.host.name}'"
            raise refused(Reason.ACCESS_REFUSED, text)
        if not terms.delayed:
            return None
        delay = delay_ms(known)
        return None if delay is None else min(self.session.now_ms() + delay, TIME_MS_MAX)

    def _check_user(self, known: UsedProperties) -> None:
        if known.user_id is not None and known.user_id != self.session.user:
            text = f"user_id property set to '{known.user_id}' but authenticated user was '{self.session.user}'"
            raise refused(Reason.PRECONDITION_FAILED, text)

    def _return_unrouted(self, event: IncomingMessages, known: UsedProperties, unconfirmed: Unconfirmed | None) -> None:
        """Return unroutable messages to the client if they are mandatory, and confirm them."""
        returned: list[Piece] = []
        if event.fields.mandatory:
            method = BasicReturn(exchange=event.fields.exchange, routing_key=event.fields.key)
            for body in event.bodies:
                returned += writer.content(self.number, method, known.raw, body, self.session.frame_max)
        self._confirm_unrouted(event, unconfirmed, returned)

    def _confirm_unrouted(
        self, event: IncomingMessages, unconfirmed: Unconfirmed | None, returned: list[Piece]
    ) -> None:
        """Confirm publishes that reached no queue: now, together with their return, or after those published before."""
        confirms: list[bytes] = []
        if unconfirmed is not None:
            if self._confirmed == unconfirmed.last - len(event.bodies):
                confirms = self._acks(unconfirmed.last)
            else:
                self.session.intake.note(unconfirmed)
        self.session.send_all([*returned, *confirms])

    def confirmed(self, last: int, refused: set[int]) -> None:
        """Confirm publishes up to `last`: one frame for each run of acks, and one for each refused publish."""
        if self.is_over or self.session.is_over:
            return  # the number may belong to a new channel by now
        frames = []
        for number in sorted(refused):
            frames += self._acks(number - 1)
            frames.append(writer.nack(self.number, number))
            self._confirmed = number
        frames += self._acks(last)
        self.session.send_bytes(b"".join(frames))

    def _acks(self, last: int) -> list[bytes]:
        """Return the frame that acks the publishes up to `last` that are not confirmed yet."""
        first, self._confirmed = self._confirmed + 1, max(last, self._confirmed)
        return [writer.ack(self.number, last, last > first)] if last >= first else []

    # --------------------------------------------------------------------------------------------------- direct replies

    def _with_reply_name(self, known: UsedProperties) -> UsedProperties:
        if self.reply_consumer is None:
            raise refused(Reason.PRECONDITION_FAILED, "fast reply consumer does not exist")
        return used_properties(properties.replaced(known.raw, "reply_to", self.reply_name))

    def consume_replies(self, tag: str, *, no_ack: bool) -> None:
        """Deliver direct replies to this channel; they are sent from channel to channel, without a queue."""
        if not no_ack:
            raise refused(Reason.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self.reply_consumer is not None:
            raise refused(Reason.PRECONDITION_FAILED, "reply consumer already set")
        self.reply_consumer = tag
        self._reply_writer = DeliveryWriter(self.number, tag, self.session.frame_max)
        self.reply_name = f"{REPLY_TO}.{secrets.token_urlsafe(18)}"
        self.session.replies[self.reply_name] = self

    def forget_replies(self) -> None:
        """Stop delivering direct replies."""
        self.session.replies.pop(self.reply_name, None)
        self.reply_consumer = self._reply_writer = None

    def _reply(self, event: IncomingMessages, known: UsedProperties, unconfirmed: Unconfirmed | None) -> None:
        asker = self.session.replies.get(event.fields.key)
        if asker is not None and not asker.session.is_over:
            asker.take_replies(event, known)
            self._confirm_unrouted(event, unconfirmed, [])
        else:
            self._return_unrouted(event, known, unconfirmed)

    def take_replies(self, event: IncomingMessages, known: UsedProperties) -> None:
        """Send direct replies to the client of this channel; drop them if the client does not read."""
        label = (False, event.fields.exchange, event.fields.key, known.raw)
        for start in range(0, len(event.bodies), REPLIES_MAX):
            if self._reply_writer is None or self.session.is_write_paused:
                return
            rows = [(label, body) for body in event.bodies[start : start + REPLIES_MAX]]
            self.session.send_all(self._reply_writer.pieces(self.next_tag, rows))
            self.next_tag += len(rows)

    # --------------------------------------------------------------------------------------------------------- settling

    def settle(self, tag: int, *, multiple: bool, verb: SettleVerb) -> None:
        """Settle messages as the client asks."""
        tags = self._tags_to(tag) if multiple else [tag]
        if not tags and multiple and tag == 0:
            return
        if not tags or tags[-1] not in self.unacked:
            raise refused(Reason.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        if self.transaction is not None:
            for each in tags:
                self.transaction.check(1)
                self.transaction.settled.append((self.unacked.pop(each), verb))
            return
        self.end([self.unacked.pop(each) for each in tags], verb)

    def _tags_to(self, tag: int) -> list[int]:
        """Return all delivery tags up to one; 0 means all."""
        if tag == 0:
            return list(self.unacked)
        if tag not in self.unacked:
            return []
        tags = []
        for each in self.unacked:
            if each > tag:
                break
            tags.append(each)
        return tags

    def unacked_count(self) -> int:
        """Return how many messages count as unacked on the channel, including those in an unfinished transaction."""
        return len(self.unacked) + self._pending + (0 if self.transaction is None else len(self.transaction.settled))

    def end(self, unacked: Iterable[UnackedMessage], verb: SettleVerb) -> None:
        """Settle messages, and let their consumers have new ones."""
        rows: dict[tuple[QueueDelivery, SettleVerb, Queue], list[int]] = {}
        holders: dict[Consumer | None, int] = {}
        for _, queue_delivery, row, queue, consumer in unacked:
            unwanted = verb == "reject" and queue.terms.dead_exchange is None  # no dead-letter exchange: drop it
            rows.setdefault((queue_delivery, "ack" if unwanted else verb, queue), []).append(row)
            holders[consumer] = holders.get(consumer, 0) + 1
        for (queue_delivery, what, queue), mine in rows.items():
            if what == "requeue":
                queue.give_back(self.session.settling, queue_delivery, mine)
            else:
                self.session.settling.add(queue_delivery, what, mine)
        self._make_room(holders)

    def _make_room(self, holders: dict[Consumer | None, int]) -> None:
        """Count settled messages out of their consumers, and wake the queues that have room for more."""
        for consumer, count in holders.items():
            if consumer is not None:
                consumer.unacked_count -= count
                consumer.queue.wake()
        for consumer in self.consumers.values() if self.limit else ():
            consumer.queue.wake()

    def all_unacked(self) -> Iterable[UnackedMessage]:
        """Return all messages that are not settled, including those in a transaction."""
        yield from self.unacked.values()
        yield from (message for message, _ in (self.transaction.settled if self.transaction is not None else ()))

    def requeue_all(self) -> None:
        """Requeue all unsettled messages."""
        unacked, self.unacked = self.unacked, {}
        self.end(unacked.values(), "requeue")

    # ----------------------------------------------------------------------------------------------------- transactions

    async def commit(self, broker: BrokerPort) -> None:
        """Commit the publishes and acks of the transaction, all or none, and then make its requeues and rejects."""
        done, self.transaction = self.transaction or Transaction(), Transaction()
        acked, others = done.parted()
        rows: dict[QueueDelivery, list[int]] = {}
        for message in acked:
            rows.setdefault(message.queue_delivery, []).append(message.row)
        acks = [part for queue_delivery, mine in rows.items() for part in queue_delivery.parts(mine)]
        self._pending += len(done.settled)
        try:
            await commit(broker, self.session.intake.batches(done.messages), acks)
        except Exception:
            self._hold_again(done)
            raise
        finally:
            self._pending -= len(done.settled)
        for queue_delivery, mine in rows.items():
            queue_delivery.let_go(mine)
        self._make_room(Counter(message.consumer for message in acked))
        for verb, some in groupby(others, key=itemgetter(1)):
            self.end([message for message, _ in some], verb)
        await self.session.settling.flush()

    def _hold_again(self, undone: Transaction) -> None:
        """Make the settles of a transaction undone; on a closed channel requeue the messages."""
        self.unacked |= {message.tag: message for message, _ in undone.settled}
        self.unacked = dict(sorted(self.unacked.items()))
        if self.is_over:
            self.requeue_all()

    def rollback(self) -> None:
        """Drop the transaction. Messages that it settled are unsettled again."""
        undone, self.transaction = self.transaction or Transaction(), Transaction()
        self._hold_again(undone)

    # ----------------------------------------------------------------------------------------------------------- ending

    def cancel(self, tag: str) -> None:
        """Stop a consumer; messages that it holds stay unsettled."""
        if tag == self.reply_consumer:
            self.forget_replies()
        consumer = self.consumers.pop(tag, None)
        if consumer is None:
            return
        consumer.queue.leave(consumer)
        self.session.tidy_queue(consumer.queue)

    def close(self) -> None:
        """Close the channel, and requeue its unsettled messages."""
        self.is_over = True
        for tag in list(self.consumers):
            self.cancel(tag)
        if self.reply_consumer is not None:
            self.forget_replies()
        if self.transaction is not None:
            self.rollback()
            self.transaction = None
        self.requeue_all()
        self.flows = False


def _valid_text(value: str | None) -> str | None:
    """Return a key or an id; None if it is not valid text, since other wires could not send it."""
    return value if value is not None and is_text(value) else None
