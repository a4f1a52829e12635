"""Turn bytes from a client into events for the server.

The frames of one publish become one event. In the usual case its three frames follow each other in the buffer: they are
read in one step, together with following publishes that differ only in the body, as a busy producer sends them. Every
other case is read frame by frame in `_frame`. Messages and their order are the same in both.

A broken rule is an event as well, in its place among the others: what came before it counts, however the bytes were
split. After a hard fault the reader only waits for the end of the connection.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

import msgspec

from wherry.queueing.message.properties import UsedProperties, used_properties
from wherry.queueing.message.table import Malformed
from wherry.wire.amqp.codec.faults import AmqpFault, ReplyCode
from wherry.wire.amqp.codec.frames import (
    ACK_WORD,
    BASIC,
    CONTENT_BODY,
    CONTENT_HEAD,
    CONTENT_HEADER,
    END,
    FRAME_MIN,
    GREETINGS,
    HEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
)
from wherry.wire.amqp.codec.methods import (
    CONTENT,
    BasicAck,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ConnectionClose,
    ConnectionCloseOk,
    Method,
    decode_method,
    name_of,
)

# ------------------------------------------------------------------------------------------------------------ events


class Greeted(msgspec.Struct, frozen=True, gc=False):
    """The client's protocol header is that of AMQP 0-9-1: the connection may start."""


class Misgreeted(msgspec.Struct, frozen=True, gc=False):
    """The client's protocol header is another: answer with `frames.HEADER` and close. Nothing follows."""


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """A heart-beat of the client."""


class Called(msgspec.Struct, frozen=True, gc=False):
    """Any method other than those that have an event of their own."""

    channel: int
    method: Method


class PublishFields(NamedTuple):
    """The fields of a `basic.publish`."""

    exchange: str
    key: str
    mandatory: bool
    immediate: bool


class IncomingMessages(msgspec.Struct, frozen=True, gc=False):
    """A whole message, which is `basic.publish`, header and body; or several that differ only in their bodies."""

    channel: int
    fields: PublishFields
    properties: UsedProperties
    """Checked; `properties.raw` is what deliveries must contain."""
    bodies: list[bytes]


class Ack(msgspec.Struct, frozen=True, gc=False):
    """`basic.ack` of a delivery."""

    channel: int
    tag: int
    multiple: bool


Event: TypeAlias = Greeted | Misgreeted | Heartbeat | Called | IncomingMessages | Ack | AmqpFault

_GREETED, _MISGREETED, _HEARTBEAT = Greeted(), Misgreeted(), Heartbeat()


# ------------------------------------------------------------------------------------------------------------ reader


BODY_MAX = 128 * 1024 * 1024

_ACK = struct.Struct(">IQB")
_CONTENT = struct.Struct(">HHQ")
_SIZE = struct.Struct(">Q")
_FIELDS_MAX = 256

CONTENT_BYTES = 512
"""Memory of an incomplete message beside its received bytes: to begin one costs a client twenty bytes."""


class _Content:
    """A publish whose header or body has not arrived completely."""

    __slots__ = ("body", "fields", "properties", "size")

    def __init__(self, fields: PublishFields) -> None:
        self.fields = fields
        self.properties: UsedProperties | None = None
        self.size = 0
        self.body = bytearray()  # not a list of pieces: a body of tiny frames would take many times its size


