"""Class 20: a channel, and class 30: access, which is of an earlier version and asked for on channels."""

from __future__ import annotations

from typing import ClassVar

from wherry.wire.amqp.codec.fields import Bit, LongStr, Short, ShortStr
from wherry.wire.amqp.codec.kinds.method import Method


class ChannelOpen(Method, frozen=True, gc=False):
    """Client: opens the channel that the frame names."""

    ids: ClassVar = (20, 10)
    reserved_1: ShortStr = ""


class ChannelOpenOk(Method, frozen=True, gc=False):
    """Server: the channel is open."""

    ids: ClassVar = (20, 11)
    reserved_1: LongStr = b""


class ChannelFlow(Method, frozen=True, gc=False):
    """Either side: asks the other to stop or go on sending content."""

    ids: ClassVar = (20, 20)
    active: Bit = False


class ChannelFlowOk(Method, frozen=True, gc=False):
    """Either side: what was asked of it holds."""

    ids: ClassVar = (20, 21)
    active: Bit = False


class ChannelClose(Method, frozen=True, gc=False):
    """Either side: the end of the channel, why, and which method was at fault."""

    ids: ClassVar = (20, 40)
    reply_code: Short = 200
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


class ChannelCloseOk(Method, frozen=True, gc=False):
    """Either side: the end was heard."""

    ids: ClassVar = (20, 41)


class AccessRequest(Method, frozen=True, gc=False):
    """Client: asks for a ticket. Of 0-8; clients of its age still send it, and any ticket will do."""

    ids: ClassVar = (30, 10)
    realm: ShortStr = ""
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


class AccessRequestOk(Method, frozen=True, gc=False):
    """Server: the ticket."""

    ids: ClassVar = (30, 11)
    ticket: Short = 1
