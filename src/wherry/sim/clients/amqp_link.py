"""A small client of AMQP 0-9-1: channel 1 has confirms, channel 2 transactions, each consumer a channel of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from wherry.queueing.message.properties import Properties, encode
from wherry.sim.clients.links import Delivered, Gone, Refusal, Subscribed, Verdict, WireLink
from wherry.sim.clients.producers import name_of
from wherry.sim.world.wires import WireWorld
from wherry.wire.amqp.codec import methods as m
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.faults import ReplyCode
from wherry.wire.amqp.codec.frames import CONTENT_BODY, CONTENT_HEADER, END, HEAD, HEADER, METHOD
from wherry.wire.amqp.codec.methods import Method, decode_method

FRAME_MAX = 4_096
CONFIRMS, TRANSACTIONS, FIRST_CONSUMER = 1, 2, 3

_UNASKED = (m.BasicDeliver, m.BasicAck, m.BasicNack, m.BasicCancel, m.ConnectionBlocked, m.ConnectionUnblocked)
_NO_FAULTS = frozenset({ReplyCode.CONNECTION_FORCED, ReplyCode.RESOURCE_ERROR, ReplyCode.PRECONDITION_FAILED})
"""Replies that are no fault: the broker stops, or its disk is full."""


@dataclass
class _Channel:
    """Calls of one channel that wait for an answer."""

    answers: deque[asyncio.Future[object]] = field(default_factory=deque)
    unconfirmed: dict[int, asyncio.Future[object]] = field(default_factory=dict)
    published: int = 0
    delivery: m.BasicDeliver | None = None
    size: int = 0
    since: float = 0.0
    body: bytearray = field(default_factory=bytearray)


class AmqpLink(WireLink):
    """One AMQP connection."""

    wire = "amqp"

    def __init__(self, world: WireWorld, name: str, beat_s: int = 0) -> None:
        super().__init__(world, name)
        self._wanted_beat_s = beat_s
        self._channels: dict[int, _Channel] = {}
        self._consumers: dict[str, Subscribed] = {}
        self._is_closing = False

    async def log_in(self) -> None:
        connection = self._channels[0] = _Channel()
        started = self.waiting()
        connection.answers.append(started)
        self._write(HEADER)
        await self.answer(started, "connection.start")
        capabilities = {"consumer_cancel_notify": True, "connection.blocked": True, "basic.nack": True}
        response = m.ConnectionStartOk(client_properties={"capabilities": capabilities}, response=b"\0guest\0guest")
        await self._call(0, response, m.ConnectionTune)
        self._send(0, m.ConnectionTuneOk(channel_max=100, frame_max=FRAME_MAX, heartbeat=self._wanted_beat_s))
        self.beat_s = self._wanted_beat_s
        await self._call(0, m.ConnectionOpen(), m.ConnectionOpenOk)

    def beat(self) -> None:
        self._write(writer.HEARTBEAT_FRAME)

    # ------------------------------------------------------------------------------------------------------- speaking

    def _write(self, data: bytes) -> None:
        if self.is_gone:
            raise Gone("the connection is over")
        self.transport.write(data)

    def _send(self, channel: int, method: Method) -> None:
        self._write(writer.frame(channel, method))

    async def _call(self, channel: int, method: Method, wanted: type[Method]) -> Method:
        waiting = self.waiting()
        self._channels[channel].answers.append(waiting)
        self._send(channel, method)
        got = await self.answer(waiting, m.name_of(type(method)))
        if not isinstance(got, wanted):
            self.broken(f"{got} answers {method}")
            raise Gone("a wrong answer")
        return got

    async def _opened(self, channel: int) -> None:
        if channel not in self._channels:
            self._channels[channel] = _Channel()
            await self._call(channel, m.ChannelOpen(), m.ChannelOpenOk)

    async def declare(self, queue: str, arguments: dict[str, object]) -> None:
        """Declare a durable queue."""
        await self._opened(TRANSACTIONS)
        method = m.QueueDeclare(queue=queue, durable=True, arguments=arguments)
        await self._call(TRANSACTIONS, method, m.QueueDeclareOk)

    async def ready(self) -> None:
        """Open the channels that a publisher needs."""
        await self._opened(CONFIRMS)
        await self._call(CONFIRMS, m.ConfirmSelect(), m.ConfirmSelectOk)
        await self._opened(TRANSACTIONS)
        await self._call(TRANSACTIONS, m.TxSelect(), m.TxSelectOk)

    def _content(self, channel: int, queue: str, body: bytes, *, persistent: bool) -> None:
        properties = encode(Properties(delivery_mode=2 if persistent else 1))
        method = m.BasicPublish(routing_key=queue)
        self._write(b"".join(writer.content(channel, method, properties, body, FRAME_MAX)))

    def publish(self, queue: str, body: bytes, *, persistent: bool) -> asyncio.Future[object]:
        channel = self._channels[CONFIRMS]
        channel.published += 1
        waiting = channel.unconfirmed[channel.published] = self.waiting()
        self._content(CONFIRMS, queue, body, persistent=persistent)
        return waiting

    async def subscribe(self, subscribed: Subscribed) -> None:
        subscribed.channel = number = max((FIRST_CONSUMER - 1, *self._channels)) + 1
        self._consumers[subscribed.id] = subscribed
        await self._opened(number)
        if subscribed.transacted:
            await self._call(number, m.TxSelect(), m.TxSelectOk)
        # the limit counts for the channel or for the consumer, which is the same here: a channel has one consumer
        shared = len(subscribed.id) % 2 == 0
        await self._call(number, m.BasicQos(prefetch_count=subscribed.limit, global_=shared), m.BasicQosOk)
        await self._call(number, m.BasicConsume(queue=subscribed.queue, consumer_tag=subscribed.id), m.BasicConsumeOk)

    async def unsubscribe(self, subscribed: Subscribed) -> None:
        await self._call(subscribed.channel, m.ChannelClose(reply_code=200), m.ChannelCloseOk)
        self._channels.pop(subscribed.channel, None)

    def settle(self, message: Delivered, verdict: Verdict) -> None:
        tag, channel = int(message.handle), message.subscription.channel
        method = m.BasicAck(tag) if verdict == "ack" else m.BasicNack(tag, requeue=verdict == "nack")
        self._send(channel, method)

    async def transact(
        self,
        subscribed: Subscribed | None,
        publishes: Sequence[tuple[str, bytes]],
        settles: Sequence[tuple[Delivered, Verdict]],
        *,
        commit: bool,
    ) -> None:
        channel = TRANSACTIONS if subscribed is None else subscribed.channel
        for queue, body in publishes:
            self._content(channel, queue, body, persistent=True)
        for message, verdict in settles:
            self.settle(message, verdict)
        if commit:
            await self._call(channel, m.TxCommit(), m.TxCommitOk)
        else:
            await self._call(channel, m.TxRollback(), m.TxRollbackOk)

    async def close(self) -> None:
        self._is_closing = True
        await self._call(0, m.ConnectionClose(reply_code=200), m.ConnectionCloseOk)
        self.transport.close()

    # ------------------------------------------------------------------------------------------------------ listening

    def parse(self, rest: bytearray) -> None:
        at = 0
        while len(rest) - at >= HEAD.size:
            kind, number, size = HEAD.unpack_from(rest, at)
            end = at + HEAD.size + size
            if len(rest) <= end:
                break
            if rest[end] != END:
                self.broken("a frame without an end")
                break
            self._frame(kind, number, bytes(rest[at + HEAD.size : end]))
            at = end + 1
        del rest[:at]

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        channel = self._channels.get(number)
        if channel is None:
            return
        if kind == METHOD:
            self._method(number, channel, decode_method(payload))
        elif kind == CONTENT_HEADER:
            channel.size = int.from_bytes(payload[4:12], "big")
            self._whole(number, channel)
        elif kind == CONTENT_BODY:
            channel.body += payload
            self._whole(number, channel)

    def _method(self, number: int, channel: _Channel, method: Method) -> None:
        if isinstance(method, m.BasicDeliver):
            channel.delivery, channel.since = method, self.transport.data_since
            channel.body, channel.size = bytearray(), -1
        elif isinstance(method, m.BasicAck | m.BasicNack):
            self._confirmed(channel, method)
        elif isinstance(method, m.ConnectionClose | m.ChannelClose):
            self._closed(number, method)
        elif not isinstance(method, _UNASKED):
            if not channel.answers:
                self.broken(f"{method} answers nothing")
            elif not (waiting := channel.answers.popleft()).done():
                waiting.set_result(method)

    def _whole(self, number: int, channel: _Channel) -> None:
        delivery = channel.delivery
        if delivery is None or len(channel.body) < channel.size:
            return
        channel.delivery = None
        subscribed = self._consumers[delivery.consumer_tag]
        if subscribed.channel != number:
            self.broken(f"{delivery} came on channel {number}")
            return
        message = Delivered(
            name_of(bytes(channel.body)),
            delivery.redelivered,
            str(delivery.delivery_tag),
            subscribed,
            self.world.next_delivery(),
        )
        subscribed.on_message(message, channel.since)

    def _confirmed(self, channel: _Channel, method: m.BasicAck | m.BasicNack) -> None:
        tag = method.delivery_tag
        tags = [each for each in channel.unconfirmed if each <= tag] if method.multiple else [tag]
        for each in tags:
            waiting = channel.unconfirmed.pop(each, None)
            if waiting is None:
                self.broken(f"{method}: publish {each} was not under way")
            elif waiting.done():
                pass
            elif isinstance(method, m.BasicAck):
                waiting.set_result(None)
            else:
                waiting.set_exception(Refusal("basic.nack"))

    def _closed(self, number: int, method: m.ConnectionClose | m.ChannelClose) -> None:
        may = method.reply_code in _NO_FAULTS and (
            method.reply_code == ReplyCode.CONNECTION_FORCED or self.world.plan.disk_faults
        )
        if not may:
            self.broken(f"{method}")
            return
        self.world.note("closed", self.name, method.reply_text)
        if not self.is_gone:
            ok = m.ConnectionCloseOk() if isinstance(method, m.ConnectionClose) else m.ChannelCloseOk()
            self._send(number, ok)
            self.transport.close()
