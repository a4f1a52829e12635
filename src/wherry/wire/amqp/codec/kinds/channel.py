"""Class 20: channels, and class 30: access, a class of an earlier version that channels still use."""

from __future__ import annotations

from typing import ClassVar

from wherry.wire.amqp.codec.fields import Bit, LongStr, Short, ShortStr
from wherry.wire.amqp.codec.kinds.method import Method


class ChannelOpen(Method, frozen=True, gc=False):
    """Client: open the channel that the frame names."""

    ids: ClassVar = (20, 10)
    reserved_1: ShortStr = ""


class ChannelOpenOk(Method, frozen=True, gc=False):
    """Server: the channel is open."""

    ids: ClassVar = (20, 11)
    reserved_1: LongStr = b""


class ChannelFlow(Method, frozen=True, gc=False):
    """Either side: stop or continue sending content."""

    ids: ClassVar = (20, 20)
    active: Bit = False


class ChannelFlowOk(Method, frozen=True, gc=False):
    """Either side: the requested flow holds."""

    ids: ClassVar = (20, 21)
    active: Bit = False


class ChannelClose(Method, frozen=True, gc=False):
    """Either side: close the channel, with the reason and the method at fault."""

    ids: ClassVar = (20, 40)
    reply_code: Short = 200
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


class ChannelCloseOk(Method, frozen=True, gc=False):
    """Either side: the channel is closed."""

    ids: ClassVar = (20, 41)


class AccessRequest(Method, frozen=True, gc=False):
    """Client: ask for a ticket. Of 0-8; old clients still send it, and any ticket is accepted."""

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
