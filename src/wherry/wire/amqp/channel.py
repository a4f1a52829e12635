"""A channel: what was published on it, what was delivered on it, and what is still out."""

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
from wherry.queueing.message.envelope import Pairs, Row, is_text, prefix, texts
from wherry.queueing.message.placing import delay_ms, placement
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
"""Direct replies that are sent before we look again whether the asker reads them."""


class UnackedMessage(NamedTuple):
    """A message that is out: its delivery tag, a row of a delivery, and whose room it takes."""

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
        """How many it may hold; 0 for no limit of its own."""
        self.out = 0
        self.is_consume_ok_sent = False
        """Whether it knows that it consumes, or does not want to."""
        self._writer = DeliveryWriter(channel.number, tag, channel.session.frame_max)

    def room(self) -> int:
        """How many messages it may be given now."""
        channel = self.channel
        if not channel.flows or channel.session.is_write_paused:
            return 0
        if self.no_ack:
            return PULL_MAX
        left = channel.limit - channel.held()
        if not self.limit:
            return left if channel.limit else channel.session.holding.room()
        return min(self.limit - self.out, left) if channel.limit else self.limit - self.out

    def shares(self) -> tuple[Channel, int] | None:
        """The limit of the channel is one for all its consumers."""
        channel = self.channel
        return (channel, channel.limit - channel.held()) if channel.limit and not self.no_ack else None

    def take(self, queue_delivery: QueueDelivery, rows: list[int], messages: list[Row]) -> None:
        """Messages to be sent: rows of a delivery, whose messages are all here."""
        channel = self.channel
        first = channel.next_tag
        channel.next_tag += len(rows)
        if self.no_ack:
            channel.session.settling.add(queue_delivery, "ack", rows)
        else:
            self.out += len(rows)
            queue_delivery.give(rows, channel.session.holding)
            for tag, row in enumerate(rows, first):
                channel.unacked[tag] = UnackedMessage(tag, queue_delivery, row, self.queue, self)
        mine = messages if len(rows) == len(messages) else [messages[row] for row in rows]
        channel.session.send_all([*self._consume_ok(), *self._writer.pieces(first, mine)])

    def send_consume_ok(self) -> None:
        """It consumes by now, and must know, if it does not."""
        if not self.channel.is_over:
            self.channel.session.send_all(self._consume_ok())

    def _consume_ok(self) -> list[Piece]:
        """What it is told once, before its first message and in one write with it."""
        if self.is_consume_ok_sent:
            return []
        self.is_consume_ok_sent = True
        return [writer.frame(self.channel.number, BasicConsumeOk(consumer_tag=self.tag))]

    def gone(self) -> None:
        """Its queue is no more: who can be told is told."""
        if self.channel.is_over or self.channel.consumers.get(self.tag) is not self:
            return
        self.send_consume_ok()
        del self.channel.consumers[self.tag]
        if self.channel.session.wants_cancels:
            self.channel.session.send(self.channel.number, BasicCancel(consumer_tag=self.tag, no_wait=True))


