"""One AMQP connection as a state machine: greeting, login, channels, close. It has no socket and reads no bytes.

    starting ──start-ok──► tuning ──tune-ok──► opening ──open──► open ──close of the client──► over
    any of them but over ──hard fault──► closing ──close-ok──► over

A soft fault closes its channel, a hard one the connection. Either way the broker sends the reason, and ignores what the
client sent before it could read the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from enum import Enum, auto
from typing import Any

from wherry.model.errors import Forbidden, NotFound, Unauthorized, WherryError
from wherry.queueing.flow.delivering import Holding, QueueDelivery
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.virtual_host import VirtualHost
from wherry.queueing.introduction import PROPERTIES
from wherry.queueing.login import MECHANISMS, Login
from wherry.queueing.queueing import Queueing
from wherry.queueing.refusals import Reason, Refused, of_broker, refused
from wherry.wire.amqp.calls import CALLS
from wherry.wire.amqp.channel import Channel
from wherry.wire.amqp.codec import methods as m
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.faults import NO_METHOD, AmqpFault, ReplyCode
from wherry.wire.amqp.codec.frames import FRAME_MIN
from wherry.wire.amqp.codec.methods import Method
from wherry.wire.amqp.codec.reader import Ack, Called, Event, Greeted, Heartbeat, IncomingMessages, Misgreeted
from wherry.wire.amqp.codec.writer import Piece
from wherry.wire.amqp.credentials import credentials, secret_in
from wherry.wire.amqp.rights import ClientRights
from wherry.wire.amqp.transport import Transport

FRAME_MAX = 131_072
CHANNEL_MAX = 2_047
HEARTBEAT_S = 60

LATE_S = 5.0
"""For how long after a channel was closed its late acks and publishes are ignored; the connection is not closed.