class FrameReader:
    """Reads everything that one client sends, from its first byte.

    Parameters
    ----------
    frame_max : int
        Largest payload of a frame, in bytes. It changes when the client has agreed to another one. AMQP counts the 8
        bytes around the payload too; a client that goes by the payload alone is accepted.
    channel_max : int
        How many channels may have incomplete messages at a time. It changes with `frame_max`.
    body_max : int
        Largest body of a message, in bytes. More than that ends the channel.
    """

    def __init__(self, frame_max: int = FRAME_MIN, channel_max: int = 0xFFFF, body_max: int = BODY_MAX) -> None:
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.body_max = body_max
        self._greeted = False
        self._failed = False
        self._ignores_all = False
        self._rest = bytearray()
        self._need = 0
        self._unfinished: dict[int, _Content | None] = {}
        """By channel; None for one that is muted."""
        self._unfinished_bytes = 0
        self._known_fields: dict[bytes, PublishFields] = {}
        """By the payload of a `basic.publish`: producers repeat the same one again and again."""

    @property
    def partial_bytes(self) -> int:
        """Return how many bytes are kept for incomplete frames and messages."""
        return self._unfinished_bytes + len(self._rest)

    def mute(self, channel: int) -> None:
        """Ignore all frames of a channel that the server has closed, up to its `channel.close-ok`."""
        self._forget(channel)
        self._unfinished[channel] = None

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of the bytes, with those left from before. Incomplete frames wait for more bytes."""
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._need:
                return []
            data = bytes(rest)
            rest.clear()
        events: list[Event] = []
        if self._failed:
            at = self._await_close(data, 0, events)
        elif self._greeted:
            at = self._frames(data, 0, events)
        else:
            at = self._greeting(data, events)
        if at < len(data) and not self._ignores_all:
            rest += memoryview(data)[at:]
        return events

    def _greeting(self, data: bytes, events: list[Event]) -> int:
        received = data[: len(HEADER)]
        if received in GREETINGS:
            self._greeted = True
            events.append(_GREETED)
            return self._frames(data, len(HEADER), events)
        if any(greeting.startswith(received) for greeting in GREETINGS):
            self._need = len(received) + 1
            return 0
        self._failed = self._ignores_all = True
        events.append(_MISGREETED)
        return len(data)

    def _frames(self, data: bytes, at: int, events: list[Event]) -> int:
        """Read all whole frames; return where the first incomplete one begins."""
        end = len(data)
        known_fields, unfinished = self._known_fields, self._unfinished
        largest = self.frame_max
        while at + OVERHEAD <= end:
            kind, channel, size = HEAD.unpack_from(data, at)
            start = at + 7
            stop = start + size
            if size > largest or (stop < end and data[stop] != END):
                return self._misframed(size, events, end)
            if stop >= end:
                self._need = stop + 1 - at
                return at
            if kind == METHOD and channel and channel not in unfinished:
                if size == 13:
                    word, tag, bits = _ACK.unpack_from(data, start)
                    if word == ACK_WORD:
                        events.append(Ack(channel, tag, bits & 1 == 1))
                        at = stop + 1
                        continue
                fields = known_fields.get(data[start:stop])
                if fields is not None and (after := self._publishes(data, at, stop + 1, channel, fields, events)):
                    at = after
                    continue
            at = stop + 1
            self._frame(kind, channel, data[start:stop], events)
            if self._failed:
                return self._await_close(data, at, events)
        self._need = OVERHEAD
        return at

    def _publishes(
        self, data: bytes, start: int, at: int, channel: int, fields: PublishFields, events: list[Event]
    ) -> int:
        """Read a publish whose frames are all here and correct, and following ones that differ only in the body.

        The frame of its method is from `start` to `at`. Returns where the last publish ends; 0 if `_frame` must read
        it.
        """
        end = len(data)
        if at + 19 > end:
            return 0
        kind, its_channel, size, class_id, weight, length = CONTENT_HEAD.unpack_from(data, at)
        body = at + 15 + size  # behind the head of the body's frame
        stop = body + length
        if (
            stop >= end
            or length == 0
            or (kind, its_channel, class_id, weight) != (CONTENT_HEADER, channel, BASIC, 0)
            or HEAD.unpack_from(data, body - 7) != (CONTENT_BODY, channel, length)
            or not 14 <= size <= self.frame_max
            or length > self.frame_max
            or length > self.body_max
            or data[body - 8] != END
            or data[stop] != END
        ):
            return 0
        bodies = _bodies_of(events, channel, fields, data[at + 19 : body - 8])
        if bodies is None:
            return 0
        bodies.append(data[body:stop])
        if len(bodies) == 1:  # only a second one makes it a run
            return stop + 1
        before, between = data[start : at + 11], data[at + 19 : body - 4]  # each is followed by the body's size
        most = min(self.frame_max, self.body_max)
        while data.startswith(before, start := stop + 1):
            at = start + len(before)
            body = at + 12 + len(between)
            if body >= end:
                break
            length = _SIZE.unpack_from(data, at)[0]
            stop = body + length
            if (
                stop >= end
                or not 0 < length <= most
                or not data.startswith(between, at + 8)
                or data[body - 4 : body] != data[at + 4 : at + 8]
                or data[stop] != END
            ):
                break
            bodies.append(data[body:stop])
        return start

    def _frame(self, kind: int, channel: int, payload: bytes, events: list[Event]) -> None:
        """Read one whole frame of any kind."""
        try:
            event = self._event_of(kind, channel, payload)
        except AmqpFault as fault:
            fault.channel = channel
            events.append(fault)
            if fault.hard:
                self._failed = True
                self._unfinished.clear()
                self._unfinished_bytes = 0
            else:
                self.mute(channel)
        else:
            if event is not None:
                events.append(event)

    def _event_of(self, kind: int, channel: int, payload: bytes) -> Event | None:
        if kind == METHOD:
            return self._method(channel, payload)
        if kind == HEARTBEAT:
            if channel or payload:
                raise AmqpFault(ReplyCode.FRAME_ERROR, "a heart-beat belongs to channel 0 and is empty")
            return _HEARTBEAT
        if kind not in (CONTENT_HEADER, CONTENT_BODY):
            self._ignores_all = True  # the type is unknown, so what follows cannot be read either
            raise AmqpFault(ReplyCode.FRAME_ERROR, f"unknown type of frame: {kind}")
        if channel == 0:
            raise AmqpFault(ReplyCode.CHANNEL_ERROR, "content on channel 0")
        content = self._unfinished.get(channel, _NOTHING)
        if content is None:
            return None
        if content is _NOTHING or (content.properties is None) != (kind == CONTENT_HEADER):
            raise _unexpected(kind, content)
        return (
            self._header(channel, content, payload) if kind == CONTENT_HEADER else self._body(channel, content, payload)
        )

    def _method(self, channel: int, payload: bytes) -> Event | None:
        content = self._unfinished.get(channel, _NOTHING)
        if content is not None and content is not _NOTHING:
            raise _unexpected(METHOD, content)
        if content is None and payload[:4] not in _CHANNEL_ENDS:
            return None
        method = decode_method(payload)
        if (method.ids[0] == ConnectionClose.ids[0]) != (channel == 0):
            code = ReplyCode.COMMAND_INVALID if channel else ReplyCode.CHANNEL_ERROR
            raise AmqpFault(code, f"{name_of(type(method))} on channel {channel}", ids=method.ids)
        if type(method) is BasicPublish:
            fields = PublishFields(method.exchange, method.routing_key, method.mandatory, method.immediate)
            if len(self._unfinished) >= self.channel_max:
                raise AmqpFault(ReplyCode.CHANNEL_ERROR, f"messages on more than {self.channel_max} channels at a time")
            if len(self._known_fields) >= _FIELDS_MAX:
                self._known_fields.clear()
            self._known_fields[payload] = fields
            self._unfinished[channel] = _Content(fields)
            self._unfinished_bytes += CONTENT_BYTES
            return None
        if method.ids in CONTENT:
            raise AmqpFault(
                ReplyCode.COMMAND_INVALID, f"{name_of(type(method))} is for servers to send", ids=method.ids
            )
        if type(method) is BasicAck:
            return Ack(channel, method.delivery_tag, method.multiple)
        if content is None and type(method) is ChannelCloseOk:
            del self._unfinished[channel]
        return Called(channel, method)

    def _header(self, channel: int, content: _Content, payload: bytes) -> Event | None:
        ids = BasicPublish.ids
        if len(payload) < 14:
            raise AmqpFault(ReplyCode.SYNTAX_ERROR, f"a content header of {len(payload)} bytes", ids=ids)
        class_id, weight, size = _CONTENT.unpack_from(payload)
        if class_id != BASIC or weight:
            raise AmqpFault(ReplyCode.FRAME_ERROR, f"content header of class {class_id} and weight {weight}", ids=ids)
        if size > self.body_max:
            raise AmqpFault(
                ReplyCode.CONTENT_TOO_LARGE,
                f"a body of {size} bytes is larger than {self.body_max}",
                channel=channel,
                ids=ids,
            )
        try:
            content.properties = used_properties(payload[12:])
        except Malformed as fault:
            raise AmqpFault(ReplyCode.SYNTAX_ERROR, str(fault)) from None
        content.size = size
        self._unfinished_bytes += len(payload)
        return None if size else self._finished(channel, content, b"")

    def _body(self, channel: int, content: _Content, payload: bytes) -> Event | None:
        missing = content.size - len(content.body) - len(payload)
        if missing < 0:
            raise AmqpFault(
                ReplyCode.UNEXPECTED_FRAME, f"a body {-missing} bytes larger than announced", ids=BasicPublish.ids
            )
        if missing == 0 and not content.body:
            return self._finished(channel, content, payload)
        content.body += payload
        self._unfinished_bytes += len(payload)
        return None if missing else self._finished(channel, content, bytes(content.body))

    def _finished(self, channel: int, content: _Content, body: bytes) -> IncomingMessages:
        self._forget(channel)
        assert content.properties is not None
        return IncomingMessages(channel, content.fields, content.properties, [body])

    def _forget(self, channel: int) -> None:
        content = self._unfinished.pop(channel, None)
        if content is not None:
            self._unfinished_bytes -= CONTENT_BYTES
            if content.properties is not None:
                self._unfinished_bytes -= 12 + len(content.properties.raw) + len(content.body)

    def _misframed(self, size: int, events: list[Event], end: int) -> int:
        what = (
            f"a frame of {size} bytes, above {self.frame_max}"
            if size > self.frame_max
            else "no frame end where one is due"
        )
        events.append(AmqpFault(ReplyCode.FRAME_ERROR, what))
        self._failed = self._ignores_all = True
        self._unfinished.clear()
        self._unfinished_bytes = 0
        return end

    def _await_close(self, data: bytes, at: int, events: list[Event]) -> int:
        """Return how the client ends the connection after a hard fault, and drop all else."""
        end = len(data)
        while not self._ignores_all and at + OVERHEAD <= end:
            kind, channel, size = HEAD.unpack_from(data, at)
            stop = at + 7 + size
            if size > self.frame_max or (stop < end and data[stop] != END):
                self._ignores_all = True
            elif stop >= end:
                self._need = stop + 1 - at
                return at
            elif kind == METHOD and channel == 0 and data[at + 7 : at + 11] in _CONNECTION_ENDS:
                try:
                    events.append(Called(0, decode_method(data[at + 7 : stop])))
                except AmqpFault:
                    self._ignores_all = True
            at = stop + 1
        self._need = OVERHEAD
        return end if self._ignores_all else at


_NOTHING = _Content(PublishFields("", "", False, False))
"""Stands for the content of a channel that has none."""

_CHANNEL_ENDS = frozenset(struct.pack(">HH", *kind.ids) for kind in (ChannelClose, ChannelCloseOk))
_CONNECTION_ENDS = frozenset(struct.pack(">HH", *kind.ids) for kind in (ConnectionClose, ConnectionCloseOk))


def _bodies_of(events: list[Event], channel: int, fields: PublishFields, raw: bytes) -> list[bytes] | None:
    """Return the list for a body: of the last event if it is alike, or of a new one; None for bad properties."""
    last = events[-1] if events else None
    if (
        type(last) is IncomingMessages
        and last.fields is fields
        and last.channel == channel
        and last.properties.raw == raw
    ):
        return last.bodies
    try:
        new = IncomingMessages(channel, fields, used_properties(raw), [])
    except Malformed:
        return None
    events.append(new)
    return new.bodies


def _unexpected(kind: int, content: _Content) -> AmqpFault:
    came = {METHOD: "a method", CONTENT_HEADER: "a content header", CONTENT_BODY: "a content body"}[kind]
    due = "a method" if content is _NOTHING else "a content header" if content.properties is None else "a content body"
    return AmqpFault(ReplyCode.UNEXPECTED_FRAME, f"{came} came where {due} was due", ids=BasicPublish.ids)