class Channel:
    """One channel of a connection."""

    def __init__(self, session: Session, number: int) -> None:
        self.session, self.number = session, number
        self.consumers: dict[str, Consumer] = {}
        self.unacked: dict[int, UnackedMessage] = {}
        """What is out, by delivery tag, ascending."""
        self._pending = 0
        """Messages that are settled in a commit which is under way: they still take room."""
        self.next_tag = 1
        self.prefetch = 0
        """The limit of consumers to come."""
        self.limit = 0
        """How many messages all consumers of the channel may hold together; 0 for any number."""
        self.flows = True
        self.last_queue = ""
        """What an empty name of a queue stands for."""
        self.transaction: Transaction | None = None
        self.confirms = False
        self.published = self._confirmed = 0
        self.is_closing = False
        """Whether we have closed it, and wait to hear that it is."""
        self.is_over = False
        """Whether it is closed, whoever did it."""
        self.reply_consumer: str | None = None
        """The consumer tag of direct replies."""
        self.reply_name = ""
        self._reply_writer: DeliveryWriter | None = None

    # ------------------------------------------------------------------------------------------------------- publishing

    def publish(self, event: IncomingMessages) -> None:
        """Messages came, that differ in nothing but their bodies."""
        (exchange, key, _, immediate), known, due = event.route, event.properties, None
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
            self._nowhere(event, known, unconfirmed)
            return
        session.check_publish(targets)
        self._put(event, known, due, targets, unconfirmed)

    def _put(
        self,
        event: IncomingMessages,
        known: UsedProperties,
        due: int | None,
        targets: Iterable[Queue],
        unconfirmed: Unconfirmed | None,
    ) -> None:
        exchange, key = event.route.exchange, event.route.key
        identity = known.message_id if due is not None else None
        words = (key if exchange else None, texts(known), identity)
        messages = Rows(event.bodies, prefix(exchange, key) + known.raw, *_sayable(words))
        intake, now_ms = self.session.intake, self.session.now_ms
        for queue in targets:
            place = placement(queue, known, due, now_ms)
            if self.transaction is not None:
                self.transaction.add(queue, messages, place)
            else:
                intake.add(queue.topic, messages, unconfirmed, place)

    def _checked_exchange(self, exchange: str, known: UsedProperties) -> int | None:
        """When a message is due, where its exchange knows of such a time; the exchange is there and may be used."""
        terms = self.session.host.router.terms(exchange)
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

    def _nowhere(self, event: IncomingMessages, known: UsedProperties, unconfirmed: Unconfirmed | None) -> None:
        """Messages that no queue takes: whoever wants to know gets them back."""
        returned: list[Piece] = []
        if event.route.mandatory:
            method = BasicReturn(exchange=event.route.exchange, routing_key=event.route.key)
            for body in event.bodies:
                returned += writer.content(self.number, method, known.raw, body, self.session.frame_max)
        self._over(event, unconfirmed, returned)

    def _over(self, event: IncomingMessages, unconfirmed: Unconfirmed | None, returned: list[Piece]) -> None:
        """Publishes to no queue are over at once, in one write with their return, unless others before them are not."""
        confirms: list[bytes] = []
        if unconfirmed is not None:
            if self._confirmed == unconfirmed.last - len(event.bodies):
                confirms = self._acks(unconfirmed.last)
            else:
                self.session.intake.note(unconfirmed)
        self.session.send_all([*returned, *confirms])

    def confirmed(self, last: int, refused: set[int]) -> None:
        """Publishes up to `last` are over: one word for each stretch of the same fate."""
        if self.is_over or self.session.is_over:
            return  # its number may be another channel's by now
        frames = []
        for number in sorted(refused):
            frames += self._acks(number - 1)
            frames.append(writer.nack(self.number, number))
            self._confirmed = number
        frames += self._acks(last)
        self.session.send_bytes(b"".join(frames))

    def _acks(self, last: int) -> list[bytes]:
        """Of the publishes up to `last` that nothing was said of yet."""
        first, self._confirmed = self._confirmed + 1, max(last, self._confirmed)
        return [writer.ack(self.number, last, last > first)] if last >= first else []

    # --------------------------------------------------------------------------------------------------- direct replies

    def _with_reply_name(self, known: UsedProperties) -> UsedProperties:
        if self.reply_consumer is None:
            raise refused(Reason.PRECONDITION_FAILED, "fast reply consumer does not exist")
        return used_properties(properties.replaced(known.raw, "reply_to", self.reply_name))

    def consume_replies(self, tag: str, *, no_ack: bool) -> None:
        """Replies come straight from whoever gives them, and lie in no queue."""
        if not no_ack:
            raise refused(Reason.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self.reply_consumer is not None:
            raise refused(Reason.PRECONDITION_FAILED, "reply consumer already set")
        self.reply_consumer = tag
        self._reply_writer = DeliveryWriter(self.number, tag, self.session.frame_max)
        self.reply_name = f"{REPLY_TO}.{secrets.token_urlsafe(18)}"
        self.session.replies[self.reply_name] = self

    def forget_replies(self) -> None:
        """No more of them."""
        self.session.replies.pop(self.reply_name, None)
        self.reply_consumer = self._reply_writer = None

    def _reply(self, event: IncomingMessages, known: UsedProperties, unconfirmed: Unconfirmed | None) -> None:
        asker = self.session.replies.get(event.route.key)
        if asker is not None and not asker.session.is_over:
            asker.take_replies(event, known)
            self._over(event, unconfirmed, [])
        else:
            self._nowhere(event, known, unconfirmed)

    def take_replies(self, event: IncomingMessages, known: UsedProperties) -> None:
        """Replies for whoever asked on this channel. Who does not read loses them, as with any transient message."""
        label = (False, event.route.exchange, event.route.key, known.raw)
        for start in range(0, len(event.bodies), REPLIES_MAX):
            if self._reply_writer is None or self.session.is_write_paused:
                return
            rows = [(label, body) for body in event.bodies[start : start + REPLIES_MAX]]
            self.session.send_all(self._reply_writer.pieces(self.next_tag, rows))
            self.next_tag += len(rows)

    # --------------------------------------------------------------------------------------------------------- settling

    def settle(self, tag: int, *, multiple: bool, verb: SettleVerb) -> None:
        """What a client says of messages that it was given."""
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
        """All tags up to one; 0 stands for all there are."""
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

    def held(self) -> int:
        """Return how many messages take room of the channel: those out, and those of an unfinished transaction."""
        return len(self.unacked) + self._pending + (0 if self.transaction is None else len(self.transaction.settled))

    def end(self, outs: Iterable[UnackedMessage], verb: SettleVerb) -> None:
        """Settle messages that the client is done with, and let their consumers have others."""
        rows: dict[tuple[QueueDelivery, SettleVerb, Queue], list[int]] = {}
        holders: dict[Consumer | None, int] = {}
        for _, queue_delivery, row, queue, consumer in outs:
            unwanted = verb == "reject" and queue.terms.dead_exchange is None  # nobody wants to see it again
            rows.setdefault((queue_delivery, "ack" if unwanted else verb, queue), []).append(row)
            holders[consumer] = holders.get(consumer, 0) + 1
        for (queue_delivery, what, queue), mine in rows.items():
            if what == "requeue":
                queue.give_back(self.session.settling, queue_delivery, mine)
            else:
                self.session.settling.add(queue_delivery, what, mine)
        self._freed(holders)

    def _freed(self, holders: dict[Consumer | None, int]) -> None:
        """Who held messages, and how many, has room again."""
        for consumer, count in holders.items():
            if consumer is not None:
                consumer.out -= count
                consumer.queue.wake()
        for consumer in self.consumers.values() if self.limit else ():
            consumer.queue.wake()

    def out(self) -> Iterable[UnackedMessage]:
        """Everything that is out, transactions included."""
        yield from self.unacked.values()
        yield from (out for out, _ in (self.transaction.settled if self.transaction is not None else ()))

    def requeue_all(self) -> None:
        """All that is out comes back to its queues."""
        unacked, self.unacked = self.unacked, {}
        self.end(unacked.values(), "requeue")

    # ----------------------------------------------------------------------------------------------------- transactions

    async def commit(self, broker: BrokerPort) -> None:
        """All publishes and acks of a transaction at once or none of them, and then what else it says of messages."""
        done, self.transaction = self.transaction or Transaction(), Transaction()
        acked, others = done.parted()
        rows: dict[QueueDelivery, list[int]] = {}
        for out in acked:
            rows.setdefault(out.queue_delivery, []).append(out.row)
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
        self._freed(Counter(out.consumer for out in acked))
        for verb, some in groupby(others, key=itemgetter(1)):
            self.end([out for out, _ in some], verb)
        await self.session.settling.flush()

    def _hold_again(self, undone: Transaction) -> None:
        """What a transaction has settled is out again; on a channel that is over it comes back."""
        self.unacked |= {out.tag: out for out, _ in undone.settled}
        self.unacked = dict(sorted(self.unacked.items()))
        if self.is_over:
            self.requeue_all()

    def rollback(self) -> None:
        """Nothing of it. What it settled is out again."""
        undone, self.transaction = self.transaction or Transaction(), Transaction()
        self._hold_again(undone)

    # ----------------------------------------------------------------------------------------------------------- ending

    def cancel(self, tag: str) -> None:
        """A consumer gets no more; what it holds stays out."""
        if tag == self.reply_consumer:
            self.forget_replies()
        consumer = self.consumers.pop(tag, None)
        if consumer is None:
            return
        consumer.queue.leave(consumer)
        self.session.tidy_queue(consumer.queue)

    def close(self) -> None:
        """The channel is over: what is out comes back."""
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


def _sayable(words: tuple[str | None, Pairs | None, str | None]) -> tuple[str | None, Pairs | None, str | None]:
    """Key, headers and id, without what is no text: other wires could not say it."""
    key, headers, identity = words
    if key is not None and not is_text(key):
        key = None
    return key, headers, identity if identity is not None and is_text(identity) else None