They were on their way when the channel was closed. RabbitMQ does not wait like this after `channel.close-ok`, and
closes whole connections of clients where one thread acks while another closes the channel.
"""

_NO_ANSWER = (m.BasicNack, m.BasicReject, m.BasicRecoverAsync, m.BasicCancelOk, m.ChannelFlowOk)

Work = Coroutine[Any, Any, None]

_log = logging.getLogger("wherry.amqp")


class SessionState(Enum):
    """The state of a session."""

    STARTING = auto()
    TUNING = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()
    """The server has closed the connection, and waits for `connection.close-ok`."""
    OVER = auto()


class Session:
    """One connection of one client."""

    def __init__(
        self,
        queueing: Queueing,
        transport: Transport,
        login: Login,
        name: str,
        replies: dict[str, Channel],
        clock: Callable[[], float],
    ) -> None:
        self.queueing, self.intake, self.settling = queueing, queueing.intake, queueing.settling
        self.now_ms = queueing.broker.now_ms
        self.replies = replies
        """Channels of all sessions that wait for direct replies, by their reply names."""
        self.state = SessionState.STARTING
        self.name = name
        """The addresses of client and server, for people."""
        self.host: VirtualHost
        self.holding = Holding(self.wake, self._not_settled)
        """The messages that the client holds."""
        self._unsettled: WherryError | None = None
        """Why an ack or another settle of the client was not stored: its messages will be delivered again."""
        self.channels: dict[int, Channel] = {}
        self._handled = 0
        """Events so far."""
        self._ended: dict[int, tuple[int, float]] = {}
        """Closed channels: the last event that the client may have sent before it knew, and when the channel was
        closed."""
        self.frame_max, self.channel_max = FRAME_MAX, CHANNEL_MAX
        self.client: dict[str, Any] = {}
        """The properties that the client sent at login."""
        self.wants_cancels = False
        self.wants_blocked = False
        self._wants_login_refusal = False
        self.login = login
        self._transport, self._clock = transport, clock
        self.rights = ClientRights(login)
        queueing.clients[self] = None

    # ------------------------------------------------------------------------------------------------- for its channels

    @property
    def is_open(self) -> bool:
        """Whether the client has entered a virtual host, and may open channels."""
        return self.state is SessionState.OPEN

    @property
    def is_over(self) -> bool:
        """Whether the connection is closing or closed: no call is carried out, and no message is delivered any more."""
        return self.state in (SessionState.CLOSING, SessionState.OVER)

    @property
    def is_write_paused(self) -> bool:
        """Whether the client has not read what it was sent before."""
        return self._transport.is_write_paused or self._transport.is_closing or self.is_over

    @property
    def user(self) -> str:
        """The user name; empty before login."""
        return self.login.user

    def wake(self) -> None:
        """Wake the queues of all consumers, since they have room again."""
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                consumer.queue.wake()

    def send(self, channel: int, method: Method) -> None:
        """Send a method to the client."""
        if self.state is not SessionState.OVER:
            self._transport.write(writer.frame(channel, method))

    def send_bytes(self, data: bytes) -> None:
        """Send complete frames."""
        self._transport.write(data)

    def send_all(self, pieces: list[Piece]) -> None:
        """Send complete frames, in pieces."""
        self._transport.write_all(pieces)

    def renew_rights(self) -> None:
        """Ask for the rights anew, since those of the key may have changed; end consumers that have lost theirs."""
        self.rights.forget()
        consumers = [each for channel in self.channels.values() for each in channel.consumers.values()]
        lost = self.rights.withdrawn({each.queue.topic for each in consumers})
        for consumer in consumers if lost else ():
            if (fault := lost.get(consumer.queue.topic)) is not None and not consumer.end():
                self.queueing.run_in_background(self._refuse(fault, consumer.channel.number, m.BasicConsume.ids))

    def tidy_queue(self, queue: Queue) -> None:
        """Delete an auto-delete queue that has lost its last consumer."""
        if queue.terms.auto_delete and queue.was_consumed and not queue.consumers:
            self.queueing.run_in_background(self.host.delete_queue(queue))

    async def flush(self) -> None:
        """Wait until all publishes and settles so far are done, so that an answer includes them."""
        await self.intake.flush()
        await self.settling.flush()

    # ----------------------------------------------------------------------------------------------------------- events

    def handle(self, event: Event) -> Work | None:
        """Handle an event; return the rest of the work if it takes time."""
        self._handled += 1
        try:
            return self._handle(event)
        except AmqpFault as fault:
            return self._close(fault)

    def _handle(self, event: Event) -> Work | None:
        if isinstance(event, IncomingMessages):
            channel = self._channel_of(event.channel)
            if channel is not None:
                try:
                    channel.publish(event)
                except Refused as fault:
                    return self._refuse(fault, event.channel, m.BasicPublish.ids)
            return None
        if isinstance(event, Ack):
            channel = self._channel_of(event.channel)
            if channel is not None:
                try:
                    channel.settle(event.tag, multiple=event.multiple, verb="ack")
                except Refused as fault:
                    return self._refuse(fault, event.channel, m.BasicAck.ids)
            return None
        if isinstance(event, Called):
            return self._called(event.channel, event.method)
        return self._other(event)

    def _other(self, event: Event) -> Work | None:
        if isinstance(event, Greeted):
            start = m.ConnectionStart(server_properties=PROPERTIES, mechanisms=" ".join(self.login.mechanisms).encode())
            self.send(0, start)
        elif isinstance(event, Misgreeted):
            self._transport.write(b"AMQP\x00\x00\x09\x01")
            self._end()
        elif isinstance(event, AmqpFault):
            if event.hard or event.channel not in self.channels:
                return self._close(event)
            return self._close_channel(event)
        else:
            assert isinstance(event, Heartbeat)
        return None

    def _channel_of(self, number: int) -> Channel | None:
        """Return the channel of an event; None if the channel is closing and the event is to be ignored."""
        if self.state is not SessionState.OPEN:
            return None
        channel = self.channels.get(number)
        if channel is None:
            if self._is_late(number):
                return None
            raise AmqpFault(ReplyCode.CHANNEL_ERROR, f"expected 'channel.open' on channel {number}", hard=True)
        return None if channel.is_closing else channel

    def _is_late(self, number: int, *, wants_answer: bool = False) -> bool:
        """Return whether the client may have sent this before it knew that the channel was closed."""
        known_after, ended_at = self._ended.get(number, (0, -LATE_S))
        if self._handled <= known_after:
            return True
        return not wants_answer and self._clock() - ended_at < LATE_S

    def _called(self, number: int, method: Method) -> Work | None:
        if isinstance(method, m.ConnectionCloseOk):
            self._end()
            return None
        if isinstance(method, m.ConnectionClose):
            return self._closed_by_client()
        if self.is_over:
            return None
        if number == 0:
            return self._of_connection(method)
        return self._of_channel(number, method)

    # --------------------------------------------------------------------------------------------------- the connection

    def _of_connection(self, method: Method) -> Work | None:
        try:
            if isinstance(method, m.ConnectionStartOk) and self.state is SessionState.STARTING:
                return self._once_known(secret_in(method.mechanism, method.response), self._start, method)
            elif isinstance(method, m.ConnectionTuneOk) and self.state is SessionState.TUNING:
                self._tune(method)
            elif isinstance(method, m.ConnectionOpen) and self.state is SessionState.OPENING:
                self.host = self._host(method.virtual_host)
                self.state = SessionState.OPEN
                self.send(0, m.ConnectionOpenOk())
            elif isinstance(method, m.ConnectionUpdateSecret) and self.state is SessionState.OPEN:
                return self._once_known(method.new_secret.decode("utf-8", "replace"), self._renew, method)
            else:
                raise refused(Reason.COMMAND_INVALID, f"'{m.name_of(type(method))}' is not expected now", hard=True)
        except Refused as fault:
            return self._refuse(fault, 0, method.ids)
        return None

    def _host(self, name: str) -> VirtualHost:
        try:
            return self.queueing.enter(name, self.login)
        except NotFound:
            raise refused(Reason.NOT_ALLOWED, f"vhost {name} not found", hard=True) from None
        except (Forbidden, Unauthorized):
            text = f"access to vhost '{name}' refused for user '{self.user}'"
            raise refused(Reason.NOT_ALLOWED, text, hard=True) from None

    def _once_known(self, secret: str, call: Callable[[Any], Work | None], method: Method) -> Work | None:
        """Carry out a call with a secret; an access token of a new key waits until that key was fetched."""
        waiting = self.login.awaited(secret)
        return call(method) if waiting is None else self._later(waiting, call, method)

    async def _later(self, waiting: Awaitable[None], call: Callable[[Any], Work | None], method: Method) -> None:
        await waiting
        try:
            rest = None if self.is_over else call(method)
        except Refused as fault:
            rest = self._refuse(fault, 0, method.ids)
        if rest is not None:
            await rest

    def _renew(self, method: m.ConnectionUpdateSecret) -> None:
        try:
            self.login.renew(method.new_secret.decode("utf-8", "replace"))
        except Unauthorized as fault:
            raise refused(Reason.ACCESS_REFUSED, str(fault), hard=True) from None
        self.renew_rights()
        self.send(0, m.ConnectionUpdateSecretOk())

    def _start(self, method: m.ConnectionStartOk) -> Work | None:
        self.client = method.client_properties
        capabilities = self.client.get("capabilities")
        known = capabilities if isinstance(capabilities, dict) else {}
        self.wants_cancels = bool(known.get("consumer_cancel_notify"))
        self.wants_blocked = bool(known.get("connection.blocked"))
        self._wants_login_refusal = bool(known.get("authentication_failure_close"))
        if method.mechanism not in MECHANISMS:
            raise refused(Reason.COMMAND_INVALID, f"unknown authentication mechanism '{method.mechanism}'", hard=True)
        try:
            name, secret = credentials(method.mechanism, method.response)
            self.login.enter(method.mechanism, name, secret)
        except (Unauthorized, ValueError) as fault:
            _log.info("login refused", extra={"mechanism": method.mechanism, "why": str(fault)})
            return self._refuse_login(method, fault.pause_s if isinstance(fault, Unauthorized) else 0.0)
        self.state = SessionState.TUNING
        self.send(0, m.ConnectionTune(channel_max=CHANNEL_MAX, frame_max=FRAME_MAX, heartbeat=HEARTBEAT_S))
        return None

    async def _refuse_login(self, method: m.ConnectionStartOk, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if not self._wants_login_refusal:
            self._end()
            return
        text = f"Login was refused using authentication mechanism {method.mechanism}. "
        fault = refused(Reason.ACCESS_REFUSED, text + "For details see the broker logfile.", hard=True)
        await self._refuse(fault, 0, method.ids)

    def _tune(self, method: m.ConnectionTuneOk) -> None:
        frame_max, channel_max = method.frame_max or FRAME_MAX, method.channel_max or CHANNEL_MAX
        if not FRAME_MIN <= frame_max <= FRAME_MAX:
            text = f"negotiated frame_max = {frame_max}; allowed: {FRAME_MIN} to {FRAME_MAX}"
            raise refused(Reason.NOT_ALLOWED, text, hard=True)
        if channel_max > CHANNEL_MAX:
            text = f"negotiated channel_max = {channel_max} is higher than the maximum allowed value ({CHANNEL_MAX})"
            raise refused(Reason.NOT_ALLOWED, text, hard=True)
        self.frame_max, self.channel_max = frame_max, channel_max
        self._transport.tuned(frame_max, channel_max, method.heartbeat)
        self.state = SessionState.OPENING

    # ----------------------------------------------------------------------------------------------------- the channels

    def _of_channel(self, number: int, method: Method) -> Work | None:
        if self.state is not SessionState.OPEN:
            raise _unexpected(number, method, "'connection.open'")
        channel = self.channels.get(number)
        if isinstance(method, m.ChannelOpen):
            if channel is not None:
                raise _unexpected(number, method, "any other method, for the channel is open")
            if len(self.channels) >= self.channel_max:
                most = self.channel_max
                text = f"number of channels opened ({most}) has reached the negotiated channel_max ({most})"
                raise AmqpFault(ReplyCode.NOT_ALLOWED, text, channel=number, ids=method.ids, hard=True)
            self.channels[number] = Channel(self, number)
            self._ended.pop(number, None)
            self.send(number, m.ChannelOpenOk())
        elif isinstance(method, m.ChannelCloseOk):
            if channel is not None and channel.is_closing:  # otherwise the server has not closed it
                self._forget(number)
        elif channel is None:
            late = self._is_late(number, wants_answer=not isinstance(method, _NO_ANSWER))
            if not late and not isinstance(method, m.ChannelClose):  # both sides may close at the same time
                raise _unexpected(number, method, "'channel.open'")
        elif isinstance(method, m.ChannelClose):
            return self._channel_closed_by_client(channel)
        elif not channel.is_closing:
            call = CALLS.get(type(method))
            if call is None:
                raise _unexpected(number, method, "a method for servers", ReplyCode.COMMAND_INVALID)
            return self._carried_out(call(channel, method), channel, method)
        return None

    async def _carried_out(self, call: Coroutine[Any, Any, Method | None], channel: Channel, method: Method) -> None:
        try:
            answer = await call
        except Refused as fault:
            await self._refuse(fault, channel.number, method.ids)
        except WherryError as fault:
            await self._refuse(of_broker(fault), channel.number, method.ids)
        else:
            if answer is not None and not getattr(method, "no_wait", False):
                self.send(channel.number, answer)

    async def _channel_closed_by_client(self, channel: Channel) -> None:
        channel.close()
        await self.settling.flush()
        await self.queueing.background_done()
        if self._unsettled is not None:  # a client may take `channel.close-ok` for the end of all its acks
            await self._close(self._not_stored(self._unsettled))
            return
        if self.channels.get(channel.number) is channel:
            self._forget(channel.number)
        self.send(channel.number, m.ChannelCloseOk())

    def _forget(self, number: int) -> None:
        """Remove a closed channel. Events that wait by now were sent before the client could know."""
        del self.channels[number]
        self._ended[number] = (self._handled + self._transport.waiting, self._clock())

    # ---------------------------------------------------------------------------------------------------------- endings

    def _refuse(self, fault: Refused, number: int, ids: tuple[int, int]) -> Work:
        reply = AmqpFault(ReplyCode[fault.reason.name], fault.detail, channel=number, ids=ids, hard=fault.hard)
        if reply.hard or number not in self.channels:
            return self._close(reply)
        return self._close_channel(reply)

    async def _close_channel(self, fault: AmqpFault) -> None:
        channel = self.channels.get(fault.channel)
        if channel is None or channel.is_closing:
            return
        await self.intake.flush()  # publishes before the fault count
        channel.is_closing = True
        channel.close()
        self._transport.mute(fault.channel)
        self.send(fault.channel, m.ChannelClose(int(fault.code), fault.text, fault.class_id, fault.method_id))

    async def _close(self, fault: AmqpFault) -> None:
        """Close the connection for a hard fault."""
        if self.is_over:
            return
        self.send(0, m.ConnectionClose(int(fault.code), fault.text, fault.class_id, fault.method_id))
        self.state = SessionState.CLOSING
        await self._release_all()

    def deliveries(self) -> Iterable[QueueDelivery]:
        """Return the deliveries with unsettled messages."""
        return (message.queue_delivery for channel in self.channels.values() for message in channel.all_unacked())

    async def close(self, text: str) -> None:
        """Close the connection, with a text for the client."""
        fault = AmqpFault(ReplyCode.CONNECTION_FORCED, text, ids=NO_METHOD)
        if self.state is SessionState.OPEN:
            await self._close(fault)
        else:
            self._end()

    async def failed(self) -> None:
        """Close the connection after a fault of the broker."""
        await self._close(AmqpFault(ReplyCode.INTERNAL_ERROR, "a fault of the broker, which is in its log"))

    async def _closed_by_client(self) -> None:
        await self._release_all()
        await self.queueing.background_done()
        if self._unsettled is not None:
            await self._close(self._not_stored(self._unsettled))
            return
        self.send(0, m.ConnectionCloseOk())
        self._end()

    def _not_settled(self, fault: WherryError) -> None:
        self._unsettled = fault

    @staticmethod
    def _not_stored(fault: WherryError) -> AmqpFault:
        refusal = of_broker(fault)
        return AmqpFault(ReplyCode[refusal.reason.name], f"settles were not stored: {refusal.detail}")

    def _end(self) -> None:
        self.state = SessionState.OVER
        self._transport.hang_up()

    def lost(self) -> None:
        """Release everything, since the socket is closed."""
        self.state = SessionState.OVER
        self.queueing.run_in_background(self._release_all())

    async def _release_all(self) -> None:
        """Requeue unsettled messages, and delete the queues that are exclusive to the connection."""
        self.queueing.clients.pop(self, None)
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.close()
        await self.settling.flush()
        if hasattr(self, "host"):
            for queue in self.host.owned_by(self):
                await self.host.delete_queue(queue)


def _unexpected(number: int, method: Method, wanted: str, code: ReplyCode = ReplyCode.CHANNEL_ERROR) -> AmqpFault:
    text = f"expected {wanted}, got '{m.name_of(type(method))}' on channel {number}"
    return AmqpFault(code, text, channel=number, ids=method.ids, hard=True)
